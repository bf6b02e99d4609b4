package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

// Runs is the store of replay runs; see postgres.Replays.
type Runs interface {
	Lease(ctx context.Context, lease time.Duration) (id string, ok bool, err error)
	Renew(ctx context.Context, id string, lease time.Duration) error
	Get(ctx context.Context, id string) (postgres.Run, error)
	Send(ctx context.Context, id string, limit int, send func(context.Context, []postgres.ReplayItem) []postgres.ReplayVerdict) (postgres.SendResult, error)
	Advance(ctx context.Context, id string) error
	FailCanary(ctx context.Context, id string) error
	GiveUp(ctx context.Context, id string, patience time.Duration) (int, error)
	Finish(ctx context.Context, id string) (finished bool, err error)
}

// Publisher sends messages and returns one error each, nil when a queue has it.
type Publisher interface {
	PublishAll(ctx context.Context, out []rabbitmq.Outgoing) []error
}

const (
	replayPoll  = 500 * time.Millisecond // for new runs, and for outcomes
	replayBatch = 500                    // messages claimed and published pipelined in one transaction

	// A lease outlives several renewals. When its holder dies another reconciler goes on
	// after it.
	runLease      = 6 * time.Second
	renewEvery    = 2 * time.Second
	returnTimeout = 2 * time.Second // for giving a lease back at the end

	// sendTimeout bounds the confirms of a batch, and with it the claiming transaction.
	sendTimeout = 5 * time.Second
	passTimeout = sendTimeout + 10*time.Second

	// silence is added to the ladder's length before a message that was sent and of which
	// nothing was heard is given up: a consumer may hold it for 15 minutes while its
	// database is away, and more than once.
	silence = time.Hour
)

// Replayer works on replay runs, each until it is finished.
type Replayer struct {
	runs      Runs
	publisher Publisher
	topology  rabbitmq.Topology
	limit     int           // of replays a message
	patience  time.Duration // until an outcome is given up
	logger    *slog.Logger
	messages  *prometheus.CounterVec
}

// NewReplayer returns a replayer that registers its metrics with reg. ladder is the
// consumers'; limit bounds how often a message is replayed, over all its parkings.
func NewReplayer(runs Runs, p Publisher, t rabbitmq.Topology, ladder domain.Ladder, limit int, reg prometheus.Registerer, logger *slog.Logger) *Replayer {
	r := &Replayer{
		runs: runs, publisher: p, topology: t, limit: limit, patience: silence, logger: logger,
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ordertimeout_replayed_messages_total",
			Help: "Parked messages whose turn in a replay run came, by what was done: sent, resolved, skipped, or deferred because the broker took nothing.",
		}, []string{"result"}),
	}
	for _, wait := range ladder {
		r.patience += wait
	}
	reg.MustRegister(r.messages)
	return r
}

// Run takes up runs until ctx ends. Batches in hand are finished, and another
// reconciler goes on at once.
func (r *Replayer) Run(ctx context.Context) error {
	var working sync.WaitGroup
	defer working.Wait()
	for ctx.Err() == nil {
		id, ok, err := r.runs.Lease(ctx, runLease)
		if err != nil && ctx.Err() == nil {
			r.logger.Warn("replay runs cannot be looked for, trying again", "error", err)
		}
		if ok {
			working.Go(func() { r.work(ctx, id) })
			continue
		}
		pause(ctx, replayPoll)
	}
	return nil
}

// work advances one run until it is finished or ctx ends.
func (r *Replayer) work(ctx context.Context, id string) {
	logger := r.logger.With("run_id", id)
	stopRenewing := r.keepLease(ctx, id, logger)
	defer stopRenewing()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = replayPoll, 5*time.Second
	for ctx.Err() == nil {
		finished, err := r.advance(ctx, id, logger)
		switch {
		case finished:
			return
		case ctx.Err() != nil:
		case err != nil:
			logger.Warn("replay run is interrupted, trying again", "error", err)
			pause(ctx, wait.NextBackOff())
		default:
			wait.Reset()
			pause(ctx, replayPoll)
		}
	}
}

// keepLease renews the lease until the returned function is called, which gives it back.
func (r *Replayer) keepLease(ctx context.Context, id string, logger *slog.Logger) (stop func()) {
	renewing, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for renewing.Err() == nil {
			if err := r.runs.Renew(renewing, id, runLease); err != nil && renewing.Err() == nil {
				logger.Warn("lease of the replay run cannot be renewed", "error", err)
			}
			pause(renewing, renewEvery)
		}
	}()
	return func() {
		cancel()
		<-done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
		defer cancel()
		_ = r.runs.Renew(ctx, id, 0) // else it runs out
	}
}

// advance does what a run needs next and reports true when nothing is left.
func (r *Replayer) advance(ctx context.Context, id string, logger *slog.Logger) (finished bool, err error) {
	run, err := r.runs.Get(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case run.Finished():
		return true, nil
	case run.Status == postgres.RunCanary:
		return false, r.advanceCanary(ctx, run, logger)
	case run.Status == postgres.RunRunning && run.Waiting > 0:
		return false, r.sendAll(ctx, run, run.Waiting)
	}
	if n, err := r.runs.GiveUp(ctx, id, r.patience); err != nil {
		return false, err
	} else if n > 0 {
		logger.Error("nothing was heard of replayed messages, they are parked again", "count", n, "after", r.patience.String())
	}
	if finished, err = r.runs.Finish(ctx, id); finished {
		logger.Info("replay run finished", "total", run.Total, "handled", run.Handled, "failed_again", run.FailedAgain,
			"resolved", run.Resolved, "skipped", run.Skipped, "unknown", run.Unknown)
	}
	return finished, err
}

