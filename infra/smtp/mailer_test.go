package smtp

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/smtp/smtptest"
)

func aMail() Mail {
	return Mail{
		To:        "ada@buyer.example",
		Subject:   "Your order – closed",
		MessageID: "closed.0190f5fe-7c00-7a00-8000-0123456789ab.0123456789abcdef@shop.example",
		Date:      time.Date(2026, 12, 1, 14, 5, 0, 0, time.UTC),
		Text:      "Grüße\n.\n" + strings.Repeat("long ", 300) + "\n",
		HTML:      "<p>Grüße</p>\n",
	}
}

func newMailer(t *testing.T, url string) *Mailer {
	t.Helper()
	m, err := New(Config{URL: url, From: `"Läden, alle" <orders@shop.example>`})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMailArrivesAsWritten(t *testing.T) {
	t.Parallel()
	srv := smtptest.New(t)
	want := aMail()
	if err := newMailer(t, srv.URL()).Send(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	taken := srv.Taken()
	if len(taken) != 1 {
		t.Fatalf("mails taken: %d, want 1", len(taken))
	}
	got := taken[0]
	if got.From != "orders@shop.example" || got.To != want.To {
		t.Errorf("envelope from %q to %q", got.From, got.To)
	}
	if got.Text != want.Text || got.HTML != want.HTML {
		t.Errorf("text %q, HTML %q", got.Text, got.HTML)
	}
	from, err := got.Header.AddressList("From")
	if err != nil || len(from) != 1 || *from[0] != (netmail.Address{Name: "Läden, alle", Address: "orders@shop.example"}) {
		t.Errorf("From: %v, %v", from, err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
	if err != nil || subject != want.Subject {
		t.Errorf("Subject: %q, %v", subject, err)
	}
	for key, value := range map[string]string{
		"To":             "<ada@buyer.example>",
		"Message-Id":     "<" + want.MessageID + ">",
		"Date":           "Tue, 01 Dec 2026 14:05:00 +0000",
		"Auto-Submitted": "auto-generated",
		"Mime-Version":   "1.0",
	} {
		if values := got.Header[key]; len(values) != 1 || values[0] != value {
			t.Errorf("%s: %q, want %q", key, values, value)
		}
	}
}

// kindOf names what an error tells the caller to do.
func kindOf(err error) string {
	switch unavailable, permanent := errors.Is(err, domain.ErrUnavailable), errors.Is(err, domain.ErrPermanent); {
	case err == nil:
		return "sent"
	case unavailable && permanent:
		return "both"
	case unavailable:
		return "unavailable"
	case permanent:
		return "permanent"
	default:
		return "transient"
	}
}

func TestRefusedMailIsClassified(t *testing.T) {
	t.Parallel()
	for _, stage := range []smtptest.Stage{smtptest.MailFrom, smtptest.RcptTo, smtptest.Data} {
		for code, want := range map[int]string{421: "unavailable", 450: "transient", 451: "transient", 452: "transient", 550: "permanent", 552: "permanent", 554: "permanent"} {
			t.Run(fmt.Sprintf("%s %d", stage, code), func(t *testing.T) {
				t.Parallel()
				srv := smtptest.New(t)
				srv.Refuse(func(at smtptest.Stage, _ string) *smtptest.Reply {
					if at != stage {
						return nil
					}
					return &smtptest.Reply{Code: code, Text: "<ada@buyer.example> why not " + strings.Repeat("x", 1500)}
				})
				err := newMailer(t, srv.URL()).Send(t.Context(), aMail())
				if got := kindOf(err); got != want {
					t.Fatalf("Send: %v is %s, want %s", err, got, want)
				}
				text := err.Error()
				if !strings.Contains(text, fmt.Sprint(code)) || !strings.Contains(text, "why not") {
					t.Errorf("the server's answer is lost: %s", text)
				}
				if len(text) > maxErrorText+100 {
					t.Errorf("error text of %d bytes", len(text))
				}
				if want != "unavailable" && strings.Contains(text, "ada@") {
					t.Errorf("error repeats the mail address: %s", text)
				}
				if len(srv.Taken()) != 0 {
					t.Error("a refused mail was taken")
				}
			})
		}
	}
}

// scripted is a mail server that answers line by line and then does what end says.
func scripted(t *testing.T, answers []string, end func(conn net.Conn, in *bufio.Reader)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		in := bufio.NewReader(conn)
		for i, answer := range answers {
			if i > 0 { // the greeting comes unasked
				if _, err := in.ReadString('\n'); err != nil {
					return
				}
			}
			_, _ = io.WriteString(conn, answer+"\r\n")
		}
		end(conn, in)
	})
	return "smtp://" + listener.Addr().String()
}

var dialogue = []string{"220 here", "250 hello", "250 sender ok", "250 recipient ok", "354 go ahead"}

func TestBrokenConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	for length := range len(dialogue) + 1 {
		t.Run(fmt.Sprintf("after %d answers", length), func(t *testing.T) {
			t.Parallel()
			url := scripted(t, dialogue[:length], func(net.Conn, *bufio.Reader) {})
			if err := newMailer(t, url).Send(t.Context(), aMail()); kindOf(err) != "unavailable" {
				t.Errorf("Send: %v is %s", err, kindOf(err))
			}
		})
	}
	t.Run("content sent, no answer", func(t *testing.T) {
		t.Parallel()
		url := scripted(t, dialogue, func(_ net.Conn, in *bufio.Reader) { readContent(in) })
		if err := newMailer(t, url).Send(t.Context(), aMail()); kindOf(err) != "unavailable" {
			t.Errorf("Send: %v is %s", err, kindOf(err))
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		if err := newMailer(t, "smtp://"+listener.Addr().String()).Send(t.Context(), aMail()); kindOf(err) != "unavailable" {
			t.Errorf("Send: %v is %s", err, kindOf(err))
		}
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		if err := newMailer(t, "smtp://mail.invalid").Send(t.Context(), aMail()); kindOf(err) != "unavailable" {
			t.Errorf("Send: %v is %s", err, kindOf(err))
		}
	})
}

func readContent(in *bufio.Reader) {
	for {
		line, err := in.ReadString('\n')
		if err != nil || line == ".\r\n" {
			return
		}
	}
}

func TestMailThatWasTakenIsSentWhateverComesAfter(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(net.Conn, *bufio.Reader){
		"hangs up": func(net.Conn, *bufio.Reader) {},
		"silence":  untilClosed,
		"refused":  func(conn net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(conn, "421 going away\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := scripted(t, dialogue, func(conn net.Conn, in *bufio.Reader) {
				readContent(in)
				_, _ = io.WriteString(conn, "250 taken\r\n")
				after(conn, in)
			})
			begin := time.Now()
			if err := newMailer(t, url).Send(t.Context(), aMail()); err != nil || time.Since(begin) > SendTimeout/2 {
				t.Errorf("Send: %v after %s", err, time.Since(begin))
			}
		})
	}
}

