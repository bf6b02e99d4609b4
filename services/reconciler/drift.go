package reconciler

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

// DriftStore knows the orders and the timers that the database holds; see postgres.Sweep.
type DriftStore interface {
	Drift(ctx context.Context, grace time.Duration, sample int) (postgres.DriftCounts, error)
	Failing(ctx context.Context, limit int) ([]postgres.SweepFailure, error)
}

// Queues knows the queues of the topology, and those of recorded delays that are not
// configured any more; see rabbitmq.Inspector.
type Queues interface {
	Queues(ctx context.Context, recorded []time.Duration) ([]rabbitmq.QueueState, error)
}

// DelayRecords lists every delay that has, or had, a queue in a namespace.
type DelayRecords interface {
	List(ctx context.Context, namespace string) ([]time.Duration, error)
}

// Drift sets the orders that need a timer against the timers that are on their way.
//
// It is an estimate. The places are counted one after the other while timers move
// between them, and the broker counts no message that it is just moving or that a
// consumer has in hand. Second timers, of orders whose deadline was moved, hide missing
// ones. What stays over several measurements is real.
type Drift struct {
	MeasuredAt         time.Time        `json:"measured_at"`
	PendingOrders      int              `json:"pending_orders"`
	EarlySettledOrders int              `json:"early_settled_orders" doc:"Paid ahead of a deadline that is still to come: their timers are under way too."`
	OverdueOrders      int              `json:"overdue_orders" doc:"Pending past their deadline."`
	LateOrders         int              `json:"late_orders" doc:"Overdue by more than SWEEP_GRACE."`
	LateSeconds        float64          `json:"late_seconds" doc:"How long the oldest late order is overdue."`
	LateSample         []domain.OrderID `json:"late_sample" doc:"The oldest late orders, 20 at most."`
	FailingOrders      int              `json:"failing_orders" doc:"Late orders that the sweep could not close and that back off."`
	FailingSample      []FailingOrder   `json:"failing_sample" doc:"Those that failed most often, 20 at most."`
	Timers             []TimerPlace     `json:"timers" doc:"In the order timers pass these places."`
	ExpectedTimers     int              `json:"expected_timers" doc:"One for each pending and each early settled order."`
	FoundTimers        int              `json:"found_timers"`
	MissingTimers      int              `json:"missing_timers" doc:"Expected and not found."`
	SurplusTimers      int              `json:"surplus_timers" doc:"Found and not expected: harmless, the row decides."`
	Findings           []Finding        `json:"findings" doc:"What is wrong with the queues, as of the last look."`
}

// TimerPlace is a place where timers wait.
type TimerPlace struct {
	Place  string `json:"place" doc:"outbox, parked, or the name of a queue."`
	Timers int    `json:"timers" doc:"In the parking queue: messages of any kind that were not stored yet."`
}

// FailingOrder is an order that the sweep could not close.
type FailingOrder struct {
	OrderID       domain.OrderID `json:"order_id"`
	Attempts      int            `json:"attempts"`
	NextAttemptAt time.Time      `json:"next_attempt_at"`
	LastError     string         `json:"last_error"`
}

// Places that are not queues.
const (
	placeOutbox = "outbox"
	placeParked = "parked"
)

const (
	driftSample  = 20
	driftEvery   = 15 * time.Second
	driftTimeout = 10 * time.Second // of one measurement
)

// Meter measures the drift.
type Meter struct {
	store     DriftStore
	delays    DelayRecords
	queues    Queues
	namespace string
	grace     time.Duration
	logger    *slog.Logger

	missing, surplus, late prometheus.Gauge
}

