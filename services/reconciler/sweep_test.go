package reconciler_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/telemetry"
	"example.com/ordertimeout/services/reconciler"
)

// overdueShop is a shop whose timers are lost.
type overdueShop struct {
	t      *testing.T
	ctx    context.Context
	db     *postgres.DB
	orders *postgres.Orders
}

const shopStock = 1000 // units of the one SKU

func newOverdueShop(t *testing.T, url string) *overdueShop {
	t.Helper()
	db := postgrestest.Open(t, url, 10)
	shop := &overdueShop{t: t, ctx: t.Context(), db: db, orders: postgres.NewOrders(db)}
	units := int64(shopStock)
	if _, err := postgres.NewStock(db).Set(shop.ctx, "tea", &units); err != nil {
		t.Fatal(err)
	}
	return shop
}

// place makes n orders that are overdue by the given time, and takes their timers away.
func (s *overdueShop) place(n int, by time.Duration) []domain.OrderID {
	s.t.Helper()
	var ids []domain.OrderID
	for range n {
		order, _, err := s.orders.Place(s.ctx, domain.Placement{
			ID: domain.OrderID(uuid.Must(uuid.NewV7()).String()), Customer: domain.Customer{ID: "c", Email: "a@example.com"},
			Currency: "EUR", Lines: []domain.Line{{SKU: "tea", Quantity: 2, UnitPrice: 100}}, Window: time.Hour,
		}, postgres.IdempotencyKey{})
		if err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, order.ID())
	}
	s.exec(`UPDATE orders SET due_at = now() - $2::interval WHERE id = ANY($1)`, ids, by)
	s.exec(`DELETE FROM outbox WHERE type = 'order.timeout'`)
	return ids
}

