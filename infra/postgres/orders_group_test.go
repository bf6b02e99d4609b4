package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

func (w *world) group() *postgres.GroupedOrders {
	return postgres.NewGroupedOrders(w.orders, postgres.GroupConfig{})
}

// closeIn closes an order as the closer does.
func closeIn(ctx context.Context, g *postgres.GroupedOrders, id domain.OrderID) (closed bool, err error) {
	_, err = g.Update(ctx, id, func(o *domain.Order, now time.Time) (err error) {
		closed, err = o.Close(domain.ByTimer, now)
		return err
	})
	return closed, err
}

// overdueMany places orders of one unit and moves their deadlines back.
func (w *world) overdueMany(n int, skus ...string) []domain.OrderID {
	w.t.Helper()
	all := make([]domain.OrderID, n)
	together(8, func(k int) {
		for i := k; i < n; i += 8 {
			all[i] = w.place(time.Hour, line(skus[i%len(skus)], 1)).ID()
		}
	})
	w.exec(`UPDATE orders SET due_at = now() - interval '1 minute' WHERE id = ANY($1)`, all)
	return all
}

// Updates that wait at the same time are committed together, each order once, and the
// stock of many orders comes back to the unit.
func TestGroupedUpdatesShareTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 400
	initial := map[string]int64{"a": n, "b": n, "c": n}
	for sku, units := range initial {
		w.setStock(sku, units)
	}
	ids := w.overdueMany(n, "a", "b", "c")
	g := w.group()
	together(2*n, func(i int) { // each of them twice
		if _, err := closeIn(ctx, g, ids[i%n]); err != nil {
			t.Error(err)
		}
	})
	if got := w.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != n {
		t.Errorf("%d orders are closed", got)
	}
	if got := w.count(`SELECT count(*) FROM outbox WHERE type = 'order.closed'`); got != n {
		t.Errorf("%d events", got)
	}
	if got := w.count(`SELECT count(DISTINCT xmin::text) FROM orders`); got > n/4 {
		t.Errorf("%d transactions for %d orders", got, n)
	}
	w.conserved(initial)
}

// In a shared transaction everybody gets an outcome of their own.
func TestGroupedUpdatesHaveTheirOwnOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	due := w.overdueMany(100, "a")
	early := w.place(time.Hour, line("a", 1)).ID()
	paid := w.place(time.Hour, line("a", 1))
	must(w.orders.Pay(ctx, pay(paid, "p")))
	boom := errors.New("boom")
	g := w.group()
	refused := func(what string, err error, is func(error) bool) {
		if !is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	together(150, func(i int) {
		switch {
		case i < 100:
			if closed, err := closeIn(ctx, g, due[i]); err != nil || !closed {
				t.Errorf("a due order: %v, %v", closed, err)
			}
		case i%5 == 0:
			_, err := closeIn(ctx, g, early)
			refused("an early timer", err, func(err error) bool { return errors.As(err, new(*domain.NotDueError)) })
		case i%5 == 1:
			if closed, err := closeIn(ctx, g, paid.ID()); closed || err != nil {
				t.Errorf("a paid order: %v, %v", closed, err)
			}
		case i%5 == 2:
			_, err := closeIn(ctx, g, domain.OrderID(uuid.NewString()))
			refused("an unknown order", err, func(err error) bool { return errors.Is(err, domain.ErrOrderNotFound) })
		case i%5 == 3:
			_, err := g.Update(ctx, early, func(*domain.Order, time.Time) error { return boom })
			refused("a refusal", err, func(err error) bool { return errors.Is(err, boom) })
		default:
			_, err := g.Update(ctx, early, func(*domain.Order, time.Time) error { panic("oops") })
			refused("a panic", err, func(err error) bool { return errors.Is(err, domain.ErrPanic) })
		}
	})
	if got := w.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != 100 {
		t.Errorf("%d orders are closed, want 100", got)
	}
	w.conserved(map[string]int64{"a": 1000})
}

