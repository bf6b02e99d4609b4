package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

// consume runs handle behind the outcome switch until the test ends or stop is called.
func (f *fixture) consume(handle message.NoPublishHandlerFunc) (stop func()) {
	f.t.Helper()
	return f.consumeHolding(0, handle)
}

// consumeHolding is consume with a limit for how long a message is held.
func (f *fixture) consumeHolding(limit time.Duration, handle message.NoPublishHandlerFunc) (stop func()) {
	f.t.Helper()
	stopping := make(chan struct{})
	f.count = rabbitmq.NewOutcomeCounter(prometheus.NewRegistry())
	outcomes := rabbitmq.Outcomes{
		Consumer: rabbitmq.Closer, Topology: f.topology, Publisher: f.publisher, Ladder: f.ladder,
		Logger: discard(), Stopping: stopping, Count: f.count,
		HoldLimit: limit,
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		f.t.Fatal(err)
	}
	subscriber := rabbitmq.NewSubscriber(f.conn, rabbitmq.SubscriberConfig{NackDelay: 10 * time.Millisecond}, discard())
	router.AddConsumerHandler("closer", f.topology.Queue(rabbitmq.Closer), subscriber, handle).AddMiddleware(outcomes.Middleware)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := router.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	var once atomic.Bool
	stop = func() {
		if once.CompareAndSwap(false, true) {
			close(stopping)
			cancel()
			<-ended
		}
	}
	f.t.Cleanup(stop)
	return stop
}

// An always failing message is handled exactly ladder+1 times, on every version of the
// broker, and then parked with its story; a healthy one behind it is handled meanwhile.
func TestAlwaysFailingMessageClimbsTheLadderAndIsParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	healthy := make(chan struct{}, 1)
	f.consume(func(msg *message.Message) error {
		if string(msg.Payload) == "healthy" {
			healthy <- struct{}{}
			return nil
		}
		return fmt.Errorf("attempt %d failed", calls.Add(1))
	})
	sent := f.publish(f.topology.TimerRoute(100*time.Millisecond), "\x00bad bytes\xff")
	f.publish(f.topology.TimerRoute(0), "healthy")
	<-healthy
	parked := f.get(f.topology.ParkingQueue())
	if calls.Load() != int64(len(f.ladder)+1) {
		t.Errorf("handled %d times, want %d", calls.Load(), len(f.ladder)+1)
	}
	if parked.MessageId != sent.UUID || string(parked.Body) != "\x00bad bytes\xff" {
		t.Errorf("parked %s %q", parked.MessageId, parked.Body)
	}
	ns := f.topology.Namespace()
	for header, want := range map[string]string{
		rabbitmq.MetaAttempts:   strconv.Itoa(len(f.ladder) + 1),
		rabbitmq.MetaConsumer:   "closer",
		rabbitmq.MetaQueue:      ns + ".timeout.queue",
		rabbitmq.MetaExchange:   ns + ".dlx.exchange",
		rabbitmq.MetaRoutingKey: ns + ".timeout.key",
		rabbitmq.MetaErrorClass: "transient",
		rabbitmq.MetaError:      fmt.Sprintf("attempt %d failed", len(f.ladder)+1),
	} {
		if got := parked.Headers[header]; got != want {
			t.Errorf("%s: got %v, want %s", header, got, want)
		}
	}
	first, _ := parked.Headers[rabbitmq.MetaFirstFailedAt].(string)
	last, _ := parked.Headers[rabbitmq.MetaLastFailedAt].(string)
	if first == "" || first >= last {
		t.Errorf("first failed at %q, last at %q", first, last)
	}
	if death, _ := parked.Headers[rabbitmq.MetaDeathHistory].(string); !strings.Contains(death, "expired") {
		t.Errorf("death history %q", death)
	}
}

