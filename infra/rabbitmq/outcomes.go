package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
)

// The story that a failed message carries, as metadata of its own. Every value is
// written anew at each failure, so headers never grow with retries or replays.
const (
	metaOwn = "ordertimeout-"

	MetaAttempts        = metaOwn + "attempts"         // failed attempts so far
	MetaConsumer        = metaOwn + "consumer"         // who failed
	MetaQueue           = metaOwn + "queue"            // where it first came from:
	MetaExchange        = metaOwn + "exchange"         //   its queue,
	MetaRoutingKey      = metaOwn + "routing-key"      //   exchange and routing key
	MetaFirstFailedAt   = metaOwn + "first-failed-at"  // RFC 3339, UTC
	MetaLastFailedAt    = metaOwn + "last-failed-at"   //
	MetaErrorClass      = metaOwn + "error-class"      // domain.Class
	MetaError           = metaOwn + "error"            // text, capped
	MetaDeathHistory    = metaOwn + "death-history"    // the broker's x-death at the first failure, as JSON text
	MetaOriginalHeaders = metaOwn + "original-headers" // headers of other types, as JSON text
)

const (
	moveTimeout = 10 * time.Second // for one confirmed move of a message

	// A message held back because a dependency is away is tried again after holdFirst,
	// doubling to holdMost.
	holdFirst = 200 * time.Millisecond
	holdMost  = 5 * time.Second

	// A broker lets a consumer keep a message for 30 minutes.
	defaultHoldLimit = 15 * time.Minute
)

// Outcomes carries out domain.Decide for one consumer, as a Watermill middleware. It
// belongs outside of every other middleware, so that it sees every error, and it
// recovers panics itself.
//
// A message that goes elsewhere is published with confirm and mandatory first; only
// then the handler reports success and the router acks. When the move fails the
// message stays unacked and the move is tried again.
type Outcomes struct {
	Consumer  Consumer
	Topology  Topology
	Publisher *Publisher
	Ladder    domain.Ladder
	Logger    *slog.Logger
	Stopping  <-chan struct{} // closed when the process drains: nothing is held any longer
	Count     *prometheus.CounterVec

	// Replayed is told, before the ack, that the consumer is done with a message that a
	// replay had taken from a parking, or has put it back to wait for its time. When it
	// fails the handler is called again.
	Replayed func(ctx context.Context, parkedID string) error

	// HoldLimit is how long a message is held while a dependency is away. Then a copy
	// goes to the end of the consumer's queue: the broker closes the channel of a consumer
	// that keeps a message for 30 minutes, and a mere return counts towards DeliveryLimit,
	// so that a long outage would park what is healthy. 0 is 15 minutes.
	HoldLimit time.Duration
}

// NewOutcomeCounter returns the counter of what became of messages, with labels
// consumer, outcome and class (empty unless something failed).
func NewOutcomeCounter(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ordertimeout_messages_handled_total",
		Help: "Messages by consumer and by what became of them: done, redelay, hold, retry or park.",
	}, []string{"consumer", "outcome", "class"})
	reg.MustRegister(c)
	return c
}

// Middleware implements message.HandlerMiddleware. The handler may be called several
// times for one message while a dependency is away.
func (o Outcomes) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, o.handle(msg, next)
	}
}

func (o Outcomes) handle(msg *message.Message, next message.HandlerFunc) error {
	failed := attempts(msg)
	deadline := o.deadline()
	wait := newHold(deadline)
	for held := false; ; held = true {
		err := o.attempt(msg, next)
		decision := domain.Decide(err, failed, o.Ladder)
		o.Count.WithLabelValues(string(o.Consumer), decision.Outcome.String(), decision.Class).Inc()
		if !held || decision.Outcome != domain.Hold { // an outage is one line a message
			o.log(msg, decision, err)
		}
		switch {
		case decision.Outcome == domain.Done:
			return nil
		case decision.Outcome != domain.Hold || wait.over():
			return o.move(msg, decision, err, deadline)
		case !wait.next(o.Stopping):
			return err
		}
	}
}

// attempt calls the handler once and settles the replay that the message is part of.
func (o Outcomes) attempt(msg *message.Message, next message.HandlerFunc) error {
	err := recovering(next, msg)
	parkedID := msg.Metadata.Get(MetaReplayOf)
	var notDue *domain.NotDueError
	if parkedID == "" || o.Replayed == nil || (err != nil && !errors.As(err, &notDue)) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), moveTimeout)
	defer cancel()
	if markErr := o.Replayed(ctx, parkedID); markErr != nil {
		return fmt.Errorf("settling the replay: %w", markErr)
	}
	return err
}

