package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// SubscriberConfig has a default for everything.
type SubscriberConfig struct {
	// Window is how many messages may be in hand at once. Default 256: enough to keep
	// every database connection busy, and a bounded number to give back on a crash.
	Window int

	// DrainTimeout is how long a closing subscription waits for the messages in hand.
	// What is not done by then goes back to the queue. Default 20 s, below the usual
	// grace period of 30 s between SIGTERM and SIGKILL.
	DrainTimeout time.Duration

	// NackDelay is how long the first of consecutive nacks is held back; it doubles up
	// to NackDelayMost. Default 100 ms and 5 s.
	NackDelay, NackDelayMost time.Duration

	// DeafLimit is how long a subscription may have no consumer at a broker that is
	// there before Alive says that only a restart can help. Default 60 s: six times what
	// a lost queue needs to come back.
	DeafLimit time.Duration
}

func (c SubscriberConfig) withDefaults() SubscriberConfig {
	if c.Window == 0 {
		c.Window = 256
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 20 * time.Second
	}
	if c.NackDelay == 0 {
		c.NackDelay = 100 * time.Millisecond
	}
	if c.NackDelayMost == 0 {
		c.NackDelayMost = 5 * time.Second
	}
	if c.DeafLimit == 0 {
		c.DeafLimit = time.Minute
	}
	return c
}

// Subscriber receives messages at least once. Many are in hand at the same time, each
// in a goroutine of the router, so their order is not kept.
//
// A message is acked after its handler said Ack and never before; a nacked one goes
// back to its queue after a delay. A lost connection, a cancelled consumer or a
// deleted queue ends nothing: the subscription comes back when the queue does.
//
// Draining, by the end of the context given to Subscribe or by Close, stops new
// messages, gives those not handed out back, lets those in hand finish and be acked,
// and only then closes the channel of messages. Their contexts stay alive meanwhile.
type Subscriber struct {
	conn   *Connection
	config SubscriberConfig
	logger *slog.Logger

	mu      sync.Mutex
	closing chan struct{}
	closed  bool
	running sync.WaitGroup
	deaf    deafness
}

// deafness counts the subscriptions that have no consumer at the broker.
type deafness struct {
	mu    sync.Mutex
	count int
	since time.Time // when count left zero
}

func (d *deafness) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		d.since = time.Now()
	}
	d.count++
}

func (d *deafness) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count--
}

// now returns how many are deaf, and since how long one of them has been.
func (d *deafness) now() (int, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count, time.Since(d.since)
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber returns a subscriber on conn, which stays the caller's to close.
func NewSubscriber(conn *Connection, config SubscriberConfig, logger *slog.Logger) *Subscriber {
	return &Subscriber{conn: conn, config: config.withDefaults(), logger: logger, closing: make(chan struct{})}
}

// Subscribe implements Watermill's interface: topic is the name of a queue. It returns
// at once and receives whenever broker and queue are there.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("rabbitmq: subscriber is closed")
	}
	sub := &subscription{
		queue:    topic,
		conn:     s.conn,
		config:   s.config,
		logger:   s.logger.With("queue", topic),
		values:   context.WithoutCancel(ctx),
		out:      make(chan *message.Message),
		nackWait: newNackDelay(s.config),
		deaf:     &s.deaf,
	}
	ctx, cancel := context.WithCancel(ctx)
	s.running.Add(1)
	s.deaf.begin()
	go func() {
		defer s.running.Done()
		defer cancel()
		sub.run(ctx)
	}()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return sub.out, nil
}

// Ready returns nil while every subscription has its consumer at the broker.
func (s *Subscriber) Ready() error {
	if n, _ := s.deaf.now(); n > 0 {
		return unavailable(fmt.Errorf("%d subscriptions have no consumer at the broker", n))
	}
	return nil
}

