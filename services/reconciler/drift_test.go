package reconciler_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/services/reconciler"
)

// slowTopology declares a topology in which messages stay where they are put.
func slowTopology(t *testing.T) (rabbitmq.Topology, *rabbitmq.Connection) {
	t.Helper()
	delays := domain.NewDelays(domain.Windows{time.Hour}, domain.Tiers{10 * time.Minute})
	topology := rabbitmq.NewTopology(rabbitmqtest.Namespace(), delays, domain.Ladder{5 * time.Minute})
	conn := rabbitmq.Connect(rabbitmq.Config{URL: rabbitmqtest.URL(), Namespace: "x"}, "test", slog.New(slog.DiscardHandler))
	t.Cleanup(conn.Close)
	queues, exchanges := topology.Names()
	rabbitmqtest.Delete(t, queues, exchanges)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := topology.Declare(ctx, conn); err != nil {
		t.Fatal(err)
	}
	return topology, conn
}

// until polls until check returns an empty text, and fails with the last one.
func until(t *testing.T, check func() string) {
	t.Helper()
	for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		text := check()
		if text == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(text)
		}
	}
}

// Timers are found wherever they wait, and those that are lost are missing.
func TestDriftFindsTimersWhereverTheyWait(t *testing.T) {
	t.Parallel()
	shop := newOverdueShop(t, postgrestest.NewURL(t))
	topology, conn := slowTopology(t)
	publisher := rabbitmq.NewPublisher(conn)
	send := func(n int, route rabbitmq.Route) {
		for range n {
			if err := publisher.Publish(route.Topic(), message.NewMessage(watermill.NewUUID(), []byte("x"))); err != nil {
				t.Fatal(err)
			}
		}
	}
	late := shop.place(30, time.Hour)
	shop.place(10, -time.Hour)
	shop.exec(`UPDATE orders SET status = 'paid', paid_at = now() WHERE id IN (SELECT id FROM orders WHERE due_at > now() LIMIT 4)`)
	shop.exec(`INSERT INTO outbox (message_id, order_id, type, payload, due_at) SELECT gen_random_uuid(), gen_random_uuid(), 'order.timeout', '{}', now() FROM generate_series(1, 2)`)
	send(1, topology.TimerRoute(2*time.Hour))
	send(2, topology.TimerRoute(10*time.Minute))
	send(4, topology.TimerRoute(0))
	send(8, topology.RetryRoute(rabbitmq.Closer, 1))
	send(1, topology.ParkingRoute(rabbitmq.Closer))
	send(1, topology.RetryRoute(rabbitmq.Notifier, 1)) // not a timer
	send(1, topology.EventRoute(domain.TypeOrderPaid))
	if _, err := postgres.NewSweep(shop.db).Fail(shop.ctx, late[0], errors.New("cursed")); err != nil {
		t.Fatal(err)
	}

	meter := reconciler.NewMeter(postgres.NewSweep(shop.db), postgres.NewDelayQueues(shop.db), rabbitmq.NewInspector(topology, conn),
		topology.Namespace(), time.Minute, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	var drift reconciler.Drift
	until(t, func() string {
		var err error
		if drift, err = meter.Measure(shop.ctx); err != nil {
			t.Fatal(err)
		}
		if drift.FoundTimers != 18 || drift.ExpectedTimers != 40 || drift.MissingTimers != 22 || drift.SurplusTimers != 0 {
			return "found, expected, missing or surplus: " + asJSON(t, drift)
		}
		return ""
	})
	want := map[string]int{
		"outbox": 2, topology.DelayQueue(time.Hour): 1, topology.DelayQueue(10 * time.Minute): 2, topology.Queue(rabbitmq.Closer): 4,
		topology.Namespace() + ".closer.retry.1.5m.queue": 8, topology.ParkingQueue(): 1, "parked": 0,
	}
	if len(drift.Timers) != len(want) || drift.Timers[0].Place != "outbox" || drift.Timers[len(want)-1].Place != "parked" {
		t.Errorf("places: %+v", drift.Timers)
	}
	for _, place := range drift.Timers {
		if place.Timers != want[place.Place] {
			t.Errorf("%s: %d timers, want %d", place.Place, place.Timers, want[place.Place])
		}
	}
	if drift.PendingOrders != 36 || drift.EarlySettledOrders != 4 || drift.OverdueOrders != 30 || drift.LateOrders != 30 || len(drift.LateSample) != 20 || drift.LateSeconds < 3600 {
		t.Errorf("orders: %s", asJSON(t, drift))
	}
	if drift.FailingOrders != 1 || len(drift.FailingSample) != 1 || drift.FailingSample[0].OrderID != late[0] || drift.FailingSample[0].LastError != "cursed" {
		t.Errorf("failing: %s", asJSON(t, drift))
	}

	// The orders are settled; their timers are still there.
	shop.exec(`UPDATE orders SET status = 'closed', closed_at = now(), closed_by = 'sweep' WHERE status = 'pending' AND due_at < now()`)
	shop.exec(`UPDATE orders SET status = 'paid', paid_at = now() WHERE status = 'pending'`)
	shop.exec(`UPDATE orders SET due_at = now() WHERE status = 'paid'`)
	drift, err := meter.Measure(shop.ctx)
	if err != nil || drift.ExpectedTimers != 0 || drift.MissingTimers != 0 || drift.SurplusTimers != 18 {
		t.Errorf("%v, %s", err, asJSON(t, drift))
	}
	if text := asJSON(t, drift); !strings.Contains(text, `"late_sample":[]`) {
		t.Errorf("an empty list must stay a list: %s", text)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// driftScript gives one measurement after the other.
type driftScript struct {
	next func() (postgres.DriftCounts, error)
}

func (s driftScript) Drift(context.Context, time.Duration, int) (postgres.DriftCounts, error) {
	return s.next()
}

func (driftScript) Failing(context.Context, int) ([]postgres.SweepFailure, error) { return nil, nil }
func (driftScript) List(context.Context, string) ([]time.Duration, error)         { return nil, nil }
func (driftScript) Queues(context.Context, []time.Duration) ([]rabbitmq.QueueState, error) {
	return nil, nil
}

// A gauge shows the smaller of two measurements in a row, so what was just moving is
// not reported; a measurement that failed is logged and changes nothing.
func TestDriftGaugesNeedTwoMeasurements(t *testing.T) {
	t.Parallel()
	type gauges struct{ missing, surplus, late float64 }
	steps := []struct {
		counts postgres.DriftCounts
		err    error
		want   gauges // before this step
	}{
		{counts: postgres.DriftCounts{Pending: 5, Late: 3}},
		{counts: postgres.DriftCounts{Pending: 2, Late: 4}},
		{counts: postgres.DriftCounts{Pending: 9, Late: 9}, want: gauges{missing: 2, late: 3}},
		{err: domain.ErrUnavailable, want: gauges{missing: 2, late: 4}},
		{counts: postgres.DriftCounts{OutboxTimers: 6}, want: gauges{missing: 2, late: 4}},
		{counts: postgres.DriftCounts{OutboxTimers: 8}},
		{want: gauges{surplus: 6}},
	}
	reg, log := prometheus.NewRegistry(), &records{}
	ctx, stop := context.WithCancel(t.Context())
	step := 0
	script := driftScript{func() (postgres.DriftCounts, error) {
		now := steps[step]
		got := gauges{metric(t, reg, "ordertimeout_drift_missing_timers", ""), metric(t, reg, "ordertimeout_drift_surplus_timers", ""), metric(t, reg, "ordertimeout_late_orders", "")}
		if got != now.want {
			t.Errorf("before step %d: %+v, want %+v", step, got, now.want)
		}
		if step++; step == len(steps) {
			stop()
		}
		return now.counts, now.err
	}}
	ticks := make(chan time.Time)
	close(ticks)
	reconciler.NewMeter(script, script, script, "ns", time.Minute, reg, log.logger()).Observe(ctx, ticks)
	if step != len(steps) || len(log.with("drift cannot be measured")) != 1 {
		t.Errorf("%d steps, logged %q", step, log.with("level"))
	}
}
