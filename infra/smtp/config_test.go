package smtp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	gomail "github.com/wneessen/go-mail"

	"example.com/ordertimeout/domain"
)

func TestURLSaysServerAndTrust(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		want server
	}{
		{"smtp://mail.example", server{host: "mail.example", port: 587, policy: gomail.TLSMandatory}},
		{"smtp://mail.example:25/", server{host: "mail.example", port: 25, policy: gomail.TLSMandatory}},
		{"smtp://mail.example:25?tls=none", server{host: "mail.example", port: 25, policy: gomail.NoTLS}},
		{"smtp://mail.example?tls=starttls", server{host: "mail.example", port: 587, policy: gomail.TLSMandatory}},
		{"smtp://mail.example?tls=opportunistic", server{host: "mail.example", port: 587, policy: gomail.TLSOpportunistic}},
		{"smtps://mail.example", server{host: "mail.example", port: 465, implicitTLS: true, policy: gomail.NoTLS}},
		{"smtps://mail.example:2465", server{host: "mail.example", port: 2465, implicitTLS: true, policy: gomail.NoTLS}},
		{"smtp://localhost:1025", server{host: "localhost", port: 1025, policy: gomail.NoTLS}},
		{"smtp://127.0.0.1:1025", server{host: "127.0.0.1", port: 1025, policy: gomail.NoTLS}},
		{"smtp://[::1]:1025", server{host: "::1", port: 1025, policy: gomail.NoTLS}},
		{"smtp://localhost?tls=starttls", server{host: "localhost", port: 587, policy: gomail.TLSMandatory}},
		{"smtp://localhost.example", server{host: "localhost.example", port: 587, policy: gomail.TLSMandatory}},
		{"smtp://shop:p%40ss%2Fword@mail.example", server{host: "mail.example", port: 587, user: "shop", password: "p@ss/word", policy: gomail.TLSMandatory}},
		{"smtps://shop:secret@mail.example", server{host: "mail.example", port: 465, user: "shop", password: "secret", implicitTLS: true, policy: gomail.NoTLS}},
		{"smtp://shop:secret@localhost", server{host: "localhost", port: 587, user: "shop", password: "secret", policy: gomail.NoTLS}},
	} {
		got, err := parseURL(c.url)
		if err != nil || got != c.want {
			t.Errorf("parseURL(%q) = %+v, %v, want %+v", c.url, got, err, c.want)
		}
	}
}

func TestBadURLNamesTheVariableAndNoPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "mail.example", "mail.example:25", "http://mail.example", "smtp://", "smtp://:25", "smtp:mail.example",
		"smtp://mail.example:0", "smtp://mail.example:65536", "smtp://mail.example:port", "smtp://mail.example:25/path", "smtp://mail.example#x",
		"smtp://mail.example?tls=maybe", "smtp://mail.example?tls=", "smtp://mail.example?tls=none&tls=starttls", "smtp://mail.example?timeout=3",
		"smtp://mail.example?tls=none&x=1", "smtp://mail.example?%zz", "smtps://mail.example?tls=none", "smtps://mail.example?tls=starttls",
		"smtp://shop@mail.example", "smtp://:hunter2@mail.example", "smtp://shop:hunter2@mail.example?tls=none",
		"smtp://shop:hunter2/x@mail.example", "smtp://shop:hunter2%@mail.example", "smtp://shop:hunter2@mail.example:port",
		"smtp://mail.example%0d%0aQUIT", "smtp://mail.example\r\n",
	} {
		err := Config{URL: url, From: "shop@shop.example"}.Validate()
		var field *domain.FieldError
		if !errors.As(err, &field) || field.Field != "SMTP_URL" {
			t.Errorf("Validate of %q: %v, want a FieldError for SMTP_URL", url, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Validate of %q repeats the password: %v", url, err)
		}
	}
}

func TestFromIsOneAddress(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"shop@shop.example", "Shop <shop@shop.example>", `"Läden, alle" <shop@shop.example>`, "=?utf-8?q?L=C3=A4den?= <shop@shop.example>"} {
		c := Config{URL: "smtp://localhost", From: from}
		if err := c.Validate(); err != nil {
			t.Errorf("MAIL_FROM %q: %v", from, err)
			continue
		}
		m, err := New(c)
		if err != nil || m.MessageIDDomain() != "shop.example" {
			t.Errorf("MAIL_FROM %q: domain %q, %v", from, m.MessageIDDomain(), err)
		}
	}
	for _, from := range []string{
		"", "shop", "@shop.example", "shop@", "a@shop.example, b@shop.example", "shop@läden.example", "läden@shop.example",
		"Shop\r\nBcc: all@shop.example <shop@shop.example>", "=?utf-8?q?Shop=0D=0ABcc?= <shop@shop.example>", "=?utf-8?b?U2hvcA0KQmNjOiBh?= <shop@shop.example>", "\"Shop\tx\" <shop@shop.example>",
		"\"sh\x00op\"@shop.example",
	} {
		err := Config{URL: "smtp://localhost", From: from}.Validate()
		var field *domain.FieldError
		if !errors.As(err, &field) || field.Field != "MAIL_FROM" || fmt.Sprint(field.Got) != from {
			t.Errorf("MAIL_FROM %q: %v, want a FieldError with the value", from, err)
		}
	}
}