// untilClosed keeps a client waiting until it gives up.
func untilClosed(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }

func TestSilentServerIsUnavailableInTime(t *testing.T) {
	t.Parallel()
	for length := range len(dialogue) + 1 {
		t.Run(fmt.Sprintf("after %d answers", length), func(t *testing.T) {
			t.Parallel()
			m := newMailer(t, scripted(t, dialogue[:length], untilClosed))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			begin := time.Now()
			err := m.Send(ctx, aMail())
			if kindOf(err) != "unavailable" || time.Since(begin) > SendTimeout/2 {
				t.Errorf("Send: %v is %s after %s", err, kindOf(err), time.Since(begin))
			}
		})
	}
	t.Run("without a deadline of the caller", func(t *testing.T) {
		t.Parallel()
		m := newMailer(t, scripted(t, dialogue, untilClosed))
		begin := time.Now()
		err := m.Send(context.WithoutCancel(t.Context()), aMail())
		if took := time.Since(begin); kindOf(err) != "unavailable" || took < SendTimeout-time.Second || took > SendTimeout+5*time.Second {
			t.Errorf("Send: %v is %s after %s", err, kindOf(err), took)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		m := newMailer(t, scripted(t, dialogue, func(conn net.Conn, in *bufio.Reader) {
			cancel()
			untilClosed(conn, in)
		}))
		begin := time.Now()
		if err := m.Send(ctx, aMail()); kindOf(err) != "unavailable" || time.Since(begin) > SendTimeout/2 {
			t.Errorf("Send: %v is %s after %s", err, kindOf(err), time.Since(begin))
		}
	})
}

func TestSessionThatCannotBeginIsUnavailableAndLeavesNoConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []string
		query   string
	}{
		"busy at the greeting":          {[]string{"421 too many connections"}, ""},
		"no service at the greeting":    {[]string{"554 no service"}, ""},
		"hello refused":                 {[]string{"220 here", "550 no", "550 no"}, ""},
		"STARTTLS not offered":          {[]string{"220 here", "250 hello"}, "?tls=starttls"},
		"STARTTLS refused":              {[]string{"220 here", "250-hello\r\n250 STARTTLS", "454 not now"}, "?tls=starttls"},
		"STARTTLS refused after choice": {[]string{"220 here", "250-hello\r\n250 STARTTLS", "454 not now"}, "?tls=opportunistic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hungUp := make(chan struct{})
			url := scripted(t, c.answers, func(conn net.Conn, in *bufio.Reader) {
				untilClosed(conn, in)
				close(hungUp)
			})
			if err := newMailer(t, url+c.query).Send(t.Context(), aMail()); kindOf(err) != "unavailable" {
				t.Errorf("Send: %v is %s", err, kindOf(err))
			}
			select {
			case <-hungUp:
			case <-time.After(30 * time.Second):
				t.Error("the connection is still open")
			}
		})
	}
}

