// Package smtp is the adapter to a mail server. config.go reads where it is and how
// far it is trusted, mailer.go sends one mail, failure.go says what a failed send
// means for the mail.
package smtp

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	gomail "github.com/wneessen/go-mail"

	"example.com/ordertimeout/domain"
)

// Config says which mail server, and who the mails are from.
type Config struct {
	URL  string `env:"SMTP_URL,required,notEmpty"`
	From string `env:"MAIL_FROM,required,notEmpty"`
}

// Validate returns a domain.FieldError that names the variable. It never repeats the
// URL, which may hold a password.
func (c Config) Validate() error {
	if _, err := parseURL(c.URL); err != nil {
		return err
	}
	_, err := parseFrom(c.From)
	return err
}

const (
	portSubmission    = 587 // RFC 6409
	portSubmissionTLS = 465 // RFC 8314
)

const urlAllowed = "smtp://[user:password@]host[:port][?tls=none|starttls|opportunistic] or smtps://[user:password@]host[:port], " +
	"special characters in user and password percent-encoded"

// server is what SMTP_URL says.
type server struct {
	host           string
	port           int
	user, password string
	implicitTLS    bool // smtps: TLS from the first byte
	policy         gomail.TLSPolicy
}

func (s server) address() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// parseURL reads SMTP_URL. Without ?tls= a mail server on this machine is spoken to in
// the clear, every other one has to offer STARTTLS with a certificate that is valid.
func parseURL(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil { // the parser's own text may repeat a part of the password
		return server{}, urlError("(not a URL)")
	}
	if err := checkForm(u); err != nil {
		return server{}, err
	}
	s := server{host: u.Hostname(), implicitTLS: u.Scheme == "smtps"}
	if s.port, err = portOf(u); err != nil {
		return server{}, err
	}
	if s.policy, err = policyOf(u, s); err != nil {
		return server{}, err
	}
	s.user = u.User.Username()
	s.password, _ = u.User.Password()
	if (s.user == "") != (s.password == "") {
		return server{}, urlError("(one of user and password)")
	}
	if s.user != "" && s.policy == gomail.NoTLS && !s.implicitTLS && !isLocal(s.host) {
		return server{}, &domain.FieldError{Field: "SMTP_URL", Got: "(user and password with tls=none)", Allowed: "a password travels encrypted only: tls=starttls or smtps://"}
	}
	return s, nil
}

func checkForm(u *url.URL) error {
	switch {
	case u.Scheme != "smtp" && u.Scheme != "smtps":
		return urlError("(another scheme than smtp or smtps)")
	case u.Hostname() == "":
		return urlError("(no host)")
	case strings.ContainsFunc(u.Host, isUnprintable):
		return urlError("(a host with characters that are not printable)")
	case u.Path != "" && u.Path != "/", u.Fragment != "":
		return urlError("(something behind host and port)")
	}
	return nil
}

func portOf(u *url.URL) (int, error) {
	switch {
	case u.Port() != "":
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || port == 0 {
			return 0, &domain.FieldError{Field: "SMTP_URL", Got: "port " + u.Port(), Allowed: "a port from 1 to 65535"}
		}
		return int(port), nil
	case u.Scheme == "smtps":
		return portSubmissionTLS, nil
	default:
		return portSubmission, nil
	}
}

func policyOf(u *url.URL, s server) (gomail.TLSPolicy, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return 0, urlError("(a query that cannot be read)")
	}
	values, given := query["tls"]
	switch {
	case len(query) > 1, len(query) == 1 && !given, len(values) > 1:
		return 0, urlError("(a query with something else than one tls)")
	case given && s.implicitTLS:
		return 0, urlError("(smtps with tls)")
	case s.implicitTLS:
		return gomail.NoTLS, nil // nothing left to negotiate
	case !given && isLocal(s.host):
		return gomail.NoTLS, nil
	case !given:
		return gomail.TLSMandatory, nil
	}
	switch values[0] {
	case "none":
		return gomail.NoTLS, nil
	case "starttls":
		return gomail.TLSMandatory, nil
	case "opportunistic":
		return gomail.TLSOpportunistic, nil
	default:
		return 0, urlError(fmt.Sprintf("(tls=%.32q)", values[0]))
	}
}

func isLocal(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

func urlError(got string) error {
	return &domain.FieldError{Field: "SMTP_URL", Got: got, Allowed: urlAllowed}
}

// parseFrom reads MAIL_FROM. Its domain becomes a part of every Message-ID, which has
// to be ASCII; the display name may be anything that prints.
func parseFrom(text string) (*mail.Address, error) {
	from, err := parseAddress(text)
	if err == nil && strings.ContainsFunc(from.Address, func(r rune) bool { return r > unicode.MaxASCII }) {
		err = errors.New("not ASCII")
	}
	if err != nil {
		return nil, &domain.FieldError{Field: "MAIL_FROM", Got: fmt.Sprintf("%.128s", text), Allowed: `one e-mail address in ASCII, with a display name or without, such as "Shop" <orders@shop.example>`}
	}
	return from, nil
}

// parseAddress takes one address and refuses everything that could end a header or a
// command early. It looks at the decoded address: the parser unpacks encoded words.
func parseAddress(text string) (*mail.Address, error) {
	addr, err := mail.ParseAddress(text)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(addr.Name+addr.Address, isUnprintable) {
		return nil, errors.New("address with characters that are not printable")
	}
	return addr, nil
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }
