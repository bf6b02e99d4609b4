package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"

	"example.com/ordertimeout/domain"
)

const (
	// publishWindow is how many messages may wait for their confirm at once, over all
	// callers. It also bounds what is written to a broker that stopped reading.
	publishWindow = 1024

	// publishTimeout bounds a Publish that comes without a deadline of its own.
	publishTimeout = 10 * time.Second
)

// UnroutableError says: the broker took the message, and no queue did. It is the sender's
// or the topology's fault; the broker has dropped the message.
type UnroutableError struct {
	Route  Route
	Reason string
}

func (e *UnroutableError) Error() string {
	return fmt.Sprintf("no queue took a message to exchange %q with key %q: %s", e.Route.Exchange, e.Route.Key, e.Reason)
}

// RefusedError says: the broker closed the channel over this message, for example because
// its exchange does not exist.
type RefusedError struct {
	Route  Route
	Code   int
	Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("broker refuses a message to exchange %q with key %q: %d %s", e.Route.Exchange, e.Route.Key, e.Code, e.Reason)
}

// Outgoing is a message with its destination.
type Outgoing struct {
	Route   Route
	Message *message.Message

	delivered bool // the body came from the broker: MaxMessageSize does not bound it
}

// Publisher sends persistent, mandatory messages and waits for the broker's confirm.
// It is safe for concurrent use; all callers share one channel, on which confirms are
// pipelined. A message is sent when its error is nil, and only then: a queue has it
// on disk. An error that is domain.ErrUnavailable leaves it open whether the message
// was sent.
type Publisher struct {
	conn  *Connection
	slots *semaphore.Weighted

	mu      sync.Mutex
	current *publishing // nil until the first message and after a failure
	closed  bool
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher on conn, which stays the caller's to close.
func NewPublisher(conn *Connection) *Publisher {
	return &Publisher{conn: conn, slots: semaphore.NewWeighted(publishWindow)}
}

// Publish implements Watermill's interface: topic is Route.Topic, or the name of a
// queue. It returns nil when every message was sent, and else the errors joined.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	route := parseTopic(topic)
	out := make([]Outgoing, len(messages))
	for i, msg := range messages {
		out[i] = Outgoing{Route: route, Message: msg}
	}
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	return errors.Join(p.PublishAll(ctx, out)...)
}

// PublishAll sends messages pipelined and returns one error for each, in their order:
// nil, an UnroutableError, a RefusedError, ErrTooLarge, or domain.ErrUnavailable when
// the broker is away, blocks publishers, nacks or does not confirm while ctx lasts.
// One bad message does not spoil its neighbours.
func (p *Publisher) PublishAll(ctx context.Context, out []Outgoing) []error {
	errs := make([]error, 0, len(out))
	for chunk := range slices.Chunk(out, publishWindow) {
		errs = append(errs, p.publishChunk(ctx, chunk)...)
	}
	return errs
}

// publishChunk sends what fits into the window. When the broker closes the channel
// over one message it does not say over which: those without a confirm are sent once
// more one by one, and the culprit fails alone.
func (p *Publisher) publishChunk(ctx context.Context, chunk []Outgoing) []error {
	errs := p.pipeline(ctx, chunk)
	if len(chunk) == 1 {
		return errs
	}
	for i, err := range errs {
		if _, refused := errors.AsType[*RefusedError](err); refused {
			errs[i] = p.pipeline(ctx, chunk[i:i+1])[0]
		}
	}
	return errs
}

// pipeline takes all its slots at once: callers that each held a part of the window
// while waiting for more would wait for each other.
func (p *Publisher) pipeline(ctx context.Context, chunk []Outgoing) []error {
	if err := p.slots.Acquire(ctx, int64(len(chunk))); err != nil {
		return sameError(unavailable(fmt.Errorf("waiting for confirms: %w", err)), len(chunk))
	}
	defer p.slots.Release(int64(len(chunk)))

	session, err := p.session(ctx)
	if err != nil {
		return sameError(err, len(chunk))
	}
	inFlight := make([]*amqp.DeferredConfirmation, len(chunk))
	errs := make([]error, len(chunk))
	for i, o := range chunk {
		inFlight[i], errs[i] = session.publish(o)
	}
	for i, o := range chunk {
		if errs[i] == nil {
			errs[i] = session.await(ctx, o, inFlight[i])
		}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, domain.ErrUnavailable) }) {
		p.discard(session)
	}
	return errs
}

// Close makes further publishes fail. Messages that wait for their confirm keep
// waiting for it.
func (p *Publisher) Close() error {
	p.mu.Lock()
	session := p.current
	p.closed, p.current = true, nil
	p.mu.Unlock()
	if session == nil {
		return nil
	}
	// All slots free means that nobody waits for a confirm any more.
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	if err := p.slots.Acquire(ctx, publishWindow); err == nil {
		defer p.slots.Release(publishWindow)
	}
	go session.close() // a blocked broker does not answer; the end of the connection ends it
	return nil
}

