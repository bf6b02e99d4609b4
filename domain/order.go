package domain

import (
	"fmt"
	"math"
	"net/mail"
	"slices"
	"strings"
	"time"
)

// Status is where an order stands. The only ways are pending to paid and pending
// to closed; both are final.
type Status struct{ name string }

// The states of an order.
var (
	Pending = Status{"pending"}
	Paid    = Status{"paid"}
	Closed  = Status{"closed"}
)

func (s Status) String() string { return s.name }

// ParseStatus returns a FieldError for anything but pending, paid and closed.
func ParseStatus(text string) (Status, error) {
	for _, s := range []Status{Pending, Paid, Closed} {
		if s.name == text {
			return s, nil
		}
	}
	return Status{}, &FieldError{Field: "status", Got: text, Allowed: "pending, paid or closed"}
}

// ClosedBy tells which path closed an order.
type ClosedBy struct{ name string }

// The paths that close an order.
var (
	ByTimer  = ClosedBy{"timer"}  // its timer came through the broker
	BySweep  = ClosedBy{"sweep"}  // its timer was lost and the sweep found it
	ByReplay = ClosedBy{"replay"} // its timer was parked and an operator replayed it
)

func (c ClosedBy) String() string { return c.name }

// ParseClosedBy returns a FieldError for anything but timer, sweep and replay.
func ParseClosedBy(text string) (ClosedBy, error) {
	for _, c := range []ClosedBy{ByTimer, BySweep, ByReplay} {
		if c.name == text {
			return c, nil
		}
	}
	return ClosedBy{}, &FieldError{Field: "closed_by", Got: text, Allowed: "timer, sweep or replay"}
}

// OrderID is a UUID in its canonical lower-case text form.
type OrderID string

// ParseOrderID returns a FieldError for anything that is not a UUID.
func ParseOrderID(text string) (OrderID, error) {
	if !isUUID(text) {
		return "", &FieldError{Field: "order_id", Got: clip(text, 64), Allowed: "a UUID"}
	}
	return OrderID(strings.ToLower(text)), nil
}

// isUUID checks the form of 36 characters. It is asked several times for each message.
func isUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i := range len(text) {
		c := text[i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F'):
			return false
		}
	}
	return true
}

// UnmarshalText makes every decoded id a checked one.
func (id *OrderID) UnmarshalText(text []byte) error {
	parsed, err := ParseOrderID(string(text))
	*id = parsed
	return err
}

// Customer is who placed the order and is told about it.
type Customer struct {
	ID    string
	Email string // one address without a display name
}

// Line is one position of an order.
type Line struct {
	SKU       string
	Quantity  int64
	UnitPrice int64 // minor units of the order's currency
	Held      int64 // units taken from stock for it: Quantity, or 0 where stock is unlimited
}

// Limits of one order. They keep a single order from locking a whole catalogue,
// and keep every amount far away from the end of int64.
const (
	MaxLines     = 100
	MaxQuantity  = 1_000_000
	MaxUnitPrice = 1_000_000_000_000
)

// Order is one order with its rules. Build it with Place or Rehydrate; a decision
// that is refused changes nothing.
type Order struct {
	s       Snapshot
	changes Changes
}

// Snapshot is the whole state of an order, to be stored, shown and rehydrated.
type Snapshot struct {
	ID        OrderID
	Status    Status
	Customer  Customer
	Currency  Currency
	Lines     []Line
	Window    time.Duration // the payment window chosen when it was placed
	DueAt     time.Time
	CreatedAt time.Time
	PaidAt    time.Time // zero unless paid
	ClosedAt  time.Time // zero unless closed
	ClosedBy  ClosedBy  // zero unless closed
}

// TotalAmount is the sum of all lines in minor units. Limits keep it from overflowing.
func (s Snapshot) TotalAmount() int64 {
	var total int64
	for _, l := range s.Lines {
		total += l.Quantity * l.UnitPrice
	}
	return total
}

// Changes is what decisions recorded since the order was placed or rehydrated.
// The store writes all of it in the transaction that locked the order.
type Changes struct {
	Order  bool // the order's own state changed
	Stock  []StockMove
	Events []Event
}

// Rehydrate returns an order from its stored state. It refuses a state that no
// sequence of decisions could have produced.
func Rehydrate(s Snapshot) (*Order, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("order %s: %w", s.ID, err)
	}
	s.Lines = slices.Clone(s.Lines)
	return &Order{s: s}, nil
}

// Snapshot returns a copy of the order's state.
func (o *Order) Snapshot() Snapshot {
	s := o.s
	s.Lines = slices.Clone(s.Lines)
	return s
}

// Settled returns the order without its changes, for when they are stored.
func (o *Order) Settled() *Order { return &Order{s: o.Snapshot()} }

