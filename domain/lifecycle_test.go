package domain_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.com/ordertimeout/domain"
)

// shop is a model of everything around the decisions: stock as the store keeps it, and
// what was seen of each order so far.
type shop struct {
	now      time.Time
	stock    map[string]*counters
	initial  map[string]int64
	orders   []*history
	payments map[string]bool
}

type counters struct{ available, held, sold int64 }

type history struct {
	order    *domain.Order
	released int64 // units that came back
	refunds  map[string]int
	final    *domain.Snapshot // once paid or closed
}

const unlimited = "unlimited"

// Whatever buyers, timers, sweeps, replays and operators do, repeated and in any order,
// no unit of stock is made or lost, nothing is decided twice and nothing too early.
func TestNoSequenceOfDecisionsBreaksAnInvariant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := &shop{
			now:      time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), // a night in which clocks change
			stock:    map[string]*counters{"a": {available: 7}, "b": {available: 3}, unlimited: {}},
			initial:  map[string]int64{"a": 7, "b": 3},
			payments: map[string]bool{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"place":  s.place,
			"pay":    s.pay,
			"extend": s.extend,
			"close":  s.close,
			"time":   s.pass,
			"":       s.check,
		})
	})
}

// pass lets some time pass, or just as much that an order is due now or in an instant.
func (s *shop) pass(t *rapid.T) {
	to := s.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
	if len(s.orders) > 0 && rapid.Bool().Draw(t, "to a deadline") {
		to = s.pick(t).order.DueAt().Add(-time.Duration(rapid.IntRange(0, 1).Draw(t, "short of it")))
	}
	if to.After(s.now) {
		s.now = to
	}
}

