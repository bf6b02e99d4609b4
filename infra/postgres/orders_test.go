package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

var ctx = context.Background()

// world is a database with its stores.
type world struct {
	t      *testing.T
	db     *postgres.DB
	orders *postgres.Orders
	stock  *postgres.Stock
	outbox *postgres.Outbox
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, postgrestest.New(t))
}

func worldOn(t *testing.T, db *postgres.DB) *world {
	return &world{t, db, postgres.NewOrders(db), postgres.NewStock(db), postgres.NewOutbox(db)}
}

func (w *world) setStock(sku string, n int64) {
	w.t.Helper()
	if _, err := w.stock.Set(ctx, sku, &n); err != nil {
		w.t.Fatal(err)
	}
}

func placement(window time.Duration, lines ...domain.Line) domain.Placement {
	return domain.Placement{
		ID: domain.OrderID(uuid.Must(uuid.NewV7()).String()), Customer: domain.Customer{ID: "c", Email: "a@example.com"},
		Currency: "EUR", Lines: lines, Window: window,
	}
}

func line(sku string, n int64) domain.Line { return domain.Line{SKU: sku, Quantity: n, UnitPrice: 100} }

func (w *world) place(window time.Duration, lines ...domain.Line) *domain.Order {
	w.t.Helper()
	order, _, err := w.orders.Place(ctx, placement(window, lines...), postgres.IdempotencyKey{})
	if err != nil {
		w.t.Fatal(err)
	}
	return order
}

func (w *world) closeOrder(id domain.OrderID) (closed bool, err error) {
	_, err = w.orders.Update(ctx, id, func(o *domain.Order, now time.Time) (err error) {
		closed, err = o.Close(domain.ByTimer, now)
		return err
	})
	return closed, err
}

func (w *world) count(sql string, args ...any) int64 {
	w.t.Helper()
	var n int64
	if err := w.db.Pool().QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// conserved checks that no unit was made or lost, and that held and sold are what the
// orders say.
func (w *world) conserved(initial map[string]int64) {
	w.t.Helper()
	for sku, n := range initial {
		if got := w.count(`SELECT available + held + sold FROM stock WHERE sku = $1`, sku); got != n {
			w.t.Errorf("sku %s: %d units, want %d", sku, got, n)
		}
	}
	for status, column := range map[string]string{"pending": "held", "paid": "sold"} {
		if n := w.count(`SELECT count(*) FROM stock s WHERE `+column+` <> (SELECT coalesce(sum(l.held), 0)
			FROM order_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku = s.sku AND o.status = $1)`, status); n != 0 {
			w.t.Errorf("%d skus whose %s is not what %s orders took", n, column, status)
		}
	}
}

func pay(order *domain.Order, id string) domain.Payment {
	return domain.Payment{ID: id, OrderID: order.ID(), Amount: order.Snapshot().TotalAmount(), Currency: "EUR"}
}

// together runs fn n times at once.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// Many buyers, few units, lines in opposite orders: nothing is oversold, multi-line
// orders are all or nothing, and no deadlock reaches a buyer.
func TestPlacingNeverOversells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	w.setStock("b", 60)
	var placed atomic.Int64
	together(300, func(i int) {
		lines := [][]domain.Line{{line("a", 1)}, {line("a", 1), line("b", 1)}, {line("b", 1), line("a", 1)}}[i%3]
		_, _, err := w.orders.Place(ctx, placement(time.Hour, lines...), postgres.IdempotencyKey{})
		if _, soldOut := errors.AsType[*domain.SoldOutError](err); err != nil && !soldOut {
			t.Error(err)
		}
		if err == nil {
			placed.Add(1)
		}
	})
	if n := w.count(`SELECT count(*) FROM orders`); n != placed.Load() {
		t.Errorf("%d orders stored, %d placed", n, placed.Load())
	}
	if n := w.count(`SELECT available FROM stock WHERE sku = 'a'`); n != 0 {
		t.Errorf("%d units of a left while buyers were sent away", n)
	}
	w.conserved(map[string]int64{"a": 100, "b": 60})
	if n := w.count(`SELECT count(*) FROM outbox WHERE type = 'order.timeout' AND due_at IS NOT NULL`); n != placed.Load() {
		t.Errorf("%d timers for %d orders", n, placed.Load())
	}
}

