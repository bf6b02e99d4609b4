package domain_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/ordertimeout/domain"
)

const someID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"

func TestEventsSurviveTheWire(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 9, 30, 0, 123_000, time.UTC)
	for _, event := range []domain.Event{
		domain.OrderTimeout{OrderID: someID, DueAt: at},
		domain.OrderTimeout{OrderID: someID},
		domain.OrderPaid{OrderID: someID, PaymentID: "p", PaidAt: at},
		domain.OrderClosed{OrderID: someID, ClosedAt: at, ClosedBy: "timer"},
		domain.RefundDue{OrderID: someID, PaymentID: "p", Amount: 1 << 60, Currency: "EUR", Reason: domain.RefundOrderClosed},
		domain.RefundDue{OrderID: someID, PaymentID: "p", Amount: 0, Currency: "EUR"}, // a free order that was paid twice
	} {
		body, err := domain.EncodeEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		back, err := domain.DecodeEvent(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(event, back); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

// Other releases read these bodies: a renamed field is a broken contract even where
// both ends of this release agree on it.
func TestEventBodiesKeepTheirNames(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 9, 30, 0, 0, time.UTC)
	const id = `"version":1,"order_id":"` + someID + `"`
	for want, event := range map[string]domain.Event{
		`{"type":"order.timeout",` + id + `,"due_at":"2026-12-01T09:30:00Z"}`:                                           domain.OrderTimeout{OrderID: someID, DueAt: at},
		`{"type":"order.paid",` + id + `,"payment_id":"p","paid_at":"2026-12-01T09:30:00Z"}`:                            domain.OrderPaid{OrderID: someID, PaymentID: "p", PaidAt: at},
		`{"type":"order.closed",` + id + `,"closed_at":"2026-12-01T09:30:00Z","closed_by":"sweep"}`:                     domain.OrderClosed{OrderID: someID, ClosedAt: at, ClosedBy: "sweep"},
		`{"type":"payment.refund_due",` + id + `,"payment_id":"p","amount":5,"currency":"EUR","reason":"already_paid"}`: domain.RefundDue{OrderID: someID, PaymentID: "p", Amount: 5, Currency: "EUR", Reason: domain.RefundAlreadyPaid},
	} {
		if got, err := domain.EncodeEvent(event); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	for _, head := range []string{`{"type":"` + strings.Repeat("e", 1<<20) + `",` + id + `}`, `{"type":"` + strings.Repeat("e", 1<<20) + `","version":2}`} {
		_, err := domain.DecodeEvent([]byte(head))
		var unsupported *domain.UnsupportedEventError
		if !errors.As(err, &unsupported) || unsupported.Type != strings.Repeat("e", 64)+"…" || !errors.Is(err, domain.ErrPermanent) {
			t.Errorf("an unknown type: %.200v", err)
		}
	}
}

func TestEventsOfOtherReleases(t *testing.T) {
	t.Parallel()
	timer := func(fields string) string {
		return `{"type":"order.timeout","version":1,"order_id":"` + someID + `"` + fields + `}`
	}
	for name, body := range map[string]string{
		"a new field":           timer(`,"priority":{"deep":[1,2]}`),
		"no optional field":     timer(``),
		"an unknown enum":       `{"type":"order.closed","version":1,"order_id":"` + someID + `","closed_by":"moon"}`,
		"an id in upper case":   strings.ReplaceAll(timer(``), someID, strings.ToUpper(someID)),
		"white space around it": " \n" + timer(``) + "\n",
		"a deep new field":      timer(`,"new":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999)),
		"an unknown reason":     `{"type":"payment.refund_due","version":1,"order_id":"` + someID + `","payment_id":"p","amount":1,"currency":"EUR","reason":"moon"}`,
	} {
		event, err := domain.DecodeEvent([]byte(body))
		if err != nil || event.Order() != someID {
			t.Errorf("%s: %+v, %v", name, event, err)
		}
	}
	for version, want := range map[string]error{"2": domain.ErrPermanent, "99": domain.ErrPermanent, "0": domain.ErrPermanent, "-1": domain.ErrPermanent} {
		_, err := domain.DecodeEvent([]byte(strings.Replace(timer(``), `"version":1`, `"version":`+version, 1)))
		var unsupported *domain.UnsupportedEventError
		if !errors.Is(err, want) || !errors.As(err, &unsupported) || fmt.Sprint(unsupported.Version) != version {
			t.Errorf("version %s: %v", version, err)
		}
	}
}

func malformedBodies() []string {
	field := func(fields string) string { return `{"type":"order.timeout","version":1,` + fields + `}` }
	id := `"order_id":"` + someID + `"`
	refund := func(fields string) string {
		return `{"type":"payment.refund_due","version":1,` + id + `,"payment_id":"p"` + fields + `}`
	}
	return []string{
		"", "{", "null", "[]", "17", `"text"`, "{}", "{}{}", "\xff", `{"type":"order.timeout` + "\xff" + `","version":1,` + id + `}`,
		"\ufeff{}", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
		field(id + `,"new":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)), strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000),
		field(`"order_id":17`), field(`"order_id":""`), field(`"order_id":" "`), field(`"order_id":null`), field(`"x":1`),
		field(`"order_id":"` + strings.Repeat("x", 1<<20) + `"`),
		field(id + `,` + id), field(id + `,"ORDER_ID":"` + someID + `"`), field(id + `,"Version":1`), field(id + `,"verſion":1`),
		field(id + `,"due_at":"yesterday"`),
		`{"type":"order.timeout",` + id + `}`, `{"version":1,` + id + `}`, `{"type":null,"version":1,` + id + `}`,
		`{"type":"order.timeout","version":"1",` + id + `}`, `{"type":"order.timeout","version":1.5,` + id + `}`,
		`{"type":"order.timeout","version":1e99,` + id + `}`, `{"type":"order.timeout","version":99999999999999999999,` + id + `}`, `{"type":7,"version":1,` + id + `}`,
		`{"type":"payment.refund_due","version":1,` + id + `}`, refund(``), refund(`,"amount":5`), refund(`,"currency":"EUR"`),
		refund(`,"amount":null,"currency":"EUR"`), refund(`,"amount":5,"currency":null`), refund(`,"amount":-1,"currency":"EUR"`),
		refund(`,"amount":5,"currency":""`), refund(`,"amount":5,"currency":"euro"`), refund(`,"amount":"5","currency":"EUR"`),
		`{"type":"order.paid","version":1,` + id + `,"payment_id":""}`,
	}
}