// Alive returns an error when a subscription has been deaf for longer than DeafLimit
// although the broker was there all the time: it does not recover by itself.
func (s *Subscriber) Alive() error {
	n, deaf := s.deaf.now()
	if limit := s.config.DeafLimit; n > 0 && deaf > limit && s.conn.up() > limit {
		return fmt.Errorf("%d subscriptions have had no consumer for %s", n, deaf.Round(time.Second))
	}
	return nil
}

// Close drains every subscription and waits for it. It is safe to call twice.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// subscription is one Subscribe over all its connections.
type subscription struct {
	queue    string
	conn     *Connection
	config   SubscriberConfig
	logger   *slog.Logger
	values   context.Context //nolint:containedctx // parent of the messages' contexts, for its values; it has no end
	out      chan *message.Message
	nackWait *nackDelay
	deaf     *deafness
}

const consumerTag = "ordertimeout"

// run consumes again and again until ctx ends.
func (s *subscription) run(ctx context.Context) {
	defer close(s.out)
	defer s.deaf.end()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = reconnectFirst, reconnectMost
	for ctx.Err() == nil {
		err := s.consume(ctx, wait.Reset)
		if ctx.Err() != nil {
			return
		}
		s.logger.Warn("subscription interrupted, trying again", "error", err)
		select {
		case <-time.After(wait.NextBackOff()):
		case <-ctx.Done():
		}
	}
}

// consume receives on one channel until it is lost or ctx ends.
func (s *subscription) consume(ctx context.Context, established func()) error {
	ch, err := s.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(s.config.Window, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(s.queue, consumerTag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	established()
	s.deaf.end()
	defer s.deaf.begin()

	inHand := newInHand(ch, s.config.Window, s.logger)
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				// The connection is cut, or the broker cancelled the consumer because its
				// queue is gone. Nothing in hand can be acked any more in the first case.
				inHand.finish(0)
				return fmt.Errorf("consumer ended: %w", closeReason(tryReceive(lost)))
			}
			s.handOut(ctx, inHand, d)
		case <-ctx.Done():
			s.drain(ch, deliveries, inHand)
			return nil
		}
	}
}

// handOut gives one delivery to the router, or back to the queue when ctx ends first.
func (s *subscription) handOut(ctx context.Context, inHand *inHand, d amqp.Delivery) {
	msg, err := Marshaler{}.Unmarshal(d)
	if err != nil {
		s.logger.Warn("not a delivery", "error", err)
		return
	}
	msg.Metadata.Set(metaQueue, s.queue)
	msgCtx, cancel := context.WithCancel(s.values)
	msg.SetContext(msgCtx)
	select {
	case s.out <- msg:
		inHand.add(d.DeliveryTag, msg, cancel, s.nackWait)
	case <-ctx.Done():
		cancel()
		inHand.giveBack(d.DeliveryTag)
	}
}

// drain stops new messages, gives back what nobody has in hand and waits for the rest.
func (s *subscription) drain(ch *amqp.Channel, deliveries <-chan amqp.Delivery, inHand *inHand) {
	if err := ch.Cancel(consumerTag, false); err == nil {
		for d := range deliveries { // what the client had buffered; then it is closed
			inHand.giveBack(d.DeliveryTag)
		}
	}
	if left := inHand.finish(s.config.DrainTimeout); left > 0 {
		s.logger.Warn("messages were not done in time, they go back to the queue", "count", left)
	}
}

// inHand is what one channel has delivered and nobody answered yet. A goroutine of its
// own writes all answers, so they are coalesced, and an answer that comes after the
// channel is gone goes nowhere: a delivery number means nothing on another channel.
type inHand struct {
	ch        *amqp.Channel
	logger    *slog.Logger
	answers   chan answer
	open      sync.WaitGroup // messages in hand
	count     atomic.Int64
	finishing chan struct{} // no more messages come
	aborted   chan struct{} // what is still in hand is given up
	stopped   chan struct{} // every answer is written
}

type answer struct {
	tag uint64
	ack bool
}

func newInHand(ch *amqp.Channel, window int, logger *slog.Logger) *inHand {
	h := &inHand{ch: ch, logger: logger, answers: make(chan answer, window), finishing: make(chan struct{}), aborted: make(chan struct{}), stopped: make(chan struct{})}
	go h.write(newAcks(window))
	return h
}

