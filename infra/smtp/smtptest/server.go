// Package smtptest is a mail server for tests, in the process of the test.
package smtptest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Stage is a command that a Server can refuse.
type Stage string

// The stages of one mail, in their order.
const (
	MailFrom Stage = "MAIL FROM"
	RcptTo   Stage = "RCPT TO"
	Data     Stage = "DATA" // after the content came
)

// Reply is an answer of the server that refuses a mail.
type Reply struct {
	Code int
	Text string
}

// Mail is what the server took.
type Mail struct {
	From, To string // of the envelope
	Header   mail.Header
	Raw      []byte
	Text     string // decoded text/plain part
	HTML     string // decoded text/html part
}

// Option changes a Server before it starts.
type Option func(*Server)

// WithTLS offers STARTTLS.
func WithTLS(config *tls.Config) Option {
	return func(s *Server) { s.smtp.TLSConfig = config }
}

// WithLogin takes mails only from a client that logged in.
func WithLogin(user, password string) Option {
	return func(s *Server) { s.user, s.password = user, password }
}

// Server takes mails on a port of 127.0.0.1 until the test ends.
type Server struct {
	smtp     *smtp.Server
	addr     string
	user     string
	password string

	mu     sync.Mutex
	taken  []Mail
	refuse func(stage Stage, recipient string) *Reply
}

// New starts a server.
func New(t testing.TB, options ...Option) *Server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("mail server for the test: %v", err)
	}
	return Serve(t, listener, options...)
}

// Serve starts a server on a listener, such as one with TLS from the first byte.
func Serve(t testing.TB, listener net.Listener, options ...Option) *Server {
	s := &Server{addr: listener.Addr().String()}
	s.smtp = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &session{server: s, loggedIn: s.user == ""}, nil
	}))
	s.smtp.Domain = "localhost"
	s.smtp.ErrorLog = log.New(io.Discard, "", 0) // clients that break off are part of the tests
	s.smtp.AllowInsecureAuth = true
	s.smtp.EnableSMTPUTF8 = true
	for _, option := range options {
		option(s)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.smtp.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = s.smtp.Close()
		_ = listener.Close() // of a server that closed before it began to serve
		<-done
	})
	return s
}

// URL is the server's SMTP_URL.
func (s *Server) URL() string { return "smtp://" + s.addr }

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// Refuse sets what decides about every command from now on; a nil Reply accepts it.
// The function may block to keep clients waiting.
func (s *Server) Refuse(decide func(stage Stage, recipient string) *Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = decide
}

// Taken returns every mail so far, in the order in which they came.
func (s *Server) Taken() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

func (s *Server) decide(stage Stage, recipient string) error {
	s.mu.Lock()
	refuse := s.refuse
	s.mu.Unlock()
	if refuse == nil {
		return nil
	}
	if reply := refuse(stage, recipient); reply != nil {
		return &smtp.SMTPError{Code: reply.Code, EnhancedCode: smtp.NoEnhancedCode, Message: reply.Text}
	}
	return nil
}

func (s *Server) take(m Mail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, m)
}

type session struct {
	server   *Server
	loggedIn bool
	from, to string
}

func (s *session) AuthMechanisms() []string {
	if s.server.user == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.server.user || password != s.server.password {
			return smtp.ErrAuthFailed
		}
		s.loggedIn = true
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if !s.loggedIn {
		return smtp.ErrAuthRequired
	}
	s.from = from
	return s.server.decide(MailFrom, "")
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = to
	return s.server.decide(RcptTo, to)
}

func (s *session) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.server.decide(Data, s.to); err != nil {
		return err
	}
	m, err := parse(raw)
	if err != nil {
		return err
	}
	m.From, m.To = s.from, s.to
	s.server.take(m)
	return nil
}

func (s *session) Reset()        { s.from, s.to = "", "" }
func (s *session) Logout() error { return nil }

// parse reads a multipart/alternative mail.
func parse(raw []byte) (Mail, error) {
	msg, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return Mail{}, err
	}
	m := Mail{Header: msg.Header, Raw: raw}
	_, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil {
		return Mail{}, err
	}
	parts := multipart.NewReader(msg.Body, params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return Mail{}, err
		}
		body, err := io.ReadAll(quotedprintable.NewReader(part))
		if err != nil {
			return Mail{}, err
		}
		text := strings.ReplaceAll(string(body), "\r\n", "\n")
		if strings.HasPrefix(part.Header.Get("Content-Type"), "text/html") {
			m.HTML = text
		} else {
			m.Text = text
		}
	}
}