// What breaks the contract is malformed, which is permanent, and its error is short
// enough to be a header.
func TestMalformedEvents(t *testing.T) {
	t.Parallel()
	for _, body := range malformedBodies() {
		event, err := domain.DecodeEvent([]byte(body))
		if !errors.Is(err, domain.ErrMalformed) || !errors.Is(err, domain.ErrPermanent) {
			t.Errorf("%.80q: %+v, %v", body, event, err)
			continue
		}
		if len(err.Error()) > 500 {
			t.Errorf("%.80q: the error has %d bytes", body, len(err.Error()))
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, body := range malformedBodies() {
		f.Add([]byte(body))
	}
	f.Add([]byte(`{"type":"order.timeout","version":1,"order_id":"` + someID + `","due_at":"2026-12-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		event, err := domain.DecodeEvent(body)
		if err != nil {
			if !errors.Is(err, domain.ErrPermanent) {
				t.Fatalf("not permanent: %v", err)
			}
			return
		}
		if id, err := domain.ParseOrderID(string(event.Order())); err != nil || id != event.Order() {
			t.Fatalf("order id %q: %v", event.Order(), err)
		}
		again, err := domain.EncodeEvent(event)
		if err != nil {
			return // a time beyond RFC 3339
		}
		if back, err := domain.DecodeEvent(again); err != nil || !cmp.Equal(event, back) {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
