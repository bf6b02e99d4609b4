package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Pool().Exec(ctx, sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// overdue places an order and moves its deadline back.
func (w *world) overdue(by time.Duration, lines ...domain.Line) *domain.Order {
	w.t.Helper()
	order := w.place(time.Hour, lines...)
	w.exec(`UPDATE orders SET due_at = now() - $2::interval WHERE id = $1`, order.ID(), by)
	return must(w.orders.Get(ctx, order.ID()))
}

func ids(orders []postgres.OverdueOrder) []domain.OrderID {
	var all []domain.OrderID
	for _, o := range orders {
		all = append(all, o.ID)
	}
	return all
}

// The list of overdue orders is walked oldest first, without those that may still hear
// from their timer, are settled or back off.
func TestOverdueOrdersAreWalkedOldestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	sweep := postgres.NewSweep(w.db)
	w.place(time.Hour, line("a", 1))        // not due
	w.overdue(59*time.Second, line("a", 1)) // within the grace
	paid := w.overdue(time.Hour, line("a", 1))
	must(w.orders.Pay(ctx, pay(paid, "p")))
	failing := w.overdue(5*time.Hour, line("a", 1))
	must(sweep.Fail(ctx, failing.ID(), errors.New("no")))
	w.exec(`UPDATE sweep_failures SET next_attempt_at = now() + interval '1 hour'`)
	var want []domain.OrderID
	for i := range 5 {
		want = append(want, w.overdue(4*time.Hour-time.Duration(i/2)*time.Minute, line("a", 1)).ID())
	}
	w.exec(`UPDATE orders SET due_at = date_trunc('hour', due_at) WHERE id = ANY($1)`, want) // equal deadlines go by id

	var got []domain.OrderID
	for last := (postgres.OverdueOrder{}); ; {
		batch := must(sweep.Pick(ctx, time.Minute, last, 2))
		if len(batch) == 0 {
			break
		}
		got = append(got, ids(batch)...)
		last = batch[len(batch)-1]
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("place %d: %s, want %s", i, got[i], want[i])
		}
	}
	w.exec(`UPDATE sweep_failures SET next_attempt_at = now()`)
	if first := must(sweep.Pick(ctx, time.Minute, postgres.OverdueOrder{}, 1)); len(first) != 1 || first[0].ID != failing.ID() {
		t.Errorf("after its pause the order is not looked at: %v", first)
	}
}

// The sweep closes as the timer would have: stock comes back and the buyer is told.
func TestSweepClosesLikeATimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	w.setStock("b", 10)
	sweep := postgres.NewSweep(w.db)
	order := w.overdue(2*time.Minute, line("b", 2), line("a", 3))
	closed := must(sweep.Close(ctx, order.ID(), time.Minute))
	if closed == nil || closed.Status() != domain.Closed || closed.Snapshot().ClosedBy != domain.BySweep {
		t.Fatalf("%+v", closed)
	}
	if s := must(w.orders.Get(ctx, order.ID())).Snapshot(); s.Status != domain.Closed || s.ClosedBy != domain.BySweep || s.ClosedAt.Before(s.DueAt) {
		t.Errorf("stored: %+v", s)
	}
	if n := w.count(`SELECT count(*) FROM outbox WHERE type = 'order.closed' AND order_id = $1 AND payload->>'closed_by' = 'sweep'`, order.ID()); n != 1 {
		t.Errorf("%d messages tell of it", n)
	}
	if n := w.count(`SELECT sum(held)::bigint FROM stock`); n != 0 {
		t.Errorf("%d units stay held", n)
	}
	w.conserved(map[string]int64{"a": 10, "b": 10})
	if again := must(sweep.Close(ctx, order.ID(), time.Minute)); again != nil {
		t.Errorf("closed twice: %+v", again)
	}
}

