package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Role says what a queue is for.
type Role string

// The roles of queues.
const (
	RoleDelay    Role = "delay"    // timers wait in it, without a consumer
	RoleConsumed Role = "consumed" // a consumer reads it
	RoleRung     Role = "rung"     // what a consumer failed on waits in it, without a consumer
	RoleParking  Role = "parking"  // the end of the line
)

// QueueState is what the broker says of one queue.
type QueueState struct {
	Name     string
	Role     Role
	Consumer Consumer      // whose queue or rung it is; empty for the other roles
	TTL      time.Duration // how long a message waits in it; 0 where there is no such limit
	Dropped  bool          // the queue of a delay that is not configured any more

	Exists    bool
	Messages  int // ready to be delivered, or waiting for their TTL
	Consumers int
}

// HoldsTimers tells whether the messages in it are timers, those of a parking queue
// left aside.
func (s QueueState) HoldsTimers() bool { return s.Role == RoleDelay || s.Consumer == Closer }

// States returns every queue of the topology, in the order messages pass them, and
// before them the queues of those recorded delays that are not configured any more and
// still exist. Each queue is looked at a little later than the one before it.
func (t Topology) States(ctx context.Context, conn *Connection, recorded ...time.Duration) ([]QueueState, error) {
	look := look{conn: conn}
	defer look.close()
	var states []QueueState
	for _, delay := range recorded {
		if slices.Contains(t.delays.All(), delay) {
			continue
		}
		state := QueueState{Name: t.DelayQueue(delay), Role: RoleDelay, TTL: delay, Dropped: true}
		if err := look.at(ctx, &state); err != nil {
			return nil, err
		}
		if state.Exists {
			states = append(states, state)
		}
	}
	configured := t.queues(0) // targets first
	slices.Reverse(configured)
	for _, q := range configured {
		state := t.describe(q)
		if err := look.at(ctx, &state); err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// describe reads a queue's role from its arguments.
func (t Topology) describe(q queue) QueueState {
	s := QueueState{Name: q.name, Role: RoleConsumed}
	if ttl, waits := q.args["x-message-ttl"].(int64); waits {
		s.Role, s.TTL = RoleRung, time.Duration(ttl)*time.Millisecond
	}
	if q.args["x-dead-letter-exchange"] == t.deadLetterExchange() {
		s.Role = RoleDelay
	}
	if q.name == t.ParkingQueue() {
		s.Role = RoleParking
	}
	for _, c := range Consumers {
		if q.name == t.Queue(c) || (s.Role == RoleRung && q.args["x-dead-letter-routing-key"] == t.Queue(c)) {
			s.Consumer = c
		}
	}
	return s
}

// DelayQueueState returns the state of one delay's queue, which need not be part of t.
func (t Topology) DelayQueueState(ctx context.Context, conn *Connection, delay time.Duration) (QueueState, error) {
	look := look{conn: conn}
	defer look.close()
	state := QueueState{Name: t.DelayQueue(delay), Role: RoleDelay, TTL: delay, Dropped: !slices.Contains(t.delays.All(), delay)}
	return state, look.at(ctx, &state)
}

// look asks for queues on one channel. The broker closes the channel when there is no
// such queue; then the next question gets a new one.
type look struct {
	conn *Connection
	ch   *amqp.Channel
}

// at fills in what the broker says of the queue that state names.
func (l *look) at(ctx context.Context, state *QueueState) error {
	if l.ch == nil {
		ch, err := l.conn.Channel(ctx)
		if err != nil {
			return err
		}
		l.ch = ch
	}
	q, err := l.ch.QueueDeclarePassive(state.Name, true, false, false, false, nil)
	if err != nil {
		l.close()
	}
	var amqpErr *amqp.Error
	switch {
	case errors.As(err, &amqpErr) && amqpErr.Code == amqp.NotFound:
		return nil
	case err != nil:
		return declareError("queue "+state.Name, err)
	}
	state.Exists, state.Messages, state.Consumers = true, q.Messages, q.Consumers
	return nil
}

func (l *look) close() {
	if l.ch != nil {
		_ = l.ch.Close() // the broker may have closed it
		l.ch = nil
	}
}

// Inspector looks at the queues of a topology.
type Inspector struct {
	topology Topology
	conn     *Connection
}

// NewInspector returns an inspector that asks over conn.
func NewInspector(t Topology, conn *Connection) *Inspector {
	return &Inspector{topology: t, conn: conn}
}

// Queues returns what Topology.States returns, or an error that is
// domain.ErrUnavailable when the broker is away.
func (i *Inspector) Queues(ctx context.Context, recorded []time.Duration) ([]QueueState, error) {
	return i.topology.States(ctx, i.conn, recorded...)
}