// Whatever headers a stranger sets, the message is handled, and what fails is parked
// within the ladder.
func TestStrangeHeadersAreHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	f.consume(func(*message.Message) error {
		calls.Add(1)
		return errors.New("always")
	})
	for _, attempts := range []any{"abc", "-1", "9999", int32(7), int64(-5), true} {
		headers := amqp.Table{
			rabbitmq.MetaAttempts: attempts,
			"number":              int32(1),
			"table":               amqp.Table{"deep": amqp.Table{"deeper": []any{int64(1), "x"}}},
			"x-death":             []any{amqp.Table{"count": "text"}, amqp.Table{"count": int64(-3)}, amqp.Table{}},
		}
		err := f.raw.PublishWithContext(f.ctx(), "", f.topology.Queue(rabbitmq.Closer), true, false, amqp.Publishing{Headers: headers, Body: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
	}
	f.awaitDepth(f.topology.ParkingQueue(), 6)
	// "9999" is beyond the ladder and gets one attempt; the others start at none.
	if want := int64(5*(len(f.ladder)+1) + 1); calls.Load() != want {
		t.Errorf("handled %d times, want %d", calls.Load(), want)
	}
}

func TestPermanentFailureIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	f.consume(func(msg *message.Message) error {
		calls.Add(1)
		_, err := domain.DecodeEvent(msg.Payload)
		return err
	})
	f.publish(f.topology.TimerRoute(0), "{")
	parked := f.get(f.topology.ParkingQueue())
	if calls.Load() != 1 || parked.Headers[rabbitmq.MetaErrorClass] != "malformed" {
		t.Errorf("handled %d times, class %v", calls.Load(), parked.Headers[rabbitmq.MetaErrorClass])
	}
}

func TestPanicIsAFailureWithItsStack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.consume(func(*message.Message) error { panic("boom") })
	f.publish(f.topology.TimerRoute(0), "x")
	parked := f.get(f.topology.ParkingQueue())
	text, _ := parked.Headers[rabbitmq.MetaError].(string)
	if parked.Headers[rabbitmq.MetaErrorClass] != "panic" || !strings.Contains(text, "boom") || !strings.Contains(text, "outcomes_test.go") {
		t.Errorf("class %v, error %q", parked.Headers[rabbitmq.MetaErrorClass], text)
	}
}

// A timer that came early waits for exactly the rest, without an attempt.
func TestEarlyTimerIsSentOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	due := time.Now().Add(700 * time.Millisecond)
	handled := make(chan *message.Message, 1)
	f.consume(func(msg *message.Message) error {
		if left := time.Until(due); left > 0 {
			return &domain.NotDueError{DueAt: due, Remaining: left}
		}
		handled <- msg
		return nil
	})
	f.publish(f.topology.TimerRoute(300*time.Millisecond), "x")
	msg := receive(t, handled)
	if time.Now().Before(due) {
		t.Error("handled before it was due")
	}
	if got := msg.Metadata.Get(rabbitmq.MetaAttempts); got != "" {
		t.Errorf("counted %s attempts", got)
	}
	f.awaitDepth(f.topology.ParkingQueue(), 0)
}

// While a dependency is away the message is held: no attempt is spent and nothing spins.
func TestUnavailableDependencyCostsNoAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	handled := make(chan *message.Message, 1)
	f.consume(func(msg *message.Message) error {
		if calls.Add(1) < 4 {
			return fmt.Errorf("database: %w", domain.ErrUnavailable)
		}
		handled <- msg
		return nil
	})
	f.publish(f.topology.TimerRoute(0), "x")
	msg := receive(t, handled)
	if got := msg.Metadata.Get(rabbitmq.MetaAttempts); got != "" {
		t.Errorf("counted %s attempts", got)
	}
	if msg.Metadata.Get("amqp.redelivered") != "" {
		t.Error("the message went back to the broker")
	}
}

// A drain does not wait for a dependency that is away: the message goes back.
func TestDrainReleasesAHeldMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	called := make(chan struct{}, 100)
	stop := f.consume(func(*message.Message) error {
		called <- struct{}{}
		return domain.ErrUnavailable
	})
	f.publish(f.topology.TimerRoute(0), "x")
	<-called
	stop()
	f.awaitDepth(f.topology.Queue(rabbitmq.Closer), 1)
	f.awaitDepth(f.topology.ParkingQueue(), 0)
}

// When the parking queue is gone the message must not be acked. It is parked once the
// queue is back.
func TestMessageStaysWhenParkingIsGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := f.raw.QueueDelete(f.topology.ParkingQueue(), false, false, false); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	f.consume(func(*message.Message) error {
		calls.Add(1)
		return domain.ErrMalformed
	})
	sent := f.publish(f.topology.TimerRoute(0), "x")
	eventually(t, func() error {
		if calls.Load() == 0 {
			return errors.New("not handled yet")
		}
		return nil
	})
	if err := f.topology.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	if got := f.get(f.topology.ParkingQueue()); got.MessageId != sent.UUID {
		t.Errorf("parked %s", got.MessageId)
	}
	if calls.Load() != 1 {
		t.Errorf("handled %d times", calls.Load())
	}
}
