package notifier

import (
	"embed"
	"fmt"
	htmltemplate "html/template"
	"io"
	"strings"
	texttemplate "text/template"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/smtp"
)

//go:embed templates
var templateFiles embed.FS

// letters are the templates of each kind of mail.
var letters = map[kind]letterTemplates{
	receipt: parseLetter(receipt),
	closed:  parseLetter(closed),
	refund:  parseLetter(refund),
}

type letterTemplates struct {
	text *texttemplate.Template // defines "subject" too
	html *htmltemplate.Template
}

func parseLetter(kind kind) letterTemplates {
	text, html := string(kind)+".txt.tmpl", string(kind)+".html.tmpl"
	return letterTemplates{
		text: texttemplate.Must(texttemplate.New(text).ParseFS(templateFiles, "templates/"+text, "templates/order.txt.tmpl")),
		html: htmltemplate.Must(htmltemplate.New("layout.html.tmpl").ParseFS(templateFiles, "templates/layout.html.tmpl", "templates/"+html)),
	}
}

// letter is what the templates show, written out already.
type letter struct {
	Subject      string // for the HTML title
	OrderID      domain.OrderID
	Reference    string
	Paid, Closed bool // where the order stands
	PaidAt       string
	DueAt        string
	Lines        []letterLine
	Total        string
	Payment      string // the provider's id
	Refund       string
}

type letterLine struct{ SKU, Quantity, UnitPrice, Amount string }

func newLetter(n notice, order domain.Snapshot) letter {
	l := letter{
		OrderID:   order.ID,
		Reference: shortReference(order.ID),
		Paid:      order.Status == domain.Paid,
		Closed:    order.Status == domain.Closed,
		PaidAt:    moment(order.PaidAt),
		DueAt:     moment(order.DueAt),
		Total:     money(order.TotalAmount(), order.Currency),
		Payment:   printable(n.payment),
		Refund:    money(n.amount, n.currency),
	}
	for _, line := range order.Lines {
		l.Lines = append(l.Lines, letterLine{
			SKU:       line.SKU,
			Quantity:  count(line.Quantity),
			UnitPrice: money(line.UnitPrice, order.Currency),
			Amount:    money(line.Quantity*line.UnitPrice, order.Currency),
		})
	}
	return l
}

// compose writes the mail. An error is domain.ErrPermanent: the same templates and the
// same order fail again.
func (n *Notifier) compose(notice notice, order domain.Snapshot) (smtp.Mail, error) {
	templates, l := letters[notice.kind], newLetter(notice, order)
	subject, err := render(l, func(w io.Writer, data any) error { return templates.text.ExecuteTemplate(w, "subject", data) })
	if err != nil {
		return smtp.Mail{}, err
	}
	l.Subject = subject
	text, err := render(l, templates.text.Execute)
	if err != nil {
		return smtp.Mail{}, err
	}
	html, err := render(l, templates.html.Execute)
	if err != nil {
		return smtp.Mail{}, err
	}
	return smtp.Mail{
		To:        order.Customer.Email,
		Subject:   subject,
		MessageID: notice.messageID(n.deps.Mailer.MessageIDDomain()),
		Date:      time.Now().UTC(),
		Text:      text,
		HTML:      html,
	}, nil
}

func render(l letter, execute func(io.Writer, any) error) (string, error) {
	var out strings.Builder
	if err := execute(&out, l); err != nil {
		return "", fmt.Errorf("%w: writing the mail: %w", domain.ErrPermanent, err)
	}
	return out.String(), nil
}