// What is not the sweep's to close is left alone without an error.
func TestSweepLeavesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	sweep := postgres.NewSweep(w.db)
	paid, locked, backingOff := w.overdue(time.Hour, line("a", 1)), w.overdue(time.Hour, line("a", 1)), w.overdue(time.Hour, line("a", 1))
	young, extended := w.overdue(30*time.Second, line("a", 1)), w.overdue(-time.Hour, line("a", 1))
	must(w.orders.Pay(ctx, pay(paid, "p")))
	must(sweep.Fail(ctx, backingOff.ID(), errors.New("no")))
	w.exec(`UPDATE sweep_failures SET next_attempt_at = now() + interval '1 hour'`)
	tx := must(w.db.Pool().Begin(ctx))
	defer func() { _ = tx.Rollback(ctx) }()
	must(tx.Exec(ctx, `SELECT FROM orders WHERE id = $1 FOR NO KEY UPDATE`, locked.ID()))
	for name, order := range map[string]*domain.Order{
		"paid": paid, "locked": locked, "backing off": backingOff, "within the grace": young, "not due": extended,
	} {
		if got, err := sweep.Close(ctx, order.ID(), time.Minute); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := sweep.Close(ctx, domain.OrderID(uuid.NewString()), time.Minute); got != nil || err != nil {
		t.Errorf("unknown: %+v, %v", got, err)
	}
	if n := w.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); n != 0 {
		t.Errorf("%d orders closed", n)
	}
}