// session returns the channel in use, or opens one, waiting for a connection as long as
// ctx allows. A broker that blocks publishers would not even read from it.
func (p *Publisher) session(ctx context.Context) (*publishing, error) {
	if err := p.conn.blockedError(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, unavailable(errors.New("publisher is closed"))
	}
	if p.current != nil && !p.current.ch.IsClosed() {
		return p.current, nil
	}
	ch, err := p.conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	session, err := newPublishing(ch)
	if err != nil {
		return nil, unavailable(err)
	}
	p.current = session
	return session, nil
}

// discard gives a channel up on which a message was left in doubt. Closing waits for
// the broker's answer, which may not come before the connection is given up too.
func (p *Publisher) discard(session *publishing) {
	p.mu.Lock()
	if p.current == session {
		p.current = nil
	}
	p.mu.Unlock()
	go session.close()
}

// publishing is one channel in confirm mode.
//
// The broker sends a returned message before its confirm, and the client hands both
// out in that order. returns has room for every message that can be in flight, so the
// client never waits to hand one out, and whoever saw a confirm finds the return that
// belongs to it already there.
type publishing struct {
	ch     *amqp.Channel
	closed chan struct{} // closed after reason is set
	reason *amqp.Error

	mu       sync.Mutex
	returns  chan amqp.Return
	returned map[returnKey]int // how many with this key came back and were not claimed yet
	reasons  map[returnKey]string
}

// returnKey tells which message came back. Two equal ones in flight share a fate.
type returnKey struct {
	messageID string
	route     Route
}

func newPublishing(ch *amqp.Channel) (*publishing, error) {
	s := &publishing{
		ch:       ch,
		closed:   make(chan struct{}),
		returns:  ch.NotifyReturn(make(chan amqp.Return, publishWindow)),
		returned: map[returnKey]int{},
		reasons:  map[returnKey]string{},
	}
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		s.reason = <-lost
		close(s.closed)
	}()
	if err := ch.Confirm(false); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *publishing) publish(o Outgoing) (*amqp.DeferredConfirmation, error) {
	if size := len(o.Message.Payload); size > MaxMessageSize && !o.delivered {
		return nil, fmt.Errorf("%w: %d bytes, allowed: %d", ErrTooLarge, size, MaxMessageSize)
	}
	msg, err := Marshaler{}.Marshal(o.Message)
	if err != nil {
		return nil, err
	}
	confirm, err := s.ch.PublishWithDeferredConfirm(o.Route.Exchange, o.Route.Key, true, false, msg)
	if err != nil {
		return nil, s.lost(o.Route, err)
	}
	return confirm, nil
}

func (s *publishing) await(ctx context.Context, o Outgoing, confirm *amqp.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
	case <-ctx.Done():
		return unavailable(fmt.Errorf("no confirm: %w", ctx.Err()))
	}
	if confirm.Acked() {
		return s.claimReturn(o)
	}
	if s.ch.IsClosed() {
		return s.lost(o.Route, amqp.ErrClosed)
	}
	return unavailable(errors.New("broker nacked the message"))
}

// claimReturn returns an UnroutableError when the confirmed message had come back.
func (s *publishing) claimReturn(o Outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collectReturns()
	key := returnKey{o.Message.UUID, o.Route}
	if s.returned[key] == 0 {
		return nil
	}
	err := &UnroutableError{Route: o.Route, Reason: s.reasons[key]}
	if s.returned[key]--; s.returned[key] == 0 {
		delete(s.returned, key)
		delete(s.reasons, key)
	}
	return err
}

func (s *publishing) collectReturns() {
	for {
		select {
		case r, ok := <-s.returns:
			if !ok {
				return
			}
			key := returnKey{r.MessageId, Route{r.Exchange, r.RoutingKey}}
			s.returned[key]++
			s.reasons[key] = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
		default:
			return
		}
	}
}

// lost explains a message whose channel is gone: refused by the broker over one of
// the messages on it, or simply cut.
func (s *publishing) lost(route Route, err error) error {
	select {
	case <-s.closed:
	case <-time.After(time.Second): // a write error: the channel is not known to be closed
		return unavailable(err)
	}
	if s.reason != nil && refused(s.reason) {
		return &RefusedError{Route: route, Code: s.reason.Code, Reason: s.reason.Reason}
	}
	if s.reason != nil {
		err = s.reason
	}
	return unavailable(err)
}

func (s *publishing) close() { _ = s.ch.Close() }

func sameError(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
