package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// EventType names a kind of message. It is the type property of the message and the
// "type" of its body, and never changes meaning.
type EventType string

// The messages of this application.
const (
	TypeOrderTimeout EventType = "order.timeout"      // a timer: look at this order now
	TypeOrderPaid    EventType = "order.paid"         // the buyer gets a receipt
	TypeOrderClosed  EventType = "order.closed"       // the buyer is told
	TypeRefundDue    EventType = "payment.refund_due" // captured money must go back
)

// BuyerEvents are the types that the notifier listens to.
var BuyerEvents = []EventType{TypeOrderPaid, TypeOrderClosed, TypeRefundDue}

// EventVersion is the version of every contract below. A release reads its own
// version only; an added optional field does not change it, because unknown fields
// are ignored and missing optional ones are fine.
const EventVersion = 1

// Event is a fact about an order, recorded with the decision that made it.
type Event interface {
	Type() EventType
	Order() OrderID
}

// OrderTimeout says "look at this order now". DueAt is what the deadline was when
// the timer was made; only the order itself decides.
type OrderTimeout struct {
	OrderID OrderID   `json:"order_id"`
	DueAt   time.Time `json:"due_at,omitzero"` // optional, for people who read messages
}

// OrderPaid says that a pending order was paid.
type OrderPaid struct {
	OrderID   OrderID   `json:"order_id"`
	PaymentID string    `json:"payment_id"`
	PaidAt    time.Time `json:"paid_at,omitzero"`
}

// OrderClosed says that an unpaid order was closed and its stock given back.
type OrderClosed struct {
	OrderID  OrderID   `json:"order_id"`
	ClosedAt time.Time `json:"closed_at,omitzero"`
	ClosedBy string    `json:"closed_by,omitempty"`
}

// RefundDue says that captured money must go back. There is one for a payment ID.
// Amount and Currency are required: a refund without them would be one of nothing.
type RefundDue struct {
	OrderID   OrderID      `json:"order_id"`
	PaymentID string       `json:"payment_id"`
	Amount    int64        `json:"amount"` // minor units
	Currency  Currency     `json:"currency"`
	Reason    RefundReason `json:"reason,omitempty"`
}

// Type implements Event.
func (OrderTimeout) Type() EventType { return TypeOrderTimeout }

// Type implements Event.
func (OrderPaid) Type() EventType { return TypeOrderPaid }

// Type implements Event.
func (OrderClosed) Type() EventType { return TypeOrderClosed }

// Type implements Event.
func (RefundDue) Type() EventType { return TypeRefundDue }

// Order implements Event.
func (e OrderTimeout) Order() OrderID { return e.OrderID }

// Order implements Event.
func (e OrderPaid) Order() OrderID { return e.OrderID }

// Order implements Event.
func (e OrderClosed) Order() OrderID { return e.OrderID }

// Order implements Event.
func (e RefundDue) Order() OrderID { return e.OrderID }

// envelope is what every body begins with.
type envelope struct {
	Type    EventType `json:"type"`
	Version int       `json:"version"`
}

// EncodeEvent writes an event's body: one flat JSON object with type and version.
func EncodeEvent(e Event) ([]byte, error) {
	head, err := json.Marshal(envelope{Type: e.Type(), Version: EventVersion})
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return joinObjects(head, body), nil
}

// joinObjects joins two non-empty JSON objects into one.
func joinObjects(a, b []byte) []byte {
	return append(append(bytes.TrimSuffix(a, []byte("}")), ','), b[1:]...)
}

// DecodeEvent reads a body. It returns an error that is ErrMalformed for a body that
// breaks the contract and an UnsupportedEventError for a type or version that this
// release does not know; both are permanent.
func DecodeEvent(body []byte) (Event, error) {
	head, err := readHead(body)
	if err != nil {
		return nil, malformed("%w", err)
	}
	if head.Version != EventVersion {
		return nil, &UnsupportedEventError{Type: clip(string(head.Type), 64), Version: head.Version}
	}
	switch head.Type {
	case TypeOrderTimeout:
		return decodeAs[OrderTimeout](body)
	case TypeOrderPaid:
		return decodeAs[OrderPaid](body)
	case TypeOrderClosed:
		return decodeAs[OrderClosed](body)
	case TypeRefundDue:
		return decodeRefund(body)
	default:
		return nil, &UnsupportedEventError{Type: clip(string(head.Type), 64), Version: head.Version}
	}
}

