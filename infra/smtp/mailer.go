package smtp

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	netmail "net/mail"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"example.com/ordertimeout/domain"
)

// SendTimeout bounds one send from the first packet to the last answer. A healthy
// server takes milliseconds; one that scans mails while the client waits, seconds.
const SendTimeout = 10 * time.Second

// quitTimeout bounds the goodbye of a mail that was taken.
const quitTimeout = time.Second

// Mailer sends mails, each over a connection of its own. It is safe for concurrent
// use; how many are on their way at once is up to the caller.
type Mailer struct {
	server server
	tls    *tls.Config
	from   *netmail.Address
}

// Mail is one mail to one address, in plain text and in HTML.
type Mail struct {
	To        string // one address without a display name
	Subject   string
	MessageID string // without <>
	Date      time.Time
	Text      string
	HTML      string
}

// New does not connect: a mail server that is away is found out by Send.
func New(c Config) (*Mailer, error) {
	srv, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	from, err := parseFrom(c.From)
	if err != nil {
		return nil, err
	}
	return &Mailer{
		server: srv,
		tls:    &tls.Config{ServerName: srv.host, MinVersion: tls.VersionTLS12},
		from:   from,
	}, nil
}

// MessageIDDomain is what comes after the @ in the Message-ID of this sender's mails.
func (m *Mailer) MessageIDDomain() string {
	return m.from.Address[strings.LastIndex(m.from.Address, "@")+1:]
}

// Send returns nil once the server took responsibility for the mail. It takes
// SendTimeout at most.
//
// The error is a domain.ErrUnavailable when it says nothing about this mail (no
// connection, no session, timeout, reply 421), a domain.ErrPermanent when the mail
// will never be taken (reply 5xx, an address or a header that cannot be sent), and a
// plain one otherwise (reply 4xx). When the connection breaks between the last byte
// and the answer, nobody knows whether the mail was taken: that is ErrUnavailable too,
// and sending again can deliver it twice, with one Message-ID.
func (m *Mailer) Send(ctx context.Context, mail Mail) error {
	msg, err := m.compose(mail)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, SendTimeout)
	defer cancel()
	return m.deliver(ctx, msg, mail.To)
}

func (m *Mailer) deliver(ctx context.Context, msg *gomail.Msg, recipient string) error {
	conn, err := m.dial(ctx)
	if err != nil {
		return unavailable("connecting", err)
	}
	// The library grants itself the whole timeout again at several steps, and leaves the
	// connection open when it fails halfway.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()

	client, err := m.client(conn)
	if err != nil {
		return unavailable("preparing", err)
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return unavailable("opening a session", err)
	}
	if err := client.SendWithSMTPClient(session, msg); err != nil {
		return refused(err, recipient)
	}
	_ = conn.SetDeadline(time.Now().Add(quitTimeout))
	_ = client.CloseWithSMTPClient(session) // QUIT is a courtesy: the mail was taken
	return nil
}

// dial connects, with TLS where it begins with the first byte.
func (m *Mailer) dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.server.address())
	if err != nil {
		return nil, err
	}
	if !m.server.implicitTLS {
		return conn, nil
	}
	encrypted := tls.Client(conn, m.tls)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return encrypted, nil
}

// client is made for one send: the library changes its choice of authentication
// while it connects. NOOP and RSET are left out, they could only turn a mail that was
// taken into an error.
func (m *Mailer) client(conn net.Conn) (*gomail.Client, error) {
	connected := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	options := []gomail.Option{
		gomail.WithTLSConfig(m.tls),
		gomail.WithTLSPolicy(m.server.policy),
		gomail.WithDialContextFunc(connected),
		gomail.WithTimeout(SendTimeout),
		gomail.WithoutNoop(),
		gomail.WithoutRset(),
	}
	if m.server.user != "" {
		options = append(options,
			gomail.WithOpportunisticSMTPAuth(gomail.SMTPAuthPlain, gomail.SMTPAuthLogin), // encrypted or local only
			gomail.WithUsername(m.server.user),
			gomail.WithPassword(m.server.password),
		)
	}
	return gomail.NewClient(m.server.host, options...)
}

// compose refuses what the library would repair: a header is what the caller meant
// or the mail is not sent.
func (m *Mailer) compose(mail Mail) (*gomail.Msg, error) {
	to, err := parseAddress(mail.To)
	if err != nil || to.Address != mail.To {
		return nil, fmt.Errorf("%w: recipient is not one e-mail address without a name", domain.ErrPermanent)
	}
	if strings.ContainsFunc(mail.Subject, isUnprintable) {
		return nil, fmt.Errorf("%w: subject has characters that are not printable", domain.ErrPermanent)
	}
	if !isMessageID(mail.MessageID) {
		return nil, fmt.Errorf("%w: Message-ID is not of the form left@right in printable ASCII", domain.ErrPermanent)
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(m.from)
	msg.ToMailAddress(to)
	msg.Subject(mail.Subject)
	msg.SetMessageIDWithValue(mail.MessageID)
	msg.SetDateWithValue(mail.Date)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no out-of-office answers
	msg.SetBodyString(gomail.TypeTextPlain, mail.Text)
	msg.AddAlternativeString(gomail.TypeTextHTML, mail.HTML)
	return msg, nil
}

func isMessageID(id string) bool {
	left, right, ok := strings.Cut(id, "@")
	return ok && left != "" && right != "" && !strings.ContainsFunc(id, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '<' || r == '>'
	})
}