// advanceCanary sends the first messages and waits for their outcomes. A message that
// is resolved or skipped says nothing about the cure: the next one is sent instead.
func (r *Replayer) advanceCanary(ctx context.Context, run postgres.Run, logger *slog.Logger) error {
	out := run.Sent + run.Handled
	switch {
	case run.FailedAgain+run.Unknown > 0:
		logger.Warn("canary failed again, the rest is not replayed", "rest", run.Waiting)
		return r.runs.FailCanary(ctx, run.ID)
	case run.Handled >= run.Canaries, run.Waiting == 0 && run.Sent == 0:
		logger.Info("canary was handled, the rest follows", "rest", run.Waiting)
		return r.runs.Advance(ctx, run.ID)
	case out < run.Canaries && run.Waiting > 0:
		return r.sendAll(ctx, run, run.Canaries-out)
	default:
		_, err := r.runs.GiveUp(ctx, run.ID, r.patience)
		return err
	}
}

// sendAll sends up to most waiting messages at the run's rate, over those that need not
// be sent. It ends early when the broker takes nothing.
func (r *Replayer) sendAll(ctx context.Context, run postgres.Run, most int) error {
	limiter, batch := pace(run.Rate)
	for most > 0 && ctx.Err() == nil {
		n := min(most, batch)
		if err := limiter.WaitN(ctx, n); err != nil {
			return err
		}
		// A batch in hand is finished: what is half done would be sent twice.
		pass, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
		result, err := r.runs.Send(pass, run.ID, n, r.send)
		cancel()
		switch {
		case err != nil:
			return err
		case result.Again > 0:
			return fmt.Errorf("%d messages were not taken by the broker: %w", result.Again, domain.ErrUnavailable)
		case result.Taken == 0: // all done, or stopped
			return nil
		}
		most -= result.Sent
	}
	return nil
}

// pace turns a rate in messages a second, 0 for none, into a limiter and the size of
// batches: four a second, so that a slow run is even.
func pace(perSecond float64) (*rate.Limiter, int) {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, 0), replayBatch
	}
	batch := min(replayBatch, max(1, int(perSecond/4)))
	return rate.NewLimiter(rate.Limit(perSecond), batch), batch
}

// send publishes what makes sense and gives a verdict for each message.
func (r *Replayer) send(ctx context.Context, items []postgres.ReplayItem) []postgres.ReplayVerdict {
	verdicts := make([]postgres.ReplayVerdict, len(items))
	var out []rabbitmq.Outgoing
	var sent []int // index in items of each message in out
	for i, item := range items {
		if verdicts[i] = r.decide(item); verdicts[i].Action == domain.ReplaySend {
			out = append(out, r.outgoing(item))
			sent = append(sent, i)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	for k, err := range r.publisher.PublishAll(ctx, out) {
		verdicts[sent[k]] = r.published(items[sent[k]], err)
	}
	r.count(verdicts)
	return verdicts
}

func (r *Replayer) decide(item postgres.ReplayItem) postgres.ReplayVerdict {
	skip := func(reason string) postgres.ReplayVerdict {
		return postgres.ReplayVerdict{Action: domain.ReplaySkip, Reason: reason}
	}
	if _, known := rabbitmq.ParseConsumer(item.Consumer); !known {
		return skip("nothing tells whose message it is")
	}
	if item.Replays >= r.limit {
		return skip(fmt.Sprintf("it was replayed %d times already, REPLAY_LIMIT is %d", item.Replays, r.limit))
	}
	decision := domain.DecideReplay(item.Replayed(), item.OrderStatus)
	return postgres.ReplayVerdict{Action: decision.Action, Reason: decision.Reason}
}

func (r *Replayer) outgoing(item postgres.ReplayItem) rabbitmq.Outgoing {
	eventType := item.Type
	if event, err := domain.DecodeEvent(item.Replayed()); err == nil {
		eventType = string(event.Type())
	}
	return r.topology.Replay(rabbitmq.Consumer(item.Consumer), item.MessageID, item.ID, eventType, item.Headers, item.Replayed())
}

func (r *Replayer) published(item postgres.ReplayItem, err error) postgres.ReplayVerdict {
	switch {
	case err == nil:
		r.logger.Debug("message replayed", "parked_id", item.ID, "message_id", item.MessageID, "order_id", item.OrderID)
		return postgres.ReplayVerdict{Action: domain.ReplaySend}
	case errors.Is(err, rabbitmq.ErrTooLarge):
		return postgres.ReplayVerdict{Action: domain.ReplaySkip, Reason: err.Error()}
	default: // the broker is away, or the queue is: the topology comes back
		r.logger.Warn("message cannot be replayed now", "parked_id", item.ID, "message_id", item.MessageID, "error", err)
		return postgres.ReplayVerdict{Again: true}
	}
}

func (r *Replayer) count(verdicts []postgres.ReplayVerdict) {
	names := map[domain.ReplayAction]string{domain.ReplaySend: "sent", domain.ReplayResolve: "resolved", domain.ReplaySkip: "skipped"}
	for _, v := range verdicts {
		name := names[v.Action]
		if v.Again {
			name = "deferred"
		}
		r.messages.WithLabelValues(name).Inc()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
