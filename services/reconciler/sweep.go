package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/telemetry"
)

// Overdue is the store of the sweep; see postgres.Sweep.
type Overdue interface {
	Pick(ctx context.Context, grace time.Duration, after postgres.OverdueOrder, limit int) ([]postgres.OverdueOrder, error)
	Close(ctx context.Context, id domain.OrderID, grace time.Duration) (*domain.Order, error)
	Fail(ctx context.Context, id domain.OrderID, cause error) (postgres.SweepFailure, error)
	Forget(ctx context.Context) (failing int, err error)
	Share() int
}

// SweepConfig has a default for everything.
type SweepConfig struct {
	// Interval is the time between two sweeps.
	Interval time.Duration `env:"SWEEP_INTERVAL" envDefault:"30s"`

	// Grace is how long an order must be overdue: until then its timer may just be late.
	Grace time.Duration `env:"SWEEP_GRACE" envDefault:"1m"`

	// Batch is how many orders are looked up at once. Each is closed in a transaction of
	// its own.
	Batch int `env:"SWEEP_BATCH" envDefault:"200"`
}

// Validate returns a domain.FieldError that names the variable.
func (c SweepConfig) Validate() error {
	if c.Interval < 100*time.Millisecond || c.Interval > time.Hour {
		return &domain.FieldError{Field: "SWEEP_INTERVAL", Got: c.Interval.String(), Allowed: "100ms to 1h"}
	}
	if c.Grace < 0 || c.Grace > 24*time.Hour {
		return &domain.FieldError{Field: "SWEEP_GRACE", Got: c.Grace.String(), Allowed: "0s to 24h"}
	}
	if c.Batch < 1 || c.Batch > 10_000 {
		return &domain.FieldError{Field: "SWEEP_BATCH", Got: c.Batch, Allowed: "1 to 10000"}
	}
	return nil
}

const (
	sweepWorkers = 4 // orders closed at once, or the store's share of connections if that is less

	// sweepTimeout bounds one order. The database's own statement timeout is shorter.
	sweepTimeout = 15 * time.Second
)

// Sweeper closes orders that are overdue because their timer was lost. Any number of
// sweepers and closers work side by side: whoever has the row decides, the others skip it.
type Sweeper struct {
	config  SweepConfig
	store   Overdue
	workers int
	logger  *slog.Logger
	metrics sweepMetrics
}

type sweepMetrics struct {
	closings       telemetry.Closings
	lost, failures prometheus.Counter
	failing        prometheus.Gauge
}

// NewSweeper returns a sweeper that registers its metrics with reg.
func NewSweeper(c SweepConfig, store Overdue, reg prometheus.Registerer, logger *slog.Logger) *Sweeper {
	s := &Sweeper{config: c, store: store, workers: min(sweepWorkers, store.Share()), logger: logger, metrics: sweepMetrics{
		closings: telemetry.NewClosings(reg),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ordertimeout_sweep_lost_timers_total", Help: "Orders closed by the sweep because their timer did not come.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ordertimeout_sweep_failures_total", Help: "Attempts of the sweep to close an order that failed.",
		}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ordertimeout_sweep_failing_orders", Help: "Overdue orders that the sweep could not close and that back off.",
		}),
	}}
	reg.MustRegister(s.metrics.lost, s.metrics.failures, s.metrics.failing)
	return s
}

// Run sweeps at once and then every interval, until ctx ends. Orders in hand are
// finished.
func (s *Sweeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		result, err := s.Sweep(ctx)
		s.report(ctx, result, err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// SweepResult counts what became of the overdue orders that one sweep found.
type SweepResult struct {
	Closed  int
	Failed  int // these back off
	Skipped int // in somebody else's hand, or settled meanwhile
}

func (r *SweepResult) add(other SweepResult) {
	r.Closed += other.Closed
	r.Failed += other.Failed
	r.Skipped += other.Skipped
}

// Sweep looks once at each order that is overdue by more than the grace and does not
// back off, oldest first, until none is left or ctx ends. An order that cannot be
// closed keeps no other one from being closed. The error says that the database went
// away meanwhile; the result counts what was done until then.
func (s *Sweeper) Sweep(ctx context.Context) (SweepResult, error) {
	var total SweepResult
	var last postgres.OverdueOrder
	for ctx.Err() == nil {
		batch, err := s.store.Pick(ctx, s.config.Grace, last, s.config.Batch)
		if err != nil {
			return total, err
		}
		if len(batch) == 0 {
			break
		}
		last = batch[len(batch)-1]
		result, err := s.closeAll(ctx, batch)
		total.add(result)
		if err != nil {
			return total, err
		}
	}
	failing, err := s.store.Forget(ctx)
	if err == nil {
		s.metrics.failing.Set(float64(failing))
	}
	return total, err
}

// closeAll closes a batch with several workers. It ends early when the database is away.
func (s *Sweeper) closeAll(ctx context.Context, batch []postgres.OverdueOrder) (SweepResult, error) {
	var mu sync.Mutex
	var total SweepResult
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.workers)
	for _, order := range batch {
		group.Go(func() error {
			if ctx.Err() != nil { // ended, or the database went away under another worker
				return nil
			}
			result, err := s.closeOne(ctx, order)
			mu.Lock()
			defer mu.Unlock()
			total.add(result)
			return err
		})
	}
	err := group.Wait()
	return total, err
}

// closeOne returns an error only when the database is away.
func (s *Sweeper) closeOne(ctx context.Context, o postgres.OverdueOrder) (SweepResult, error) {
	// An order in hand is finished although ctx ends, so that it is counted too.
	inHand, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	order, err := s.store.Close(inHand, o.ID, s.config.Grace)
	switch {
	case errors.Is(err, domain.ErrUnavailable) && inHand.Err() == nil: // what used up its time alone may be this one row
		return SweepResult{}, err
	case err != nil:
		return SweepResult{Failed: 1}, s.fail(ctx, o, err)
	case order == nil:
		return SweepResult{Skipped: 1}, nil
	}
	late := order.Snapshot().ClosedAt.Sub(order.DueAt())
	s.metrics.lost.Inc()
	s.metrics.closings.Add(domain.BySweep, late)
	s.logger.Warn("timer was lost, order closed by the sweep", "order_id", o.ID, "due_at", order.DueAt().UTC(), "late", late.String())
	return SweepResult{Closed: 1}, nil
}

func (s *Sweeper) fail(ctx context.Context, o postgres.OverdueOrder, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	s.metrics.failures.Inc()
	logger := s.logger.With("order_id", o.ID, "due_at", o.DueAt.UTC(), "error", cause)
	failure, err := s.store.Fail(ctx, o.ID, cause)
	if err != nil {
		logger.Error("overdue order cannot be closed, and that cannot be recorded", "record_error", err)
		if errors.Is(err, domain.ErrUnavailable) {
			return err
		}
		return nil // the next sweep tries again
	}
	logger.Error("overdue order cannot be closed, it backs off", "attempt", failure.Attempts, "next_attempt_at", failure.NextAttemptAt.UTC())
	return nil
}

func (s *Sweeper) report(ctx context.Context, r SweepResult, err error) {
	logger := s.logger.With("closed", r.Closed, "failed", r.Failed, "skipped", r.Skipped)
	switch {
	case err != nil && ctx.Err() == nil:
		logger.Warn("sweep is interrupted, the next one goes on", "error", err)
	case r.Failed > 0:
		logger.Warn("sweep failed in part")
	case r.Closed > 0:
		logger.Info("sweep finished")
	}
}