// Ten equal requests at once make one order and one hold, also when the stock suffices
// for just one.
func TestIdempotencyKeyMakesOneOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 3)
	key := postgres.IdempotencyKey{Key: "k", Hash: []byte("request")}
	ids := make([]domain.OrderID, 10)
	var fresh atomic.Int64
	together(10, func(i int) {
		order, replayed, err := w.orders.Place(ctx, placement(time.Hour, line("a", 3)), key)
		if err != nil {
			t.Error(err)
			return
		}
		if !replayed {
			fresh.Add(1)
		}
		ids[i] = order.ID()
	})
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("two orders: %s and %s", id, ids[0])
		}
	}
	if fresh.Load() != 1 {
		t.Errorf("%d requests were told that they are the first", fresh.Load())
	}
	w.conserved(map[string]int64{"a": 3})
	_, _, err := w.orders.Place(ctx, placement(time.Hour, line("a", 1)), postgres.IdempotencyKey{Key: "k", Hash: []byte("another")})
	if !errors.Is(err, postgres.ErrKeyReused) {
		t.Errorf("another request with the key: %v", err)
	}
	if n := w.count(`SELECT count(*) FROM outbox`); n != 1 {
		t.Errorf("%d timers", n)
	}
}

// Pay and close meet on a hundred orders: each is one of the two.
func TestPayAndCloseAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	orders := make([]*domain.Order, 100)
	for i := range orders {
		orders[i] = w.place(time.Millisecond, line("a", 1))
	}
	var paid, closed atomic.Int64
	together(200, func(i int) {
		order := orders[i/2]
		if i%2 == 0 {
			result, err := w.orders.Pay(ctx, pay(order, string(order.ID())))
			if err != nil {
				t.Error(err)
			} else if result.Refund == domain.NoRefund {
				paid.Add(1)
			}
			return
		}
		done, err := w.closeOrder(order.ID())
		if err != nil {
			t.Error(err)
		} else if done {
			closed.Add(1)
		}
	})
	if paid.Load()+closed.Load() != 100 || w.count(`SELECT count(*) FROM orders WHERE status = 'paid'`) != paid.Load() {
		t.Errorf("%d paid and %d closed", paid.Load(), closed.Load())
	}
	if n := w.count(`SELECT count(*) FROM outbox WHERE type = 'payment.refund_due'`); n != closed.Load() {
		t.Errorf("%d refunds for %d closed orders", n, closed.Load())
	}
	w.conserved(map[string]int64{"a": 100})
}

// Orders with the same SKUs in opposite orders are closed at once: stock is locked in one
// order, so none of them has to be sacrificed.
func TestClosingTakesLocksInOneOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1000)
	w.setStock("b", 1000)
	orders := make([]*domain.Order, 200)
	for i := range orders {
		lines := [][]domain.Line{{line("a", 1), line("b", 1)}, {line("b", 1), line("a", 1)}}[i%2]
		orders[i] = w.place(time.Millisecond, lines...)
	}
	together(len(orders), func(i int) {
		if closed, err := w.closeOrder(orders[i].ID()); !closed || err != nil {
			t.Errorf("closed %v, %v", closed, err)
		}
	})
	w.conserved(map[string]int64{"a": 1000, "b": 1000})
	w.db.Pool().Reset() // sessions report what they counted when they end
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && w.count(`SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`) < 400; {
		<-time.After(50 * time.Millisecond)
	}
	if n := w.count(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func TestRepeatedDecisionsHappenOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	order := w.place(time.Millisecond, line("a", 3))
	var closed atomic.Int64
	together(20, func(int) {
		done, err := w.closeOrder(order.ID())
		if err != nil {
			t.Error(err)
		} else if done {
			closed.Add(1)
		}
	})
	if closed.Load() != 1 || w.count(`SELECT count(*) FROM outbox WHERE type = 'order.closed'`) != 1 {
		t.Errorf("closed %d times", closed.Load())
	}
	together(3, func(int) {
		if result, err := w.orders.Pay(ctx, pay(order, "late")); err != nil || result.Refund != domain.RefundOrderClosed {
			t.Errorf("late money: %+v, %v", result, err)
		}
	})
	other := w.place(time.Hour, line("a", 1))
	var accepted atomic.Int64
	together(5, func(int) {
		result, err := w.orders.Pay(ctx, pay(other, "in time"))
		if err != nil || result.Refund != domain.NoRefund {
			t.Errorf("%+v, %v", result, err)
		} else if !result.Replayed {
			accepted.Add(1)
		}
	})
	if accepted.Load() != 1 {
		t.Errorf("accepted %d times", accepted.Load())
	}
	for typ, want := range map[string]int64{"payment.refund_due": 1, "order.paid": 1} {
		if n := w.count(`SELECT count(*) FROM outbox WHERE type = $1`, typ); n != want {
			t.Errorf("%d of %s", n, typ)
		}
	}
	w.conserved(map[string]int64{"a": 10})
}

func TestRefusedPaymentsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	order := w.place(time.Hour, line("a", 1))
	wrong := pay(order, "p")
	wrong.Amount++
	if _, err := w.orders.Pay(ctx, wrong); !isA[*domain.AmountMismatchError](err) {
		t.Errorf("wrong amount: %v", err)
	}
	if n := w.count(`SELECT count(*) FROM payments`); n != 0 {
		t.Errorf("%d payments recorded", n)
	}
	if _, err := w.orders.Pay(ctx, pay(order, "p")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.orders.Pay(ctx, wrong); !isA[*domain.FieldError](err) {
		t.Errorf("known id with other data: %v", err)
	}
	unknown := pay(order, "q")
	unknown.OrderID = placement(0).ID
	if _, err := w.orders.Pay(ctx, unknown); !errors.Is(err, domain.ErrOrderNotFound) {
		t.Errorf("unknown order: %v", err)
	}
}

// An error at one of three lines rolls everything back; the next attempt releases once.
func TestCloseIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sku := range []string{"a", "b", "c"} {
		w.setStock(sku, 5)
	}
	order := w.place(time.Millisecond, line("a", 1), line("b", 2), line("c", 3))
	_, err := w.db.Pool().Exec(ctx, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON stock FOR EACH ROW WHEN (old.sku = 'b') EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.closeOrder(order.ID()); err == nil || errors.Is(err, domain.ErrUnavailable) {
		t.Fatalf("got %v, want the trigger's error", err)
	}
	if n := w.count(`SELECT sum(held) FROM stock`); n != 6 {
		t.Errorf("%d units held after the failure, want 6", n)
	}
	if got, err := w.orders.Get(ctx, order.ID()); err != nil || got.Status() != domain.Pending {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := w.db.Pool().Exec(ctx, `DROP TRIGGER refuse ON stock`); err != nil {
		t.Fatal(err)
	}
	if closed, err := w.closeOrder(order.ID()); !closed || err != nil {
		t.Errorf("closed %v, %v", closed, err)
	}
	w.conserved(map[string]int64{"a": 5, "b": 5, "c": 5})
}

func TestUnlimitedStockStaysUnlimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 5)
	if _, err := w.stock.Set(ctx, "sky", nil); err != nil {
		t.Fatal(err)
	}
	order := w.place(time.Millisecond, line("a", 2), line("sky", 900_000))
	if closed, err := w.closeOrder(order.ID()); !closed || err != nil {
		t.Fatalf("closed %v, %v", closed, err)
	}
	levels, err := w.stock.List(ctx, "a", 10)
	if err != nil || len(levels) != 1 || levels[0].SKU != "sky" || levels[0].Available != nil || levels[0].Held != 0 {
		t.Errorf("%+v, %v", levels, err)
	}
	w.conserved(map[string]int64{"a": 5})
	if _, err := w.stock.Set(ctx, "bad sku", nil); !isA[*domain.FieldError](err) {
		t.Errorf("got %v", err)
	}
}

func TestOrdersAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	var ids []domain.OrderID
	for range 5 {
		ids = append([]domain.OrderID{w.place(time.Hour, line("a", 1)).ID()}, ids...)
	}
	if _, err := w.orders.Pay(ctx, pay(must(w.orders.Get(ctx, ids[1])), "p")); err != nil {
		t.Fatal(err)
	}
	page := must(w.orders.List(ctx, postgres.ListQuery{Limit: 3}))
	rest := must(w.orders.List(ctx, postgres.ListQuery{Limit: 3, Before: page[2].ID()}))
	var got []domain.OrderID
	for _, o := range append(page, rest...) {
		got = append(got, o.ID())
	}
	if fmt.Sprint(got) != fmt.Sprint(ids) {
		t.Errorf("got %v, want %v", got, ids)
	}
	paid := must(w.orders.List(ctx, postgres.ListQuery{Status: domain.Paid, Limit: 10}))
	if len(paid) != 1 || paid[0].ID() != ids[1] {
		t.Errorf("paid: %v", paid)
	}
	if _, err := w.closeOrder(placement(0).ID); !errors.Is(err, domain.ErrOrderNotFound) {
		t.Errorf("unknown order: %v", err)
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}
