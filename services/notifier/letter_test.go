package notifier

import (
	"html"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/smtp"
)

const someOrder = domain.OrderID("0190f5fe-7c00-7a00-8000-01233f9a21bc")

func snapshot(status domain.Status, change func(*domain.Snapshot)) domain.Snapshot {
	s := domain.Snapshot{
		ID:        someOrder,
		Status:    status,
		Customer:  domain.Customer{ID: "ada", Email: "ada@buyer.example"},
		Currency:  "EUR",
		Lines:     []domain.Line{{SKU: "tea-1", Quantity: 2, UnitPrice: 1250, Held: 2}, {SKU: "cup.blue", Quantity: 1000, UnitPrice: 123456}},
		Window:    30 * time.Minute,
		CreatedAt: time.Date(2026, 12, 1, 13, 35, 0, 0, time.UTC),
		DueAt:     time.Date(2026, 12, 1, 14, 5, 0, 0, time.UTC),
	}
	switch status {
	case domain.Paid:
		s.PaidAt = s.DueAt.Add(-time.Minute)
	case domain.Closed:
		s.ClosedAt, s.ClosedBy = s.DueAt, domain.ByTimer
	}
	if change != nil {
		change(&s)
	}
	return s
}

func compose(t *testing.T, n notice, s domain.Snapshot) smtp.Mail {
	t.Helper()
	if _, err := domain.Rehydrate(s); err != nil {
		t.Fatalf("no such order can exist: %v", err)
	}
	mail, err := (&Notifier{deps: Deps{Mailer: nowhere{}}}).compose(n, s)
	if err != nil {
		t.Fatal(err)
	}
	return mail
}

// nowhere is a mailer for tests that only look at what is written.
type nowhere struct{ Mailer }

func (nowhere) MessageIDDomain() string { return "shop.example" }