func decodeAs[E Event](body []byte) (Event, error) {
	var e E
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, malformed("%w", err)
	}
	if _, err := ParseOrderID(string(e.Order())); err != nil {
		return nil, malformed("%w", err)
	}
	if p, ok := any(e).(interface{ payment() string }); ok && p.payment() == "" {
		return nil, malformed("payment_id is required")
	}
	return e, nil
}

// decodeRefund tells an amount of 0 from none.
func decodeRefund(body []byte) (Event, error) {
	event, err := decodeAs[RefundDue](body)
	if err != nil {
		return nil, err
	}
	var required struct {
		Amount   *int64  `json:"amount"`
		Currency *string `json:"currency"`
	}
	if err := json.Unmarshal(body, &required); err != nil {
		return nil, malformed("%w", err)
	}
	if required.Amount == nil || required.Currency == nil {
		return nil, malformed("amount and currency are required")
	}
	if *required.Amount < 0 {
		return nil, malformed("%w", &FieldError{Field: "amount", Got: *required.Amount, Allowed: "0 or more minor units"})
	}
	if _, err := ParseCurrency(*required.Currency); err != nil {
		return nil, malformed("%w", err)
	}
	return event, nil
}

func (e OrderPaid) payment() string { return e.PaymentID }
func (e RefundDue) payment() string { return e.PaymentID }

// readHead reads what every body begins with. It refuses what encoding/json would let
// pass or repair: invalid UTF-8, keys that stand twice, and anything that is not one
// object.
func readHead(body []byte) (head envelope, err error) {
	if !utf8.Valid(body) {
		return head, errors.New("body is not valid UTF-8")
	}
	if !json.Valid(body) { // also bounds the nesting
		return head, errors.New("body is not valid JSON")
	}
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); trimmed[0] != '{' {
		return head, errors.New("body is not a JSON object")
	}
	required := map[string]any{"TYPE": &head.Type, "VERSION": &head.Version}
	seen := make(map[string]bool, 8)
	for key, value := range members(body) {
		name, err := unquote(key)
		if err != nil {
			return head, err
		}
		folded := foldKey(name)
		if seen[folded] {
			return head, fmt.Errorf("key %q stands twice", clip(name, 64))
		}
		seen[folded] = true
		if field := required[folded]; field != nil && !bytes.Equal(value, []byte("null")) {
			if err := json.Unmarshal(value, field); err != nil {
				return head, fmt.Errorf("%s: %w", name, err)
			}
			delete(required, folded)
		}
	}
	if len(required) > 0 {
		return head, errors.New("type and version are required")
	}
	return head, nil
}

// members yields the keys of a valid JSON object with their values, both as they are
// written, and nothing of the objects in it.
func members(body []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		at := bytes.IndexByte(body, '{') + 1
		for {
			begin := at + bytes.IndexAny(body[at:], `"}`) // before it only space and a comma
			if body[begin] == '}' {
				return
			}
			end := stringEnd(body, begin)
			key := body[begin:end]
			at = end + bytes.IndexByte(body[end:], ':') + 1
			end = valueEnd(body, at)
			if !yield(key, bytes.TrimSpace(body[at:end])) {
				return
			}
			at = end
		}
	}
}

// stringEnd returns where the string ends that begins at a quote.
func stringEnd(body []byte, at int) int {
	for at++; body[at] != '"'; at++ {
		if body[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// valueEnd returns where the comma or the bracket behind a member's value stands.
func valueEnd(body []byte, at int) int {
	for depth := 0; ; at++ {
		switch body[at] {
		case '"':
			at = stringEnd(body, at) - 1
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				return at
			}
			if body[at] != ',' {
				depth--
			}
		}
	}
}

func unquote(text []byte) (string, error) {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1]), nil
	}
	var s string
	err := json.Unmarshal(text, &s)
	return s, err
}

// foldKey maps keys that encoding/json takes for the same one to the same text: it
// ignores case as Unicode folds it, where a long s is an s too.
func foldKey(name string) string {
	if ascii(name) {
		return strings.ToUpper(name) // what the loop below comes to
	}
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, name)
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

// orderField finds the order's id in a body that need not be valid.
var orderField = regexp.MustCompile(`"order_id"\s*:\s*"([0-9a-fA-F-]{36})"`)

// OrderIn returns the order that a body names, valid or not, and nothing when it names none.
func OrderIn(body []byte) OrderID {
	if event, err := DecodeEvent(body); err == nil {
		return event.Order()
	}
	if m := orderField.FindSubmatch(body); m != nil {
		if id, err := ParseOrderID(string(m[1])); err == nil {
			return id
		}
	}
	return ""
}