func (s *shop) place(t *rapid.T) {
	var lines []domain.Line
	for _, sku := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", unlimited}), 1, 3, rapid.ID[string]).Draw(t, "skus") {
		lines = append(lines, domain.Line{SKU: sku, Quantity: rapid.Int64Range(1, 3).Draw(t, "quantity"), UnitPrice: rapid.Int64Range(0, 500).Draw(t, "price"), Held: 99})
	}
	stock := map[string]domain.Stock{}
	var missing *domain.SoldOutError
	for sku, c := range s.stock {
		stock[sku] = domain.Stock{SKU: sku, Available: c.available, Unlimited: sku == unlimited}
	}
	for _, l := range lines {
		if available := s.stock[l.SKU].available; missing == nil && l.SKU != unlimited && l.Quantity > available {
			missing = &domain.SoldOutError{SKU: l.SKU, Requested: l.Quantity, Available: available}
		}
	}
	order, err := domain.Place(domain.Placement{
		ID:       domain.OrderID(fmt.Sprintf("00000000-0000-7000-8000-%012d", len(s.orders))),
		Customer: domain.Customer{ID: "c", Email: "buyer@example.com"},
		Currency: "EUR", Lines: lines, Window: time.Duration(rapid.IntRange(1, 600).Draw(t, "window")) * time.Second,
	}, stock, s.now)
	if missing != nil {
		if soldOut, ok := errors.AsType[*domain.SoldOutError](err); !ok || *soldOut != *missing || order != nil {
			t.Fatalf("got %v, want %v", err, missing)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	snapshot := order.Snapshot()
	if !snapshot.CreatedAt.Equal(s.now) || !snapshot.DueAt.Equal(s.now.Add(snapshot.Window)) {
		t.Fatalf("placed at %s and due at %s", snapshot.CreatedAt, snapshot.DueAt)
	}
	for i, l := range lines {
		l.Held = l.Quantity
		if l.SKU == unlimited {
			l.Held = 0
		}
		if snapshot.Lines[i] != l {
			t.Fatalf("got line %+v, want %+v", snapshot.Lines[i], l)
		}
	}
	h := &history{order: order, refunds: map[string]int{}}
	h.recorded(t, domain.OrderTimeout{OrderID: order.ID(), DueAt: order.DueAt()})
	s.orders = append(s.orders, h)
	s.store(t, h, domain.Snapshot{})
}

func (s *shop) pay(t *rapid.T) {
	h := s.pick(t)
	snapshot := h.order.Snapshot()
	p := domain.Payment{
		ID:      fmt.Sprintf("%s-%d", h.order.ID(), rapid.IntRange(0, 2).Draw(t, "payment")),
		OrderID: h.order.ID(), Amount: snapshot.TotalAmount(), Currency: "EUR",
	}
	switch rapid.IntRange(0, 5).Draw(t, "what is wrong") {
	case 1:
		p.Amount++
	case 2:
		p.Amount = max(0, p.Amount-1)
	case 3:
		p.Currency = "USD"
	}
	fits := p.Amount == snapshot.TotalAmount() && p.Currency == snapshot.Currency
	if s.payments[p.ID] {
		return // the store knows it and changes nothing
	}
	refund, err := h.order.Pay(p, s.now)
	switch {
	case snapshot.Status == domain.Pending && !fits:
		want := domain.AmountMismatchError{Got: p.Amount, GotCurrency: p.Currency, Want: snapshot.TotalAmount(), WantCurrency: snapshot.Currency}
		if got, ok := errors.AsType[*domain.AmountMismatchError](err); !ok || *got != want {
			t.Fatalf("wrong amount: %v", err)
		}
		s.refused(t, h, snapshot)
		return
	case err != nil:
		t.Fatal(err)
	case refund != owed[snapshot.Status]:
		t.Fatalf("%s order: refund %q", snapshot.Status, refund)
	}
	s.payments[p.ID] = true
	if refund == domain.NoRefund {
		h.recorded(t, domain.OrderPaid{OrderID: p.OrderID, PaymentID: p.ID, PaidAt: s.now})
	} else {
		h.recorded(t, domain.RefundDue{OrderID: p.OrderID, PaymentID: p.ID, Amount: p.Amount, Currency: p.Currency, Reason: refund})
	}
	s.store(t, h, snapshot)
}

// owed is why money goes back by where the order stood when it came.
var owed = map[domain.Status]domain.RefundReason{
	domain.Pending: domain.NoRefund, domain.Paid: domain.RefundAlreadyPaid, domain.Closed: domain.RefundOrderClosed,
}

func (s *shop) extend(t *rapid.T) {
	h := s.pick(t)
	before := h.order.Snapshot()
	dueAt := s.now.Add(time.Duration(rapid.IntRange(-100, 1000).Draw(t, "seconds")) * time.Second)
	if rapid.IntRange(0, 9).Draw(t, "far") == 0 {
		dueAt = s.now.Add(domain.MaxExtension + time.Duration(rapid.IntRange(0, 1).Draw(t, "too far")))
	}
	allowed := before.Status == domain.Pending && dueAt.After(s.now) && !dueAt.After(s.now.Add(domain.MaxExtension))
	if err := h.order.Extend(dueAt, s.now); err != nil {
		if allowed || (before.Status != domain.Pending) != errors.Is(err, domain.ErrNotPending) {
			t.Fatal(err)
		}
		s.refused(t, h, before)
		return
	}
	if !allowed || !h.order.DueAt().Equal(dueAt) {
		t.Fatalf("a %s order was extended to %s", before.Status, h.order.DueAt())
	}
	if dueAt.Before(before.DueAt) || !before.DueAt.After(s.now) {
		h.recorded(t, domain.OrderTimeout{OrderID: before.ID, DueAt: dueAt})
	} else {
		h.recorded(t)
	}
	s.store(t, h, before)
}

func (s *shop) close(t *rapid.T) {
	h := s.pick(t)
	before := h.order.Snapshot()
	by := rapid.SampledFrom([]domain.ClosedBy{domain.ByTimer, domain.BySweep, domain.ByReplay}).Draw(t, "by")
	closed, err := h.order.Close(by, s.now)
	var notDue *domain.NotDueError
	switch due := !s.now.Before(before.DueAt); {
	case before.Status != domain.Pending:
		if closed || err != nil {
			t.Fatalf("a %s order: closed %v, %v", before.Status, closed, err)
		}
		s.refused(t, h, before)
	case !due:
		if !errors.As(err, &notDue) || notDue.Remaining != before.DueAt.Sub(s.now) {
			t.Fatalf("early: %v", err)
		}
		s.refused(t, h, before)
	case !closed || err != nil:
		t.Fatalf("due: closed %v, %v", closed, err)
	default:
		h.recorded(t, domain.OrderClosed{OrderID: before.ID, ClosedAt: s.now, ClosedBy: by.String()})
		if after := h.order.Snapshot(); after.ClosedBy != by || !after.ClosedAt.Equal(s.now) {
			t.Fatalf("closed by %s at %s", after.ClosedBy, after.ClosedAt)
		}
		s.store(t, h, before)
	}
}

// recorded checks that the last decision is told in these events.
func (h *history) recorded(t *rapid.T, want ...domain.Event) {
	if got := h.order.Changes().Events; !slices.Equal(got, want) {
		t.Fatalf("recorded %+v, want %+v", got, want)
	}
}

func (s *shop) pick(t *rapid.T) *history {
	if len(s.orders) == 0 {
		t.Skip("no orders yet") // rapid then draws another action
	}
	return rapid.SampledFrom(s.orders).Draw(t, "order")
}

// refused checks that a decision that was not taken left no trace.
func (s *shop) refused(t *rapid.T, h *history, before domain.Snapshot) {
	if c := h.order.Changes(); c.Order || len(c.Stock)+len(c.Events) > 0 || !reflect.DeepEqual(h.order.Snapshot(), before) {
		t.Fatalf("a refused decision left %+v", c)
	}
}

// store writes what a decision recorded and reads the order back.
func (s *shop) store(t *rapid.T, h *history, before domain.Snapshot) {
	if !h.order.Changes().Order && !reflect.DeepEqual(h.order.Snapshot(), before) {
		t.Fatalf("nobody is told to store that %+v became %+v", before, h.order.Snapshot())
	}
	for _, m := range h.order.Changes().Stock {
		if m == (domain.StockMove{SKU: m.SKU}) {
			t.Fatalf("a move of nothing: %+v", m)
		}
		c := s.stock[m.SKU]
		c.available += m.Available
		c.held += m.Held
		c.sold += m.Sold
		if h.order.Status() == domain.Closed {
			h.released += m.Available
		}
	}
	for _, e := range h.order.Changes().Events {
		if refund, ok := e.(domain.RefundDue); ok {
			h.refunds[refund.PaymentID]++
		}
	}
	snapshot := h.order.Snapshot()
	back, err := domain.Rehydrate(snapshot)
	if err != nil || !reflect.DeepEqual(back.Snapshot(), snapshot) {
		t.Fatalf("a decision made a state that cannot be read back: %v", err)
	}
	if snapshot.Status == domain.Closed && snapshot.ClosedAt.Before(snapshot.DueAt) {
		t.Fatal("closed early")
	}
	h.order = back
}

func (s *shop) check(t *rapid.T) {
	held, sold := map[string]int64{}, map[string]int64{}
	for _, h := range s.orders {
		snapshot := h.order.Snapshot()
		if h.final != nil && !reflect.DeepEqual(*h.final, snapshot) {
			t.Fatalf("%+v became %+v", *h.final, snapshot)
		}
		var took int64
		for _, l := range snapshot.Lines {
			took += l.Held
			switch snapshot.Status {
			case domain.Pending:
				held[l.SKU] += l.Held
			case domain.Paid:
				sold[l.SKU] += l.Held
			}
		}
		if snapshot.Status != domain.Pending {
			h.final = &snapshot
		}
		if snapshot.Status == domain.Closed && h.released != took || snapshot.Status != domain.Closed && h.released != 0 {
			t.Fatalf("a %s order took %d units and gave %d back", snapshot.Status, took, h.released)
		}
		for id, n := range h.refunds {
			if n != 1 {
				t.Fatalf("payment %s was refunded %d times", id, n)
			}
		}
	}
	for sku, units := range s.initial {
		c := s.stock[sku]
		if c.available < 0 || c.held != held[sku] || c.sold != sold[sku] || c.available+c.held+c.sold != units {
			t.Fatalf("sku %s: %+v, orders hold %d and took %d of %d", sku, *c, held[sku], sold[sku], units)
		}
	}
	if c := *s.stock[unlimited]; c != (counters{}) {
		t.Fatalf("unlimited stock was counted: %+v", c)
	}
}

// A transaction may take more than one decision: what they record adds up.
func TestDecisionsOfOneTransactionAddUp(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	order, err := domain.Place(placement(), map[string]domain.Stock{"a": {SKU: "a", Available: 1}}, now)
	if err != nil {
		t.Fatal(err)
	}
	sooner := now.Add(time.Second)
	if err := order.Extend(sooner, now); err != nil {
		t.Fatal(err)
	}
	if closed, err := order.Close(domain.BySweep, sooner); !closed || err != nil {
		t.Fatal(closed, err)
	}
	late := domain.Payment{ID: "p", OrderID: someID, Amount: 1, Currency: "EUR"}
	if refund, err := order.Pay(late, sooner); refund != domain.RefundOrderClosed || err != nil {
		t.Fatal(refund, err)
	}
	want := domain.Changes{
		Order: true,
		Stock: []domain.StockMove{{SKU: "a", Available: -1, Held: 1}, {SKU: "a", Available: 1, Held: -1}},
		Events: []domain.Event{
			domain.OrderTimeout{OrderID: someID, DueAt: now.Add(time.Minute)},
			domain.OrderTimeout{OrderID: someID, DueAt: sooner},
			domain.OrderClosed{OrderID: someID, ClosedAt: sooner, ClosedBy: "sweep"},
			domain.RefundDue{OrderID: someID, PaymentID: "p", Amount: 1, Currency: "EUR", Reason: domain.RefundOrderClosed},
		},
	}
	if diff := cmp.Diff(want, order.Changes()); diff != "" {
		t.Error(diff)
	}
}

// An order closes at its deadline and not an instant before, wherever the clocks hang,
// and what is said about it is in UTC.
func TestZonesDoNotMoveTheDeadline(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC)
	zones := []*time.Location{time.UTC, time.FixedZone("Brisbane", 10*3600), time.FixedZone("Los Angeles", -7*3600), time.FixedZone("Kolkata", 5*3600+1800)}
	for _, stored := range zones {
		for _, clock := range zones {
			for offset, wantClosed := range map[time.Duration]bool{-time.Hour: false, -time.Millisecond: false, -1: false, 0: true, time.Millisecond: true} {
				order, err := domain.Rehydrate(pending(due.In(stored)))
				if err != nil {
					t.Fatal(err)
				}
				closed, err := order.Close(domain.ByTimer, due.Add(offset).In(clock))
				if closed != wantClosed || (err == nil) != wantClosed {
					t.Errorf("%s in %s on a clock in %s: closed %v, %v", offset, stored, clock, closed, err)
				}
				if notDue, ok := errors.AsType[*domain.NotDueError](err); ok && (notDue.Remaining != -offset || !strings.Contains(err.Error(), "2026-10-25T01:00:00Z")) {
					t.Errorf("%s in %s on a clock in %s: %v", offset, stored, clock, err)
				}
			}
			order, err := domain.Rehydrate(pending(due.In(stored)))
			if err != nil {
				t.Fatal(err)
			}
			err = order.Extend(due.In(stored), due.In(clock))
			if err == nil || strings.Count(err.Error(), "2026-10-25T01:00:00Z") != 2 {
				t.Errorf("extended in %s on a clock in %s: %v", stored, clock, err)
			}
		}
	}
}

// Callers keep what they passed in and got out; an order changes by decisions only.
func TestOrderCannotBeChangedFromOutside(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	p := placement()
	placed, err := domain.Place(p, map[string]domain.Stock{"a": {SKU: "a", Available: 1}}, now)
	if err != nil {
		t.Fatal(err)
	}
	s := placed.Snapshot()
	rehydrated, err := domain.Rehydrate(s)
	if err != nil {
		t.Fatal(err)
	}
	p.Lines[0].Quantity, s.Lines[0].Quantity = 70, 70
	for name, order := range map[string]*domain.Order{"placed": placed, "rehydrated": rehydrated} {
		order.Snapshot().Lines[0].Quantity = 70
		if got := order.Snapshot().Lines[0].Quantity; got != 1 {
			t.Errorf("the %s order has quantity %d, want 1", name, got)
		}
	}
}
