// Package relay moves messages from the outbox to the broker.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

// Outbox is the store: Relay claims rows that no other relay has, hands them to send
// and deletes those that were sent.
type Outbox interface {
	Relay(ctx context.Context, limit int, send func(context.Context, []postgres.OutboxRow) []error) (postgres.RelayResult, error)
	Backlog(ctx context.Context) (postgres.Backlog, error)
}

// Publisher sends messages and returns one error each, nil when a queue has it.
type Publisher interface {
	PublishAll(ctx context.Context, out []rabbitmq.Outgoing) []error
}

// Config has a default for everything.
type Config struct {
	// Batch is how many rows one transaction claims and publishes pipelined.
	Batch int `env:"RELAY_BATCH" envDefault:"500"`

	// Poll is the pause after a poll that found less than a batch. It is the most that an
	// idle relay adds to a timer's lateness: half of it on average.
	Poll time.Duration `env:"RELAY_POLL" envDefault:"20ms"`
}

// Validate returns a domain.FieldError that names the variable.
func (c Config) Validate() error {
	if c.Batch < 1 || c.Batch > 10_000 {
		return &domain.FieldError{Field: "RELAY_BATCH", Got: c.Batch, Allowed: "1 to 10000"}
	}
	if c.Poll < time.Millisecond || c.Poll > time.Minute {
		return &domain.FieldError{Field: "RELAY_POLL", Got: c.Poll.String(), Allowed: "1ms to 1m"}
	}
	return nil
}

const (
	// sendTimeout bounds how long a batch waits for its confirms, and with it how long
	// the claiming transaction stays open.
	sendTimeout = 5 * time.Second

	backoffFirst = 200 * time.Millisecond // after a failed pass, doubling to
	backoffMost  = 3 * time.Second

	backlogEvery = time.Second // how often the gauges are read
)

// Relay publishes the outbox. Any number of relays share the work. Every row is sent
// at least once: a crash between confirm and commit repeats it, nothing loses it.
type Relay struct {
	config    Config
	outbox    Outbox
	publisher Publisher
	topology  rabbitmq.Topology
	logger    *slog.Logger
	metrics   metrics
}

type metrics struct {
	rows              *prometheus.CounterVec
	size, oldest, bad prometheus.Gauge
}

// New returns a relay that registers its metrics with reg.
func New(c Config, outbox Outbox, publisher Publisher, t rabbitmq.Topology, reg prometheus.Registerer, logger *slog.Logger) *Relay {
	r := &Relay{config: c, outbox: outbox, publisher: publisher, topology: t, logger: logger, metrics: metrics{
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ordertimeout_outbox_publishes_total",
			Help: "Outbox rows by result: sent, failed (the row is at fault and backs off) or deferred (the broker is away).",
		}, []string{"result"}),
		size:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "ordertimeout_outbox_rows", Help: "Rows that wait to be published."}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{Name: "ordertimeout_outbox_oldest_seconds", Help: "Age of the oldest row."}),
		bad:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "ordertimeout_outbox_failing_rows", Help: "Rows that could not be published and back off."}),
	}}
	reg.MustRegister(r.metrics.rows, r.metrics.size, r.metrics.oldest, r.metrics.bad)
	return r
}

// Run relays until ctx ends. A batch in hand is finished first.
func (r *Relay) Run(ctx context.Context) error {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		r.watchBacklog(ctx)
	}()
	defer func() { <-watching }()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = backoffFirst, backoffMost
	for ctx.Err() == nil {
		result, err := r.runOnce(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.logger.Warn("outbox cannot be read, trying again", "error", err)
			pause(ctx, wait.NextBackOff())
		case result.Deferred > 0:
			pause(ctx, wait.NextBackOff())
		case result.Claimed < r.config.Batch:
			wait.Reset()
			pause(ctx, r.config.Poll)
		default:
			wait.Reset()
		}
	}
	return nil
}

// runOnce moves one batch.
func (r *Relay) runOnce(ctx context.Context) (postgres.RelayResult, error) {
	result, err := r.outbox.Relay(ctx, r.config.Batch, r.send)
	if err != nil {
		return result, err
	}
	r.metrics.rows.WithLabelValues("sent").Add(float64(result.Sent))
	r.metrics.rows.WithLabelValues("failed").Add(float64(result.Failed))
	r.metrics.rows.WithLabelValues("deferred").Add(float64(result.Deferred))
	return result, nil
}

// send publishes rows and returns one error each. It finishes although ctx ends, so
// that a drain leaves no row in doubt.
func (r *Relay) send(ctx context.Context, rows []postgres.OutboxRow) []error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer cancel()
	errs := make([]error, len(rows))
	var out []rabbitmq.Outgoing
	var sent []int // index in rows of each message in out
	for i, row := range rows {
		route, err := r.route(row)
		if err != nil {
			errs[i] = err
			continue
		}
		msg := message.NewMessage(row.MessageID, row.Payload)
		msg.Metadata.Set(rabbitmq.MetaType, string(row.Type))
		out = append(out, rabbitmq.Outgoing{Route: route, Message: msg})
		sent = append(sent, i)
	}
	for k, err := range r.publisher.PublishAll(ctx, out) {
		errs[sent[k]] = err
	}
	r.report(rows, errs)
	return errs
}

// route says where a row goes. A timer waits for what is left of its time now, however
// long it was in the outbox.
func (r *Relay) route(row postgres.OutboxRow) (rabbitmq.Route, error) {
	switch {
	case row.Type == domain.TypeOrderTimeout && row.Timer:
		return r.topology.TimerRoute(row.Remaining), nil
	case slices.Contains(domain.BuyerEvents, row.Type):
		return r.topology.EventRoute(row.Type), nil
	default:
		return rabbitmq.Route{}, fmt.Errorf("no route for a message of type %q", row.Type)
	}
}

// report logs one line for each row at fault and one for an absent broker.
func (r *Relay) report(rows []postgres.OutboxRow, errs []error) {
	var away error
	deferred := 0
	for i, err := range errs {
		switch {
		case err == nil:
			r.logger.Debug("message published", "order_id", rows[i].OrderID, "message_id", rows[i].MessageID,
				"type", rows[i].Type, "waited", time.Since(rows[i].CreatedAt).String())
		case errors.Is(err, domain.ErrUnavailable):
			away, deferred = err, deferred+1
		default:
			r.logger.Error("message cannot be published, its row backs off", "order_id", rows[i].OrderID,
				"message_id", rows[i].MessageID, "type", rows[i].Type, "attempt", rows[i].Attempts+1, "error", err)
		}
	}
	if away != nil {
		r.logger.Warn("broker takes nothing, rows stay in the outbox", "rows", deferred, "error", away)
	}
}

func (r *Relay) watchBacklog(ctx context.Context) {
	for ctx.Err() == nil {
		if b, err := r.outbox.Backlog(ctx); err == nil {
			r.metrics.size.Set(float64(b.Rows))
			r.metrics.oldest.Set(b.Oldest.Seconds())
			r.metrics.bad.Set(float64(b.Failing))
		}
		pause(ctx, backlogEvery)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
