package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// MismatchError says: a queue exists with another argument than the topology wants. The
// broker cannot change it; the queue must be drained and removed, or the name or the
// namespace changed.
type MismatchError struct {
	Queue, Argument, Wanted, Found string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("queue %s: argument %s: wanted %s, found %s", e.Queue, e.Argument, e.Wanted, e.Found)
}

// Declare makes everything in t exist. It is idempotent and repairs what is missing.
//
// It returns a MismatchError where a queue exists with other arguments, and an error
// that is domain.ErrUnavailable when the broker is away.
func (t Topology) Declare(ctx context.Context, conn *Connection) error {
	live, err := conn.await(ctx)
	if err != nil {
		return err
	}
	ch, err := live.Channel()
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = ch.Close() }()

	for _, e := range t.exchanges() {
		if err := ch.ExchangeDeclare(e.name, e.kind, true, false, false, false, nil); err != nil {
			return declareError("exchange "+e.name, err)
		}
	}
	for _, q := range t.queues(brokerMajor(live)) {
		if _, err := ch.QueueDeclare(q.name, true, false, false, false, q.args); err != nil {
			mismatch := asMismatch(q.name, err)
			if !t.tolerates(mismatch) {
				return declareError("queue "+q.name, orElse(mismatch, err))
			}
			// The failed declaration closed the channel; the queue itself is fine.
			if ch, err = live.Channel(); err != nil {
				return unavailable(err)
			}
		}
	}
	for _, b := range t.bindings() {
		if err := ch.QueueBind(b.queue, b.key, b.exchange, false, nil); err != nil {
			return declareError(fmt.Sprintf("binding of %s to %s with key %s", b.queue, b.exchange, b.key), err)
		}
	}
	return nil
}

// tolerates a parking queue that an older broker made: it has no delivery limit
// argument, and only a policy could switch the newer broker's default off.
func (t Topology) tolerates(m *MismatchError) bool {
	return m != nil && m.Queue == t.ParkingQueue() && m.Argument == "x-delivery-limit"
}

// Keeper keeps a topology declared: somebody deletes a queue or a binding, and it is
// back within keepEvery, without a restart.
type Keeper struct {
	topology Topology
	conn     *Connection
	logger   *slog.Logger
	problem  atomic.Pointer[error]
}

// keepEvery is how often the topology is declared again: 30-odd declarations of what
// exists already cost the broker about 10 ms.
const keepEvery = 10 * time.Second

// NewKeeper returns a keeper; Ready is an error until Run has declared once.
func NewKeeper(t Topology, conn *Connection, logger *slog.Logger) *Keeper {
	k := &Keeper{topology: t, conn: conn, logger: logger}
	k.set(errors.New("topology is not declared yet"))
	return k
}

// Ready returns nil while the last declaration succeeded.
func (k *Keeper) Ready() error { return *k.problem.Load() }

// Run declares until ctx ends. It returns the MismatchError that no repetition cures
// when the very first declaration meets one; later ones are logged and show in Ready.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for first := true; ; {
		err := k.declare(ctx)
		var mismatch *MismatchError
		if first && errors.As(err, &mismatch) {
			return err
		}
		first = first && err != nil
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *Keeper) declare(ctx context.Context) error {
	err := k.topology.Declare(ctx, k.conn)
	if err != nil && ctx.Err() == nil {
		k.logger.Error("topology cannot be declared", "error", err)
	}
	k.set(err)
	return err
}

func (k *Keeper) set(err error) { k.problem.Store(&err) }

// RemoveDelayQueue removes the queue of a delay that is no longer offered, if it is
// empty. It reports false for a queue that still holds timers. Quorum queues know no
// "delete if empty", so it is unbound first: whatever is published meanwhile is
// returned to its publisher instead of entering the queue.
func (t Topology) RemoveDelayQueue(ctx context.Context, conn *Connection, delay time.Duration) (bool, error) {
	name := t.DelayQueue(delay)
	ch, err := conn.Channel(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = ch.Close() }()
	if err := ch.QueueUnbind(name, t.delayKey(delay), t.delayExchange(), nil); err != nil {
		return false, declareError("unbinding "+name, err)
	}
	state, err := t.DelayQueueState(ctx, conn, delay)
	if err != nil || state.Messages > 0 {
		return false, err
	}
	if _, err := ch.QueueDelete(name, false, false, false); err != nil {
		return false, declareError("removing "+name, err)
	}
	return true, nil
}

// inequivalent matches what the broker says of a queue that exists differently, such
// as: inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '1' but current is '2'.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for queue .*: received (.*) but current is (.*)`)

func asMismatch(queue string, err error) *MismatchError {
	var amqpErr *amqp.Error
	if !errors.As(err, &amqpErr) || amqpErr.Code != amqp.PreconditionFailed {
		return nil
	}
	m := inequivalent.FindStringSubmatch(amqpErr.Reason)
	if m == nil {
		return nil
	}
	return &MismatchError{Queue: queue, Argument: m[1], Wanted: unquote(m[2]), Found: unquote(m[3])}
}

// unquote turns "the value '5000' of type 'signedint'" and "'5000'" into 5000.
func unquote(text string) string {
	parts := strings.SplitN(text, "'", 3)
	if len(parts) < 3 {
		return text
	}
	return parts[1]
}

func orElse(mismatch *MismatchError, err error) error {
	if mismatch != nil {
		return mismatch
	}
	return err
}

// declareError keeps what the broker refuses apart from a broker that went away.
func declareError(what string, err error) error {
	var amqpErr *amqp.Error
	var mismatch *MismatchError
	if errors.As(err, &mismatch) || (errors.As(err, &amqpErr) && refused(amqpErr)) {
		return fmt.Errorf("rabbitmq: %s: %w", what, err)
	}
	return unavailable(fmt.Errorf("%s: %w", what, err))
}

// refused tells a channel error, which the broker raises over one operation, from
// the end of the whole connection.
func refused(err *amqp.Error) bool {
	switch err.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.ContentTooLarge:
		return err.Server
	default:
		return false
	}
}

func brokerMajor(conn *amqp.Connection) int {
	version, _ := conn.Properties["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 3 // unknown: leave out what older brokers misread
	}
	return n
}