// move publishes the message to where it goes next. It tries at least once and until
// deadline; then the message is returned.
func (o Outcomes) move(msg *message.Message, decision domain.Decision, cause error, deadline time.Time) error {
	out := o.outgoing(msg, decision, cause)
	out.delivered = true
	for wait := newHold(deadline); ; {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), moveTimeout)
		err := o.Publisher.PublishAll(ctx, []Outgoing{out})[0]
		cancel()
		if err == nil {
			return nil
		}
		o.Count.WithLabelValues(string(o.Consumer), "move_failed", decision.Class).Inc()
		o.Logger.Error("message cannot be moved, it stays where it is",
			"message_id", msg.UUID, "exchange", out.Route.Exchange, "routing_key", out.Route.Key, "error", err)
		if wait.over() || !wait.next(o.Stopping) {
			return fmt.Errorf("moving to %s: %w", out.Route.Key, err)
		}
	}
}

func (o Outcomes) outgoing(msg *message.Message, decision domain.Decision, cause error) Outgoing {
	moved := message.NewMessage(msg.UUID, msg.Payload)
	for key, value := range msg.Metadata {
		if sendable(key) {
			moved.Metadata.Set(key, value)
		}
	}
	switch decision.Outcome {
	case domain.Hold:
		return Outgoing{Route: Route{Key: o.Topology.Queue(o.Consumer)}, Message: moved}
	case domain.Redelay:
		delete(moved.Metadata, MetaReplayOf) // settled: from here on it is a timer like any other
		return Outgoing{Route: o.Topology.TimerRoute(decision.Wait), Message: moved}
	case domain.Retry:
		o.tellStory(moved, msg, decision, cause)
		return Outgoing{Route: o.Topology.RetryRoute(o.Consumer, decision.Attempt), Message: moved}
	default:
		o.tellStory(moved, msg, decision, cause)
		return Outgoing{Route: o.Topology.ParkingRoute(o.Consumer), Message: moved}
	}
}

func (o Outcomes) tellStory(moved, msg *message.Message, decision domain.Decision, cause error) {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	first := func(key, value string) { // of the first failure, kept by the later ones
		if moved.Metadata.Get(key) == "" {
			moved.Metadata.Set(key, value)
		}
	}
	first(MetaQueue, msg.Metadata.Get(metaQueue))
	first(MetaExchange, msg.Metadata.Get(metaExchange))
	first(MetaRoutingKey, msg.Metadata.Get(metaRoutingKey))
	first(MetaFirstFailedAt, now)
	if headers := foreignHeaders(msg); headers != "" {
		first(MetaOriginalHeaders, headers)
	}
	if death := msg.Metadata.Get(metaDeath); death != "" { // later ones tell of rungs only
		first(MetaDeathHistory, clip(death, maxHeaderValue))
	}
	moved.Metadata.Set(MetaConsumer, string(o.Consumer))
	moved.Metadata.Set(MetaAttempts, strconv.Itoa(decision.Attempt))
	moved.Metadata.Set(MetaLastFailedAt, now)
	moved.Metadata.Set(MetaErrorClass, decision.Class)
	moved.Metadata.Set(MetaError, clip(cause.Error(), maxHeaderValue))
}

func (o Outcomes) log(msg *message.Message, d domain.Decision, err error) {
	if d.Outcome == domain.Done && !o.Logger.Enabled(msg.Context(), slog.LevelDebug) {
		return
	}
	logger := o.Logger.With("consumer", o.Consumer, "message_id", msg.UUID, "outcome", d.Outcome.String(), "attempt", d.Attempt)
	switch d.Outcome {
	case domain.Done:
		logger.Debug("message handled")
	case domain.Redelay:
		logger.Info("timer is not due yet", "wait", d.Wait.String())
	case domain.Hold:
		logger.Warn("dependency away, message held", "error", err)
	case domain.Retry:
		logger.Warn("handling failed, message waits on the ladder", "wait", d.Wait.String(), "class", d.Class, "error", err)
	case domain.Park:
		logger.Error("handling failed for good, message parked", "class", d.Class, "error", err)
	}
}

// attempts reads the failed attempts so far. Anything but a plain number above zero,
// which only a stranger can have written, counts as none.
func attempts(msg *message.Message) int {
	n, err := strconv.Atoi(msg.Metadata.Get(MetaAttempts))
	if err != nil || n < 0 {
		return 0
	}
	return min(n, 1000)
}

// recovering turns a panic into an error with its stack.
func recovering(next message.HandlerFunc, msg *message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", domain.ErrPanic, r, clip(string(debug.Stack()), maxHeaderValue/2))
		}
	}()
	_, err = next(msg)
	return err
}

// hold waits longer and longer, up to a deadline.
type hold struct {
	wait     *backoff.ExponentialBackOff
	deadline time.Time
}

func newHold(deadline time.Time) hold {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = holdFirst, holdMost
	return hold{wait: wait, deadline: deadline}
}

// deadline is when a message that comes now must be gone, handled or not.
func (o Outcomes) deadline() time.Time {
	if o.HoldLimit == 0 {
		return time.Now().Add(defaultHoldLimit)
	}
	return time.Now().Add(o.HoldLimit)
}

func (h hold) over() bool { return time.Now().After(h.deadline) }

// next reports false when the process drains.
func (h hold) next(stopping <-chan struct{}) bool {
	select {
	case <-time.After(h.wait.NextBackOff()):
		return true
	case <-stopping:
		return false
	}
}