func (s *overdueShop) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.ctx, sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *overdueShop) count(sql string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.db.Pool().QueryRow(s.ctx, sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// checkClosed checks that n orders are closed, each told once, and that stock is right.
func (s *overdueShop) checkClosed(n int) {
	s.t.Helper()
	if got := s.count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != n {
		s.t.Errorf("%d orders closed, want %d", got, n)
	}
	if got, each := s.count(`SELECT count(*) FROM outbox WHERE type = 'order.closed'`), s.count(`SELECT count(DISTINCT order_id) FROM outbox WHERE type = 'order.closed'`); got != n || each != n {
		s.t.Errorf("%d messages about %d closed orders, want %d of each", got, each, n)
	}
	pending := s.count(`SELECT count(*) FROM orders WHERE status = 'pending'`)
	if available, held := s.count(`SELECT available FROM stock`), s.count(`SELECT held FROM stock`); held != 2*pending || available != shopStock-2*pending {
		s.t.Errorf("%d units available and %d held, with %d pending orders", available, held, pending)
	}
}

func (s *overdueShop) sweeper(db *postgres.DB, batch int, reg prometheus.Registerer, log *records) *reconciler.Sweeper {
	config := reconciler.SweepConfig{Interval: time.Second, Grace: time.Minute, Batch: batch}
	return reconciler.NewSweeper(config, postgres.NewSweep(db), reg, log.logger())
}

// records keeps what was logged, a line a record.
type records struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes.Write(p)
}

func (r *records) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

// with returns the lines that contain every part.
func (r *records) with(parts ...string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []string
lines:
	for line := range strings.Lines(r.bytes.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// metric returns the sum of a metric's samples, of those whose labels contain label.
func metric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if label == "" || strings.Contains(fmt.Sprint(m.GetLabel()), label) {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	if !found {
		t.Errorf("no metric %s with %q", name, label)
	}
	return sum
}

// Bad rows at the head, one that is slow and one in somebody else's hand keep no healthy
// order from being closed. They are counted, logged with their ids and back off.
func TestBadRowsStarveNobody(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewURL(t)
	shop := newOverdueShop(t, url)
	bad, slow, locked := shop.place(12, 3*time.Hour), shop.place(1, 2*time.Hour), shop.place(1, 2*time.Hour)
	shop.place(50, time.Hour)
	shop.exec(`CREATE TABLE broken AS SELECT unnest($1::uuid[]) AS id, false AS slow UNION ALL SELECT unnest($2::uuid[]), true`, bad, slow)
	shop.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM broken WHERE id = new.id AND slow) THEN PERFORM pg_sleep(30); END IF;
		IF EXISTS (SELECT FROM broken WHERE id = new.id) THEN RAISE EXCEPTION 'cursed row' USING ERRCODE = '23514'; END IF;
		RETURN new; END $$`)
	shop.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()`)
	tx, err := shop.db.Pool().Begin(shop.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(shop.ctx, `SELECT FROM orders WHERE id = $1 FOR NO KEY UPDATE`, locked[0]); err != nil {
		t.Fatal(err)
	}

	reg, log := prometheus.NewRegistry(), &records{}
	sweeper := shop.sweeper(postgrestest.Open(t, url+"&statement_timeout=500ms", 4), 10, reg, log)
	result, err := sweeper.Sweep(shop.ctx)
	if want := (reconciler.SweepResult{Closed: 50, Failed: 13, Skipped: 1}); err != nil || result != want {
		t.Errorf("%+v, %v, want %+v", result, err, want)
	}
	shop.checkClosed(50)
	for _, id := range append(bad, slow...) {
		if lines := log.with("level=ERROR", string(id), "backs off", "attempt=1"); len(lines) != 1 {
			t.Errorf("%d lines about the failed order %s", len(lines), id)
		}
	}
	if n := shop.count(`SELECT count(*) FROM sweep_failures WHERE last_error LIKE '%cursed row%'`); n != 12 {
		t.Errorf("the error of %d orders is kept", n)
	}
	if n := len(log.with("level=WARN", "timer was lost", "order_id=", "due_at=", "late=1h")); n != 50 {
		t.Errorf("%d lost timers logged", n)
	}
	for name, want := range map[string]float64{
		"ordertimeout_sweep_lost_timers_total": 50, "ordertimeout_sweep_failures_total": 13, "ordertimeout_sweep_failing_orders": 13,
		"ordertimeout_orders_closed_total": 50, "ordertimeout_close_lateness_seconds": 50,
	} {
		if got := metric(t, reg, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}

	// While they back off nobody looks at them; afterwards, without the cause, all are closed.
	shop.exec(`UPDATE sweep_failures SET next_attempt_at = now() + interval '1 hour'`)
	if result, err := sweeper.Sweep(shop.ctx); err != nil || result != (reconciler.SweepResult{Skipped: 1}) {
		t.Errorf("%+v, %v while they back off", result, err)
	}
	if err := tx.Rollback(shop.ctx); err != nil {
		t.Fatal(err)
	}
	shop.exec(`DROP TRIGGER refuse ON orders`)
	shop.exec(`UPDATE sweep_failures SET next_attempt_at = now()`)
	if result, err := sweeper.Sweep(shop.ctx); err != nil || result != (reconciler.SweepResult{Closed: 14}) {
		t.Errorf("%+v, %v after the cure", result, err)
	}
	shop.checkClosed(64)
	if n := shop.count(`SELECT count(*) FROM sweep_failures`); n != 0 || metric(t, reg, "ordertimeout_sweep_failing_orders", "") != 0 {
		t.Errorf("%d failures left of closed orders", n)
	}
}

// Three sweeps and three closers on the same orders close each of them once.
func TestSweepsAndClosersAtOnce(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewURL(t)
	shop := newOverdueShop(t, url)
	ids := shop.place(120, time.Hour)
	var byTimer, bySweep, failed atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		sweeper := shop.sweeper(postgrestest.Open(t, url, 6), 7, prometheus.NewRegistry(), &records{})
		wg.Go(func() {
			result, err := sweeper.Sweep(shop.ctx)
			bySweep.Add(int64(result.Closed))
			failed.Add(int64(result.Failed))
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for i := range ids {
				var closed bool
				_, err := shop.orders.Update(shop.ctx, ids[len(ids)-1-i], func(o *domain.Order, now time.Time) (err error) {
					closed, err = o.Close(domain.ByTimer, now)
					return err
				})
				if err != nil {
					t.Error(err)
				} else if closed {
					byTimer.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if byTimer.Load()+bySweep.Load() != 120 || failed.Load() != 0 {
		t.Errorf("%d closed by closers, %d by sweeps, %d failed", byTimer.Load(), bySweep.Load(), failed.Load())
	}
	shop.checkClosed(120)
	if n := shop.count(`SELECT count(*) FROM orders WHERE closed_by = 'sweep'`); n != int(bySweep.Load()) {
		t.Errorf("%d orders closed by the sweep, it counted %d", n, bySweep.Load())
	}
}

// A deadline that was shortened while the timer of the old one is under way is kept by
// the sweep; one that was moved ahead keeps the sweep away.
func TestSweepGoesByTheMovedDeadline(t *testing.T) {
	t.Parallel()
	shop := newOverdueShop(t, postgrestest.NewURL(t))
	shortened, extended := shop.place(1, -time.Hour)[0], shop.place(1, time.Hour)[0]
	shop.exec(`UPDATE orders SET due_at = now() - interval '2 minutes' WHERE id = $1`, shortened)
	shop.exec(`UPDATE orders SET due_at = now() + interval '6 seconds' WHERE id = $1`, extended)
	result, err := shop.sweeper(shop.db, 10, prometheus.NewRegistry(), &records{}).Sweep(shop.ctx)
	if err != nil || result != (reconciler.SweepResult{Closed: 1}) {
		t.Errorf("%+v, %v", result, err)
	}
	if n := shop.count(`SELECT count(*) FROM orders WHERE id = $1 AND closed_by = 'sweep'`, shortened); n != 1 {
		t.Error("the shortened order is not closed")
	}
}

// In one process with the closer the sweep counts in the closer's metric.
func TestSweepSharesTheMetricOfClosedOrders(t *testing.T) {
	t.Parallel()
	shop := newOverdueShop(t, postgrestest.NewURL(t))
	shop.place(2, time.Hour)
	reg := prometheus.NewRegistry()
	closer := telemetry.NewClosings(reg)
	sweeper := shop.sweeper(shop.db, 10, reg, &records{})
	closer.Add(domain.ByTimer, -time.Millisecond)
	if _, err := sweeper.Sweep(shop.ctx); err != nil {
		t.Fatal(err)
	}
	if timer, sweep := metric(t, reg, "ordertimeout_orders_closed_total", "timer"), metric(t, reg, "ordertimeout_orders_closed_total", "sweep"); timer != 1 || sweep != 2 {
		t.Errorf("%v by timer and %v by sweep, want 1 and 2", timer, sweep)
	}
	if n := metric(t, reg, "ordertimeout_close_lateness_seconds", ""); n != 3 {
		t.Errorf("%v observations", n)
	}
}

// fakeOverdue is a store whose database comes and goes.
type fakeOverdue struct {
	pick  func(after postgres.OverdueOrder) ([]postgres.OverdueOrder, error)
	close func(domain.OrderID) (*domain.Order, error)
	fail  func(domain.OrderID) error
}

func (f *fakeOverdue) Pick(_ context.Context, _ time.Duration, after postgres.OverdueOrder, _ int) ([]postgres.OverdueOrder, error) {
	return f.pick(after)
}

func (f *fakeOverdue) Close(_ context.Context, id domain.OrderID, _ time.Duration) (*domain.Order, error) {
	return f.close(id)
}

func (f *fakeOverdue) Fail(_ context.Context, id domain.OrderID, _ error) (postgres.SweepFailure, error) {
	return postgres.SweepFailure{OrderID: id}, f.fail(id)
}

func (*fakeOverdue) Forget(context.Context) (int, error) { return 0, nil }
func (*fakeOverdue) Share() int                          { return 1 }

// once hands out these orders as the only batch.
func once(ids ...domain.OrderID) func(postgres.OverdueOrder) ([]postgres.OverdueOrder, error) {
	return func(after postgres.OverdueOrder) ([]postgres.OverdueOrder, error) {
		var batch []postgres.OverdueOrder
		for _, id := range ids {
			if after.ID == "" {
				batch = append(batch, postgres.OverdueOrder{ID: id, DueAt: time.Now()})
			}
		}
		return batch, nil
	}
}

// While the database is away each sweep says so in one line, and the next one tries again.
func TestSweepWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	var sweeps atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	store := &fakeOverdue{pick: func(postgres.OverdueOrder) ([]postgres.OverdueOrder, error) {
		if sweeps.Add(1) <= 3 {
			return nil, domain.ErrUnavailable
		}
		stop()
		return nil, nil
	}}
	log := &records{}
	config := reconciler.SweepConfig{Interval: 10 * time.Millisecond, Batch: 10}
	if err := reconciler.NewSweeper(config, store, prometheus.NewRegistry(), log.logger()).Run(ctx); err != nil {
		t.Error(err)
	}
	if lines := log.with("level="); sweeps.Load() != 4 || len(lines) != 3 || len(log.with("sweep is interrupted")) != 3 {
		t.Errorf("%d sweeps logged %q", sweeps.Load(), lines)
	}
}

// A database that goes away in the middle ends the sweep: no order is blamed for it. A
// failure that cannot be recorded for another reason does not.
func TestSweepEndsWhenTheDatabaseGoes(t *testing.T) {
	t.Parallel()
	ids := []domain.OrderID{"1", "2", "3", "4"}
	cursed := errors.New("cursed")
	for name, test := range map[string]struct {
		close, fail error
		closes      int // orders that were tried
		want        reconciler.SweepResult
		away        bool
	}{
		"closing":           {close: domain.ErrUnavailable, closes: 1, away: true},
		"recording":         {close: cursed, fail: domain.ErrUnavailable, closes: 1, want: reconciler.SweepResult{Failed: 1}, away: true},
		"recording refused": {close: cursed, fail: cursed, closes: 4, want: reconciler.SweepResult{Failed: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			closes := 0
			store := &fakeOverdue{
				pick:  once(ids...),
				close: func(domain.OrderID) (*domain.Order, error) { closes++; return nil, test.close },
				fail:  func(domain.OrderID) error { return test.fail },
			}
			config := reconciler.SweepConfig{Interval: time.Second, Batch: 10}
			result, err := reconciler.NewSweeper(config, store, prometheus.NewRegistry(), (&records{}).logger()).Sweep(t.Context())
			if result != test.want || errors.Is(err, domain.ErrUnavailable) != test.away || closes != test.closes {
				t.Errorf("%+v, %v after %d orders, want %+v after %d", result, err, closes, test.want, test.closes)
			}
		})
	}
}

// An order in hand is finished when the end comes, and no other one is begun.
func TestSweepFinishesWhatItHasInHand(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	closes := 0
	store := &fakeOverdue{pick: once("1", "2", "3"), close: func(domain.OrderID) (*domain.Order, error) {
		stop()
		closes++
		return nil, nil
	}}
	config := reconciler.SweepConfig{Interval: time.Second, Batch: 10}
	result, err := reconciler.NewSweeper(config, store, prometheus.NewRegistry(), (&records{}).logger()).Sweep(ctx)
	if err != nil || closes != 1 || result.Skipped != 1 {
		t.Errorf("%+v, %v after %d orders", result, err, closes)
	}
}

func TestSweepConfigNamesTheVariable(t *testing.T) {
	t.Parallel()
	good := reconciler.SweepConfig{Interval: 30 * time.Second, Grace: time.Minute, Batch: 200}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for variable, change := range map[string]func(*reconciler.SweepConfig){
		"SWEEP_INTERVAL": func(c *reconciler.SweepConfig) { c.Interval = 0 },
		"SWEEP_GRACE":    func(c *reconciler.SweepConfig) { c.Grace = -1 },
		"SWEEP_BATCH":    func(c *reconciler.SweepConfig) { c.Batch = 0 },
	} {
		bad := good
		change(&bad)
		field, ok := errors.AsType[*domain.FieldError](bad.Validate())
		if !ok || field.Field != variable {
			t.Errorf("%s: %v", variable, bad.Validate())
		}
	}
}