// Changes returns what was decided since Place or Rehydrate.
func (o *Order) Changes() Changes { return o.changes }

// ID returns the order's id.
func (o *Order) ID() OrderID { return o.s.ID }

// Status returns where the order stands.
func (o *Order) Status() Status { return o.s.Status }

// DueAt returns the deadline for its payment.
func (o *Order) DueAt() time.Time { return o.s.DueAt }

func (s Snapshot) validate() error {
	if err := s.validateInput(); err != nil {
		return err
	}
	if s.CreatedAt.IsZero() {
		return &FieldError{Field: "created_at", Got: "no time", Allowed: "when the order was placed"}
	}
	if s.DueAt.IsZero() {
		return &FieldError{Field: "due_at", Got: "no time", Allowed: "the deadline for its payment"}
	}
	paid, closed := !s.PaidAt.IsZero(), !s.ClosedAt.IsZero()
	switch s.Status {
	case Pending:
		if paid || closed || s.ClosedBy != (ClosedBy{}) {
			return &FieldError{Field: "status", Got: "pending with paid_at, closed_at or closed_by", Allowed: "none of them"}
		}
	case Paid:
		if !paid || closed || s.ClosedBy != (ClosedBy{}) {
			return &FieldError{Field: "status", Got: "paid", Allowed: "with paid_at, without closed_at and closed_by"}
		}
	case Closed:
		if paid || !closed || s.ClosedBy == (ClosedBy{}) {
			return &FieldError{Field: "status", Got: "closed", Allowed: "with closed_at and closed_by, without paid_at"}
		}
		if s.ClosedAt.Before(s.DueAt) {
			return &FieldError{Field: "closed_at", Got: s.ClosedAt, Allowed: "not before due_at"}
		}
	default:
		return &FieldError{Field: "status", Got: s.Status.name, Allowed: "pending, paid or closed"}
	}
	for i, l := range s.Lines {
		if l.Held != 0 && l.Held != l.Quantity {
			return &FieldError{Field: fmt.Sprintf("lines[%d].held", i), Got: l.Held, Allowed: "0 or the quantity"}
		}
	}
	return nil
}

// validateInput checks what a buyer chooses; validate adds what follows from decisions.
func (s Snapshot) validateInput() error {
	if _, err := ParseOrderID(string(s.ID)); err != nil {
		return err
	}
	if err := s.Customer.validate(); err != nil {
		return err
	}
	if _, err := ParseCurrency(string(s.Currency)); err != nil {
		return err
	}
	if s.Window <= 0 {
		return &FieldError{Field: "payment_window", Got: s.Window.String(), Allowed: "a positive duration"}
	}
	return validateLines(s.Lines)
}

func (c Customer) validate() error {
	if c.ID == "" || len(c.ID) > 200 {
		return &FieldError{Field: "customer.id", Got: clip(c.ID, 64), Allowed: "1 to 200 bytes"}
	}
	addr, err := mail.ParseAddress(c.Email)
	if err != nil || addr.Address != c.Email || len(c.Email) > 254 {
		return &FieldError{Field: "customer.email", Got: clip(c.Email, 64), Allowed: "one e-mail address without a name, 254 bytes at most"}
	}
	return nil
}

func validateLines(lines []Line) error {
	if len(lines) == 0 || len(lines) > MaxLines {
		return &FieldError{Field: "lines", Got: len(lines), Allowed: fmt.Sprintf("1 to %d lines", MaxLines)}
	}
	seen := make(map[string]bool, len(lines))
	var total int64
	for i, l := range lines {
		field := func(name string) string { return fmt.Sprintf("lines[%d].%s", i, name) }
		if err := ValidateSKU(field("sku"), l.SKU); err != nil {
			return err
		}
		if seen[l.SKU] {
			return &FieldError{Field: field("sku"), Got: l.SKU, Allowed: "each sku once; put the sum into quantity"}
		}
		seen[l.SKU] = true
		if l.Quantity < 1 || l.Quantity > MaxQuantity {
			return &FieldError{Field: field("quantity"), Got: l.Quantity, Allowed: fmt.Sprintf("1 to %d", MaxQuantity)}
		}
		if l.UnitPrice < 0 || l.UnitPrice > MaxUnitPrice {
			return &FieldError{Field: field("unit_price"), Got: l.UnitPrice, Allowed: fmt.Sprintf("0 to %d minor units", int64(MaxUnitPrice))}
		}
		amount := l.Quantity * l.UnitPrice // at most 1e18: fits
		if total > math.MaxInt64-amount {
			return &FieldError{Field: "lines", Got: "a total beyond 64 bits", Allowed: fmt.Sprintf("a total up to %d minor units", int64(math.MaxInt64))}
		}
		total += amount
	}
	return nil
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