// add waits for the router's verdict on msg.
func (h *inHand) add(tag uint64, msg *message.Message, cancel context.CancelFunc, nackWait *nackDelay) {
	h.open.Add(1)
	h.count.Add(1)
	go func() {
		defer h.open.Done()
		defer h.count.Add(-1)
		defer cancel()
		select {
		case <-msg.Acked():
			nackWait.reset()
			h.answers <- answer{tag, true}
		case <-msg.Nacked():
			select { // unanswered meanwhile: a failing handler must not spin
			case <-time.After(nackWait.next()):
			case <-h.finishing:
			}
			h.answers <- answer{tag, false}
		case <-h.aborted:
		}
	}()
}

func (h *inHand) giveBack(tag uint64) { h.answers <- answer{tag, false} }

// finish waits up to timeout for the messages in hand, ends the contexts of the others
// and returns how many these were. Every answer given by then is written.
func (h *inHand) finish(timeout time.Duration) int64 {
	close(h.finishing)
	allDone := make(chan struct{})
	go func() {
		h.open.Wait()
		close(allDone)
	}()
	select {
	case <-allDone:
	case <-time.After(timeout):
	}
	left := h.count.Load()
	close(h.aborted)
	<-allDone
	close(h.answers)
	<-h.stopped
	return left
}

// write turns answers into acks and nacks.
func (h *inHand) write(acks *acks) {
	defer close(h.stopped)
	for open := true; open; {
		var patience <-chan time.Time
		if !acks.idle() {
			patience = time.After(ackPatience)
		}
		var first answer
		select {
		case first, open = <-h.answers:
			if open {
				h.note(acks, first)
				open = h.noteMore(acks)
			}
		case <-patience:
		}
		h.flush(acks, time.Now())
	}
	h.flush(acks, time.Now().Add(ackPatience)) // nothing waits any longer
}

// ackLinger is how long answers are gathered while others are in hand. The handlers of a
// shared transaction answer one after the other, and each ack is work for the broker:
// without it an ack took 6 messages on average.
const ackLinger = 5 * time.Millisecond

// noteMore takes answers for as long as ackLinger, or only what is there when nothing else
// is in hand; it reports false at the end.
func (h *inHand) noteMore(acks *acks) bool {
	linger := time.NewTimer(ackLinger)
	defer linger.Stop()
	if h.count.Load() <= 1 { // the one whose answer was taken may still be counted
		linger.Reset(0)
	}
	for {
		select {
		case a, ok := <-h.answers:
			if !ok {
				return false
			}
			h.note(acks, a)
		case <-linger.C:
			return true
		}
	}
}

func (h *inHand) note(acks *acks, a answer) {
	if a.ack {
		acks.done(a.tag, time.Now())
		return
	}
	acks.answered(a.tag)
	h.check(h.ch.Nack(a.tag, false, true))
}

func (h *inHand) flush(acks *acks, now time.Time) {
	upTo, singles := acks.take(now)
	if upTo > 0 {
		h.check(h.ch.Ack(upTo, true))
	}
	for _, tag := range singles {
		h.check(h.ch.Ack(tag, false))
	}
}

// check: an answer that cannot be written means that the channel is gone. The broker
// delivers again, and handlers know what they have done already.
func (h *inHand) check(err error) {
	if err != nil {
		h.logger.Debug("answer was not written, the message comes again", "error", err)
	}
}

// nackDelay grows with consecutive nacks and starts again at the first ack.
type nackDelay struct {
	mu   sync.Mutex
	wait *backoff.ExponentialBackOff
}

func newNackDelay(c SubscriberConfig) *nackDelay {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = c.NackDelay, c.NackDelayMost
	return &nackDelay{wait: wait}
}

func (n *nackDelay) next() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wait.NextBackOff()
}

func (n *nackDelay) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wait.Reset()
}

func tryReceive(errs <-chan *amqp.Error) *amqp.Error {
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
