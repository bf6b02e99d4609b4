package domain_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

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
			"time": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			},
			"": s.check,
		})
	})
}

func (s *shop) place(t *rapid.T) {
	var lines []domain.Line
	for _, sku := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", unlimited}), 1, 3, rapid.ID[string]).Draw(t, "skus") {
		lines = append(lines, domain.Line{SKU: sku, Quantity: rapid.Int64Range(1, 3).Draw(t, "quantity"), UnitPrice: rapid.Int64Range(0, 500).Draw(t, "price")})
	}
	stock := map[string]domain.Stock{}
	sufficient := true
	for sku, c := range s.stock {
		stock[sku] = domain.Stock{SKU: sku, Available: c.available, Unlimited: sku == unlimited}
	}
	for _, l := range lines {
		sufficient = sufficient && (l.SKU == unlimited || l.Quantity <= s.stock[l.SKU].available)
	}
	order, err := domain.Place(domain.Placement{
		ID:       domain.OrderID(fmt.Sprintf("00000000-0000-7000-8000-%012d", len(s.orders))),
		Customer: domain.Customer{ID: "c", Email: "buyer@example.com"},
		Currency: "EUR", Lines: lines, Window: time.Duration(rapid.IntRange(1, 600).Draw(t, "window")) * time.Second,
	}, stock, s.now)
	var soldOut *domain.SoldOutError
	if sufficient != (err == nil) || (err != nil && !errors.As(err, &soldOut)) {
		t.Fatalf("stock suffices: %v, placing says %v", sufficient, err)
	}
	if err != nil {
		return
	}
	if !order.DueAt().Equal(s.now.Add(order.Snapshot().Window)) {
		t.Fatalf("due at %s", order.DueAt())
	}
	h := &history{order: order, refunds: map[string]int{}}
	h.recorded(t, domain.OrderTimeout{OrderID: order.ID(), DueAt: order.DueAt()})
	s.orders = append(s.orders, h)
	s.store(t, h)
}

func (s *shop) pay(t *rapid.T) {
	h := s.pick(t)
	snapshot := h.order.Snapshot()
	p := domain.Payment{
		ID:      fmt.Sprintf("%s-%d", h.order.ID(), rapid.IntRange(0, 2).Draw(t, "payment")),
		OrderID: h.order.ID(), Amount: snapshot.TotalAmount(), Currency: "EUR",
	}
	if rapid.IntRange(0, 3).Draw(t, "amount is right") == 0 {
		p.Amount++
	}
	if s.payments[p.ID] {
		return // the store knows it and changes nothing
	}
	refund, err := h.order.Pay(p, s.now)
	switch {
	case snapshot.Status == domain.Pending && p.Amount != snapshot.TotalAmount():
		if _, ok := errors.AsType[*domain.AmountMismatchError](err); !ok {
			t.Fatalf("wrong amount: %v", err)
		}
		s.refused(t, h, snapshot)
		return
	case err != nil:
		t.Fatal(err)
	case (refund == domain.NoRefund) != (snapshot.Status == domain.Pending):
		t.Fatalf("%s order: refund %q", snapshot.Status, refund)
	}
	s.payments[p.ID] = true
	if refund == domain.NoRefund {
		h.recorded(t, domain.OrderPaid{OrderID: p.OrderID, PaymentID: p.ID, PaidAt: s.now})
	} else {
		h.recorded(t, domain.RefundDue{OrderID: p.OrderID, PaymentID: p.ID, Amount: p.Amount, Currency: p.Currency, Reason: refund})
	}
	s.store(t, h)
	if owed := h.refunds[p.ID] > 0; owed != (refund != domain.NoRefund) {
		t.Fatalf("refund %q, recorded: %v", refund, owed)
	}
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
	timers := len(h.order.Changes().Events)
	if needed := dueAt.Before(before.DueAt) || !before.DueAt.After(s.now); needed != (timers == 1) {
		t.Fatalf("%d new timers for a deadline moved from %s to %s", timers, before.DueAt, dueAt)
	}
	s.store(t, h)
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
		s.store(t, h)
	}
}

// recorded checks that the last decision is told in one event.
func (h *history) recorded(t *rapid.T, want domain.Event) {
	if got := h.order.Changes().Events; !reflect.DeepEqual(got, []domain.Event{want}) {
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
func (s *shop) store(t *rapid.T, h *history) {
	for _, m := range h.order.Changes().Stock {
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