// A statement that ran out of time, and a lock, are the order's own failure; a database
// that is away is not.
func TestSweepTellsARowFromAnOutage(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewURL(t)
	w := worldOn(t, postgrestest.Open(t, url, 10))
	w.setStock("a", 10)
	order := w.overdue(time.Hour, line("a", 1))
	impatient := postgrestest.Open(t, withParameters(url, "statement_timeout=200ms"), 2)
	w.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(20); RETURN new; END $$`)
	w.exec(`CREATE TRIGGER slow BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION slow()`)
	if _, err := postgres.NewSweep(impatient).Close(ctx, order.ID(), time.Minute); err == nil || errors.Is(err, domain.ErrUnavailable) || !strings.Contains(err.Error(), "57014") {
		t.Errorf("statement timeout: %v", err)
	}
	w.exec(`DROP TRIGGER slow ON orders`)

	hasty := postgrestest.Open(t, withParameters(url, "lock_timeout=100ms"), 2)
	tx := must(w.db.Pool().Begin(ctx))
	must(tx.Exec(ctx, `SELECT FROM stock FOR UPDATE`))
	if _, err := postgres.NewSweep(hasty).Close(ctx, order.ID(), time.Minute); err == nil || errors.Is(err, domain.ErrUnavailable) || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("lock timeout: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	hasty.Close()
	gone := postgrestest.Open(t, "postgres://nobody@127.0.0.1:1/none", 1)
	if _, err := postgres.NewSweep(gone).Close(ctx, order.ID(), time.Minute); !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("database away: %v", err)
	}
	if closed := must(postgres.NewSweep(w.db).Close(ctx, order.ID(), time.Minute)); closed == nil {
		t.Error("the order cannot be closed afterwards")
	}
}

func withParameters(url, parameters string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameters
	}
	return url + "?" + parameters
}

// A failure doubles the pause up to ten minutes and keeps the latest error.
func TestSweepFailuresBackOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1)
	sweep := postgres.NewSweep(w.db)
	order := w.overdue(time.Hour, line("a", 1))
	for attempt, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		f := must(sweep.Fail(ctx, order.ID(), errors.New("no \x00"+strings.Repeat("ä", 5000))))
		checkPause(t, f, attempt+1, want)
		if !strings.HasPrefix(f.LastError, "no ") || len([]rune(f.LastError)) > 1024 {
			t.Errorf("error %q", f.LastError)
		}
	}
	for attempts, want := range map[int]time.Duration{9: 512 * time.Second, 10: 10 * time.Minute, 2_000_000_000: 10 * time.Minute} {
		w.exec(`UPDATE sweep_failures SET attempts = $1`, attempts)
		checkPause(t, must(sweep.Fail(ctx, order.ID(), errors.New("still no"))), attempts+1, want)
	}
	if all := must(sweep.Failing(ctx, 10)); len(all) != 1 || all[0].OrderID != order.ID() || all[0].LastError != "still no" {
		t.Errorf("%+v", all)
	}
}

func checkPause(t *testing.T, f postgres.SweepFailure, attempts int, want time.Duration) {
	t.Helper()
	if pause := f.NextAttemptAt.Sub(f.LastFailedAt); f.Attempts != attempts || pause < want*8/10 || pause > want*12/10 {
		t.Errorf("after %d attempts (want %d) it waits %s, want %s", f.Attempts, attempts, pause, want)
	}
}

// Failures are forgotten once the order is settled, by anyone, or due later.
func TestSweepForgetsWhatIsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	sweep := postgres.NewSweep(w.db)
	var orders []*domain.Order
	for range 4 {
		orders = append(orders, w.overdue(time.Hour, line("a", 1)))
		must(sweep.Fail(ctx, orders[len(orders)-1].ID(), errors.New("no")))
	}
	must(w.orders.Pay(ctx, pay(orders[0], "p")))
	must(w.closeOrder(orders[1].ID()))
	w.exec(`UPDATE orders SET due_at = now() + interval '1 hour' WHERE id = $1`, orders[2].ID())
	if left := must(sweep.Forget(ctx)); left != 1 {
		t.Errorf("%d failures left", left)
	}
	if all := must(sweep.Failing(ctx, 10)); len(all) != 1 || all[0].OrderID != orders[3].ID() {
		t.Errorf("%+v", all)
	}
}

func TestSweepTakesHalfOfThePool(t *testing.T) {
	t.Parallel()
	for conns, want := range map[int32]int{1: 1, 2: 1, 3: 1, 10: 5, 1000: 500} {
		db := must(postgres.Open(context.Background(), postgres.Config{URL: "postgres://x@127.0.0.1:1/x", MaxConns: conns}))
		if got := postgres.NewSweep(db).Share(); got != want {
			t.Errorf("%d of %d connections, want %d", got, conns, want)
		}
		db.Close()
	}
}

// Among many settled orders the sweep, and among many waiting rows the relay, read an
// index and no more of it than they need.
func TestPollsReadAnIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO orders (id, status, customer_id, customer_email, currency, payment_window_ms, due_at, created_at, closed_at, closed_by)
		SELECT gen_random_uuid(), 'closed', 'c', 'a@example.com', 'EUR', 1000, now() - i * interval '1 second', now(), now(), 'timer'
		FROM generate_series(1, 30000) AS i`)
	w.exec(`INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
		SELECT gen_random_uuid(), 'c', 'a@example.com', 'EUR', 1000, now() + (i - 5000) * interval '1 second', now()
		FROM generate_series(1, 10000) AS i`)
	w.fill(20_000)
	w.exec(`UPDATE outbox SET next_attempt_at = now() + interval '1 minute' WHERE id % 10 <> 0`)
	w.exec(`ANALYZE`)

	batch := must(postgres.NewSweep(w.db).Pick(ctx, time.Minute, postgres.OverdueOrder{}, 100))
	last := batch[len(batch)-1]
	w.readsIndex("orders", "orders_pending_due", 200, postgres.PickOverdue, time.Minute, nil, "", 100)
	w.readsIndex("orders", "orders_pending_due", 200, postgres.PickOverdue, time.Minute, last.DueAt, string(last.ID), 100)

	must(w.outbox.Relay(ctx, 100, func(_ context.Context, rows []postgres.OutboxRow) []error {
		var poll string // of the connection that holds the rows
		if err := w.db.Pool().QueryRow(ctx, `SELECT query FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&poll); err != nil {
			t.Error(err)
		}
		w.readsIndex("outbox", "outbox_next", 300, poll, 100) // and steps over the hundred that are locked
		errs := make([]error, len(rows))
		for i := range errs {
			errs[i] = domain.ErrUnavailable
		}
		return errs
	}))
}

type plan struct {
	Node    string  `json:"Node Type"`
	Table   string  `json:"Relation Name"`
	Index   string  `json:"Index Name"`
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []plan  `json:"Plans"`
}

// readsIndex runs a query and checks that table is read through index only, and that
// at most that many rows of it were looked at.
func (w *world) readsIndex(table, index string, most float64, query string, args ...any) {
	w.t.Helper()
	var text []byte
	tx := must(w.db.Pool().BeginTx(ctx, pgx.TxOptions{}))
	defer func() { _ = tx.Rollback(ctx) }() // it locked rows
	if err := tx.QueryRow(ctx, `EXPLAIN (ANALYZE, FORMAT JSON) `+query, args...).Scan(&text); err != nil {
		w.t.Fatal(err)
	}
	var plans []struct {
		Plan plan `json:"Plan"`
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		w.t.Fatal(err)
	}
	reads := 0
	var walk func(p plan)
	walk = func(p plan) {
		if p.Table == table && p.Node != "LockRows" {
			reads++
			if p.Index != index || p.Rows+p.Removed > most {
				w.t.Errorf("%s reads %s through %q and looks at %.0f rows, want %s and at most %.0f", p.Node, table, p.Index, p.Rows+p.Removed, index, most)
			}
		}
		for _, child := range p.Plans {
			walk(child)
		}
	}
	walk(plans[0].Plan)
	if reads != 1 {
		w.t.Errorf("%s is read %d times:\n%s", table, reads, text)
	}
}