func TestLettersAsTheBuyerReadsThem(t *testing.T) {
	t.Parallel()
	const order = `
Order 0190f5fe-7c00-7a00-8000-01233f9a21bc

- 2 x tea-1: EUR 25.00 (EUR 12.50 each)
- 1,000 x cup.blue: EUR 1,234,560.00 (EUR 1,234.56 each)

Total: EUR 1,234,585.00

`
	back := notice{kind: refund, order: someOrder, payment: "pay_7", amount: 123458500, currency: "EUR"}
	for name, c := range map[string]struct {
		notice        notice
		status        domain.Status
		subject, text string
	}{
		"receipt": {notice{kind: receipt, order: someOrder, payment: "pay_7"}, domain.Paid, "Receipt for order 3F9A21BC", `Your order 3F9A21BC is paid.

Paid: EUR 1,234,585.00 on 1 December 2026, 14:04 UTC (+00:00)
Payment: pay_7
`},
		"closed": {notice{kind: closed, order: someOrder}, domain.Closed, "Order 3F9A21BC was closed, nothing was charged", `Your order 3F9A21BC was closed because no payment arrived by
1 December 2026, 14:05 UTC (+00:00). Nothing was charged.

If you still want these items, please place the order again. If you have sent
the money already, it goes back to you and you get a mail about it.
`},
		"refund, closed": {back, domain.Closed, "Your payment for order 3F9A21BC is being refunded", `Your payment of EUR 1,234,585.00 for order 3F9A21BC
arrived after the order was closed. It is being refunded in full.

Payment: pay_7
`},
		"refund, paid": {back, domain.Paid, "Your payment for order 3F9A21BC is being refunded", `Your payment of EUR 1,234,585.00 for order 3F9A21BC
arrived after the order was already paid. It is being refunded in full.

Payment: pay_7
`},
		"refund, pending": {back, domain.Pending, "Your payment for order 3F9A21BC is being refunded", `Your payment of EUR 1,234,585.00 for order 3F9A21BC
could not be used for the order. It is being refunded in full.

Payment: pay_7
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mail := compose(t, c.notice, snapshot(c.status, nil))
			if mail.Subject != c.subject {
				t.Errorf("subject %q, want %q", mail.Subject, c.subject)
			}
			if want := c.text + order; mail.Text != want {
				t.Errorf("text:\n%s\nwant:\n%s", mail.Text, want)
			}
			if mail.To != "ada@buyer.example" || mail.Date.IsZero() || mail.Date.Location() != time.UTC {
				t.Errorf("to %q at %s", mail.To, mail.Date)
			}
			checkHTML(t, mail)
		})
	}
}

var (
	remote   = regexp.MustCompile(`(?i)https?:|src=|href=|url\(|@import|<script`)
	tag      = regexp.MustCompile(`(?s)<(style|title)>.*?</(style|title)>|<[^>]*>`)
	blank    = regexp.MustCompile(`\s+`)
	blessing = regexp.MustCompile(`(?i)success|thank|congrat`)
)

// checkHTML makes sure that the HTML says what the text says, and needs nothing else.
func checkHTML(t *testing.T, mail smtp.Mail) {
	t.Helper()
	if !strings.Contains(mail.HTML, `<html lang="en">`) || !strings.Contains(mail.HTML, "<title>"+mail.Subject+"</title>") {
		t.Errorf("HTML without language or title:\n%s", mail.HTML)
	}
	if found := remote.FindString(mail.HTML); found != "" {
		t.Errorf("HTML refers to something outside: %s", found)
	}
	if found := blessing.FindString(mail.Text + mail.HTML); found != "" && !strings.HasPrefix(mail.Subject, "Receipt") {
		t.Errorf("%q in a mail about something else: %s", found, mail.Subject)
	}
	shown := blank.ReplaceAllString(html.UnescapeString(tag.ReplaceAllString(mail.HTML, " ")), " ")
	for _, fact := range regexp.MustCompile(`[A-Z]{3} [\d,.]*\d|\d+ \w+ \d{4}, \d\d:\d\d UTC \(\+00:00\)|tea-1|cup\.blue|pay_\w+|`+string(someOrder)).FindAllString(mail.Text, -1) {
		if !strings.Contains(shown, fact) {
			t.Errorf("HTML does not say %q:\n%s", fact, shown)
		}
	}
}

func TestAmountsHaveTheirCurrencysDecimals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor    int64
		currency domain.Currency
		want     string
	}{
		{1250, "EUR", "EUR 12.50"},
		{5, "USD", "USD 0.05"},
		{0, "USD", "USD 0.00"},
		{123456789, "USD", "USD 1,234,567.89"},
		{1250, "JPY", "JPY 1,250"},
		{0, "JPY", "JPY 0"},
		{1250, "KWD", "KWD 1.250"},
		{1234567005, "KWD", "KWD 1,234,567.005"},
		{12500, "CLF", "CLF 1.2500"},
		{1250, "RSD", "RSD 12.50"}, // has hundredths, though hardly anybody shows them
		{1250, "UGX", "UGX 1,250"},
		{1250, "IQD", "IQD 1.250"},
		{1250, "ZZZ", "ZZZ 12.50"},
		{math.MaxInt64, "EUR", "EUR 92,233,720,368,547,758.07"},
		{math.MaxInt64, "JPY", "JPY 9,223,372,036,854,775,807"},
	} {
		if got := money(c.minor, c.currency); got != c.want {
			t.Errorf("money(%d, %s) = %q, want %q", c.minor, c.currency, got, c.want)
		}
		mail := compose(t, notice{kind: refund, order: someOrder, payment: "p", amount: c.minor, currency: c.currency}, snapshot(domain.Closed, nil))
		if !strings.Contains(mail.Text, "Your payment of "+c.want+" for") {
			t.Errorf("refund of %d %s: %s", c.minor, c.currency, mail.Text)
		}
	}
}

// It is not parallel: it moves the process to other zones.
func TestTimesAreTheSameWhereverTheProcessRuns(t *testing.T) {
	here := time.Local
	t.Cleanup(func() { time.Local = here })
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Los_Angeles", "Australia/Brisbane", "Asia/Kolkata"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		time.Local = zone
		for _, c := range []struct {
			utc  time.Time
			want string
		}{
			{time.Date(2026, 3, 29, 0, 59, 59, 0, time.UTC), "29 March 2026, 00:59 UTC (+00:00)"}, // Berlin moves on
			{time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), "29 March 2026, 01:00 UTC (+00:00)"},
			{time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), "25 October 2026, 00:30 UTC (+00:00)"}, // 02:30 in Berlin,
			{time.Date(2026, 10, 25, 1, 30, 0, 0, time.UTC), "25 October 2026, 01:30 UTC (+00:00)"}, // and once more
			{time.Date(2026, 3, 8, 9, 59, 0, 0, time.UTC), "8 March 2026, 09:59 UTC (+00:00)"},      // Los Angeles moves on
			{time.Date(2026, 3, 8, 10, 0, 0, 0, time.UTC), "8 March 2026, 10:00 UTC (+00:00)"},
			{time.Date(2026, 11, 1, 8, 45, 0, 0, time.UTC), "1 November 2026, 08:45 UTC (+00:00)"}, // 01:45 there,
			{time.Date(2026, 11, 1, 9, 45, 0, 0, time.UTC), "1 November 2026, 09:45 UTC (+00:00)"}, // and once more
		} {
			s := snapshot(domain.Closed, func(s *domain.Snapshot) { s.DueAt, s.ClosedAt = c.utc.Local(), c.utc.Local() })
			mail := compose(t, notice{kind: closed, order: someOrder}, s)
			if !strings.Contains(mail.Text, "no payment arrived by\n"+c.want+". ") || !strings.Contains(html.UnescapeString(mail.HTML), " arrived by "+c.want+". ") {
				t.Errorf("%s in %s is not %q: %s", c.utc, name, c.want, mail.Text)
			}
			s = snapshot(domain.Paid, func(s *domain.Snapshot) { s.PaidAt = c.utc.In(zone) })
			if mail := compose(t, notice{kind: receipt, order: someOrder, payment: "p"}, s); !strings.Contains(mail.Text, " on "+c.want+"\n") {
				t.Errorf("%s in %s is not %q: %s", c.utc, name, c.want, mail.Text)
			}
		}
	}
}

func TestTextFromOutsideStaysText(t *testing.T) {
	t.Parallel()
	n := notice{kind: refund, order: someOrder, payment: "<script>x</script>\"'&\r\nBcc: eve\u202e", amount: 1, currency: "EUR"}
	mail := compose(t, n, snapshot(domain.Closed, nil))
	if strings.Contains(mail.HTML, "<script") || !strings.Contains(mail.HTML, "Payment: &lt;script&gt;x&lt;/script&gt;&#34;&#39;&amp;\ufffd\ufffdBcc: eve\ufffd</p>") {
		t.Errorf("HTML:\n%s", mail.HTML)
	}
	if strings.Contains(mail.Text, "\nBcc:") || strings.ContainsAny(mail.Text, "\r\u202e") {
		t.Errorf("text:\n%s", mail.Text)
	}
}

func TestMessageIDIsStableAndOneForEachMail(t *testing.T) {
	t.Parallel()
	seen := map[string]notice{}
	for _, n := range []notice{
		{kind: receipt, order: someOrder, payment: "pay_1"},
		{kind: closed, order: someOrder},
		{kind: closed, order: "0190f5fe-7c00-7a00-8000-01233f9a21bd"},
		{kind: refund, order: someOrder, payment: "pay_1"},
		{kind: refund, order: someOrder, payment: "pay_2"},
		{kind: refund, order: someOrder, payment: "pay_1\r\nBcc: eve@evil.example"},
	} {
		id := n.messageID("shop.example")
		if id != n.messageID("shop.example") {
			t.Errorf("%+v has two ids", n)
		}
		if other, taken := seen[id]; taken {
			t.Errorf("%+v and %+v share %s", n, other, id)
		}
		if !regexp.MustCompile(`^[a-z0-9.-]+@shop\.example$`).MatchString(id) {
			t.Errorf("%q is not a Message-ID", id)
		}
		seen[id] = n
	}
}