// An order whose row cannot be written fails alone, with its own error.
func TestOneBadOrderFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	ids := w.overdueMany(200, "a")
	bad := ids[77]
	w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'cursed' USING ERRCODE = '23514'; END $$`)
	w.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (OLD.id = '` + string(bad) + `') EXECUTE FUNCTION refuse()`)
	g := w.group()
	together(len(ids), func(i int) {
		switch _, err := closeIn(ctx, g, ids[i]); {
		case ids[i] == bad && (err == nil || errors.Is(err, domain.ErrUnavailable)):
			t.Errorf("the bad order: %v", err)
		case ids[i] != bad && err != nil:
			t.Errorf("a neighbour: %v", err)
		}
	})
	if got := w.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != 199 {
		t.Errorf("%d orders are closed, want 199", got)
	}
	w.conserved(map[string]int64{"a": 1000})
}

// An order that a payment has in hand holds up nobody else.
func TestALockedOrderHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	ids := w.overdueMany(50, "a")
	holder, err := w.db.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(ctx) }()
	if _, err := holder.Exec(ctx, `SELECT FROM orders WHERE id = $1 FOR NO KEY UPDATE`, ids[0]); err != nil {
		t.Fatal(err)
	}
	g := w.group()
	locked := make(chan error, 1)
	go func() {
		_, err := closeIn(ctx, g, ids[0])
		locked <- err
	}()
	together(len(ids)-1, func(i int) { // ends although the lock is held
		if _, err := closeIn(ctx, g, ids[i+1]); err != nil {
			t.Error(err)
		}
	})
	if got := w.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != 49 {
		t.Errorf("%d orders are closed, want 49", got)
	}
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil && !errors.Is(err, domain.ErrUnavailable) { // it may have waited too long
		t.Error(err)
	}
}

// A caller that gives up knows whether something happened.
func TestGivingUpBeforeTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	ids := w.overdueMany(100, "a")
	g := w.group()
	over, cancel := context.WithCancel(ctx)
	cancel()
	together(len(ids), func(i int) {
		closed, err := closeIn(over, g, ids[i])
		order := must(w.orders.Get(ctx, ids[i]))
		if is := order.Status() == domain.Closed; is != (closed && err == nil) {
			t.Errorf("closed: %v, %v; the order is %s", closed, err, order.Status())
		}
	})
	w.conserved(map[string]int64{"a": 1000})
}

func TestGroupedUpdatesWithoutADatabase(t *testing.T) {
	t.Parallel()
	away := postgres.NewGroupedOrders(postgres.NewOrders(postgrestest.Open(t, "postgres://127.0.0.1:1/none", 2)), postgres.GroupConfig{})
	together(20, func(int) {
		if _, err := closeIn(ctx, away, domain.OrderID(uuid.NewString())); !errors.Is(err, domain.ErrUnavailable) {
			t.Error(err)
		}
	})
}

// Closes, payments and sweeps of the same orders at the same time: each order ends once.
func TestGroupedClosesAgainstPayments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	w.setStock("b", 1000)
	ids := w.overdueMany(100, "a", "b")
	g := w.group()
	sweep := postgres.NewSweep(w.db)
	together(3*len(ids), func(i int) {
		id := ids[i/3]
		var err error
		switch i % 3 {
		case 0:
			_, err = closeIn(ctx, g, id)
		case 1:
			_, err = w.orders.Pay(ctx, domain.Payment{ID: "p-" + string(id), OrderID: id, Amount: 100, Currency: "EUR"})
		default:
			_, err = sweep.Close(ctx, id, 0)
		}
		if err != nil && !errors.Is(err, domain.ErrUnavailable) {
			t.Error(err)
		}
	})
	if got := w.count(`SELECT count(*) FROM orders WHERE status = 'pending'`); got != 0 {
		t.Errorf("%d orders are pending", got)
	}
	if got := w.count(`SELECT count(*) FROM outbox WHERE type IN ('order.closed', 'order.paid')`); got != 100 {
		t.Errorf("%d ends of 100 orders", got)
	}
	w.conserved(map[string]int64{"a": 1000, "b": 1000})
}