// NewMeter returns a meter that registers its metrics with reg. An order is late when it
// is overdue by more than grace.
func NewMeter(store DriftStore, delays DelayRecords, queues Queues, namespace string, grace time.Duration, reg prometheus.Registerer, logger *slog.Logger) *Meter {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help + " The smaller of two measurements in a row."})
		reg.MustRegister(g)
		return g
	}
	return &Meter{
		store: store, delays: delays, queues: queues, namespace: namespace, grace: grace, logger: logger,
		missing: gauge("ordertimeout_drift_missing_timers", "Timers that should be on their way and were not found."),
		surplus: gauge("ordertimeout_drift_surplus_timers", "Timers that are on their way although no order needs them."),
		late:    gauge("ordertimeout_late_orders", "Pending orders that are overdue by more than SWEEP_GRACE."),
	}
}

// Run keeps the gauges up to date until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	ticker := time.NewTicker(driftEvery)
	defer ticker.Stop()
	m.observe(ctx, ticker.C)
	return nil
}

// observe measures at once and at each tick.
func (m *Meter) observe(ctx context.Context, ticks <-chan time.Time) {
	for before := (*Drift)(nil); ctx.Err() == nil; {
		drift, err := m.Measure(ctx)
		switch {
		case err == nil:
			m.show(before, drift)
			before = &drift
		case ctx.Err() == nil:
			m.logger.Warn("drift cannot be measured, trying again", "error", err)
		}
		select {
		case <-ticks:
		case <-ctx.Done():
		}
	}
}

// show waits for a second measurement: a single one counts what is just moving.
func (m *Meter) show(before *Drift, now Drift) {
	if before == nil {
		return
	}
	m.missing.Set(float64(min(before.MissingTimers, now.MissingTimers)))
	m.surplus.Set(float64(min(before.SurplusTimers, now.SurplusTimers)))
	m.late.Set(float64(min(before.LateOrders, now.LateOrders)))
}

// Measure measures once. It returns an error that is domain.ErrUnavailable while the
// database or the broker is away.
func (m *Meter) Measure(ctx context.Context) (Drift, error) {
	ctx, cancel := context.WithTimeout(ctx, driftTimeout)
	defer cancel()
	recorded, err := m.delays.List(ctx, m.namespace)
	if err != nil {
		return Drift{}, err
	}
	failing, err := m.store.Failing(ctx, driftSample)
	if err != nil {
		return Drift{}, err
	}
	// The database first and the queues in the order of the flow: a timer that moves
	// meanwhile is rather counted twice than never.
	counts, err := m.store.Drift(ctx, m.grace, driftSample)
	if err != nil {
		return Drift{}, err
	}
	queues, err := m.queues.Queues(ctx, recorded)
	if err != nil {
		return Drift{}, err
	}
	d := compare(counts, queues)
	for _, f := range failing {
		d.FailingSample = append(d.FailingSample, FailingOrder{OrderID: f.OrderID, Attempts: f.Attempts, NextAttemptAt: f.NextAttemptAt.UTC(), LastError: f.LastError})
	}
	return d, nil
}

func compare(c postgres.DriftCounts, queues []rabbitmq.QueueState) Drift {
	d := Drift{
		MeasuredAt:    c.At.UTC(),
		PendingOrders: c.Pending, EarlySettledOrders: c.EarlySettled, OverdueOrders: c.Overdue,
		LateOrders: c.Late, LateSeconds: c.LateFor.Seconds(), LateSample: append([]domain.OrderID{}, c.LateOrders...),
		FailingOrders: c.FailingOrders, FailingSample: []FailingOrder{},
		ExpectedTimers: c.Pending + c.EarlySettled,
		Timers:         []TimerPlace{{placeOutbox, c.OutboxTimers}},
		Findings:       []Finding{},
	}
	for _, q := range queues {
		if q.HoldsTimers() || q.Role == rabbitmq.RoleParking {
			d.Timers = append(d.Timers, TimerPlace{q.Name, q.Messages})
		}
	}
	d.Timers = append(d.Timers, TimerPlace{placeParked, c.ParkedTimers})
	for _, place := range d.Timers {
		d.FoundTimers += place.Timers
	}
	d.MissingTimers = max(0, d.ExpectedTimers-d.FoundTimers)
	d.SurplusTimers = max(0, d.FoundTimers-d.ExpectedTimers)
	return d
}