// certificate is one for 127.0.0.1 with the pool that trusts it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	defer srv.Close()
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return &tls.Config{Certificates: srv.TLS.Certificates, MinVersion: tls.VersionTLS12}, pool
}

func TestEncryptedConnections(t *testing.T) {
	t.Parallel()
	config, trusted := certificate(t)
	overSTARTTLS := func(t *testing.T) (*smtptest.Server, string) {
		srv := smtptest.New(t, smtptest.WithTLS(config), smtptest.WithLogin("shop", "secret"))
		return srv, "smtp://shop:%s@" + srv.Addr() + "?tls=starttls"
	}
	overTLS := func(t *testing.T) (*smtptest.Server, string) {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
		if err != nil {
			t.Fatal(err)
		}
		srv := smtptest.Serve(t, listener, smtptest.WithLogin("shop", "secret"))
		return srv, "smtps://shop:%s@" + srv.Addr()
	}
	for name, serve := range map[string]func(*testing.T) (*smtptest.Server, string){"starttls": overSTARTTLS, "smtps": overTLS} {
		for _, c := range []struct {
			name, password string
			roots          *x509.CertPool
			want           string
		}{
			{"trusted", "secret", trusted, "sent"},
			{"unknown certificate", "secret", x509.NewCertPool(), "unavailable"},
			{"wrong password", "guess", trusted, "unavailable"},
		} {
			t.Run(name+" "+c.name, func(t *testing.T) {
				t.Parallel()
				srv, url := serve(t)
				m := newMailer(t, fmt.Sprintf(url, c.password))
				m.tls.RootCAs = c.roots
				err := m.Send(t.Context(), aMail())
				if kindOf(err) != c.want {
					t.Errorf("Send: %v is %s, want %s", err, kindOf(err), c.want)
				}
				if err != nil && strings.Contains(err.Error(), c.password) {
					t.Errorf("error repeats the password: %v", err)
				}
				if sent := len(srv.Taken()); (sent == 1) != (c.want == "sent") {
					t.Errorf("mails taken: %d", sent)
				}
			})
		}
	}
}

func TestLineBreaksNeverReachTheServer(t *testing.T) {
	t.Parallel()
	srv := smtptest.New(t)
	m := newMailer(t, srv.URL())
	for name, change := range map[string]func(*Mail){
		"recipient":                  func(m *Mail) { m.To = "ada@buyer.example\r\nBcc: eve@evil.example" },
		"recipient, command":         func(m *Mail) { m.To = "ada@buyer.example>\r\nRCPT TO:<eve@evil.example" },
		"recipient, quoted":          func(m *Mail) { m.To = "\"ada\r\nBcc: eve\"@buyer.example" },
		"recipient, bare line feed":  func(m *Mail) { m.To = "ada\n@buyer.example" },
		"second recipient":           func(m *Mail) { m.To = "ada@buyer.example, eve@evil.example" },
		"recipient with a name":      func(m *Mail) { m.To = "Ada <ada@buyer.example>" },
		"no recipient":               func(m *Mail) { m.To = "" },
		"subject":                    func(m *Mail) { m.Subject = "Hi\r\nBcc: eve@evil.example" },
		"subject, bare line feed":    func(m *Mail) { m.Subject = "Hi\nBcc: eve@evil.example" },
		"subject, line separator":    func(m *Mail) { m.Subject = "Hi\u2028Bcc: eve@evil.example" },
		"Message-ID":                 func(m *Mail) { m.MessageID = "a@b>\r\nBcc: eve@evil.example" },
		"Message-ID without a right": func(m *Mail) { m.MessageID = "a@" },
		"Message-ID with a space":    func(m *Mail) { m.MessageID = "a b@c" },
		"Message-ID not in ASCII":    func(m *Mail) { m.MessageID = "ä@b" },
	} {
		mail := aMail()
		change(&mail)
		if err := m.Send(t.Context(), mail); kindOf(err) != "permanent" {
			t.Errorf("%s: %v is %s, want permanent", name, err, kindOf(err))
		}
	}
	if taken := srv.Taken(); len(taken) != 0 {
		t.Errorf("mails taken: %d, first: %s", len(taken), taken[0].Raw)
	}
}
