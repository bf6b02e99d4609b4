package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

// What the broker delivered can always be moved on, although a publisher of this
// application refuses to send anything as large.
func TestLargeMessageIsMovedToParking(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := bytes.Repeat([]byte("x"), 3*rabbitmq.MaxMessageSize)
	err := f.raw.PublishWithContext(f.ctx(), "", f.topology.Queue(rabbitmq.Closer), true, false, amqp.Publishing{Body: body})
	if err != nil {
		t.Fatal(err)
	}
	f.consume(func(*message.Message) error { return errors.New("always") })
	parked := f.get(f.topology.ParkingQueue())
	if !bytes.Equal(parked.Body, body) || parked.Headers[rabbitmq.MetaAttempts] != "3" {
		t.Errorf("parked %d bytes after %v attempts", len(parked.Body), parked.Headers[rabbitmq.MetaAttempts])
	}
}

// A handler that overran its own deadline leaves a message whose context is dead. The
// message climbs the ladder and is parked all the same.
func TestHandlerBeyondItsDeadlineIsParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := make(chan struct{}, 10)
	f.consume(func(msg *message.Message) error {
		calls <- struct{}{}
		ctx, cancel := context.WithTimeout(msg.Context(), time.Millisecond)
		defer cancel()
		msg.SetContext(ctx) // as a timeout middleware does
		<-ctx.Done()
		return ctx.Err()
	})
	f.publish(f.topology.TimerRoute(0), "x")
	parked := f.get(f.topology.ParkingQueue())
	if len(calls) != len(f.ladder)+1 {
		t.Errorf("handled %d times, want %d", len(calls), len(f.ladder)+1)
	}
	if parked.Headers[rabbitmq.MetaErrorClass] != "transient" || parked.Headers[rabbitmq.MetaError] != context.DeadlineExceeded.Error() {
		t.Errorf("class %v, error %v", parked.Headers[rabbitmq.MetaErrorClass], parked.Headers[rabbitmq.MetaError])
	}
}

// An outage that lasts many times the hold limit parks nothing and spends no attempt: a
// message whose time is up goes to the end of its queue as a new one, which the broker's
// delivery limit knows nothing of.
func TestOutageBeyondTheHoldLimitParksNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var seen atomic.Int64
	back := make(chan struct{})
	handled := make(chan *message.Message, 1)
	f.consumeHolding(time.Millisecond, func(msg *message.Message) error {
		select {
		case <-back:
			handled <- msg
			return nil
		default:
			seen.Add(1)
			return domain.ErrUnavailable
		}
	})
	sent := message.NewMessage(watermill.NewUUID(), []byte("x"))
	sent.Metadata.Set(rabbitmq.MetaAttempts, "1")
	sent.Metadata.Set("tenant", "a")
	if err := f.publisher.Publish(f.topology.TimerRoute(0).Topic(), sent); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := seen.Load(); n < 3*rabbitmq.DeliveryLimit {
			return fmt.Errorf("seen %d times", n)
		}
		return nil
	})
	close(back)
	msg := receive(t, handled)
	if msg.UUID != sent.UUID || string(msg.Payload) != "x" || msg.Metadata.Get("amqp.header.x-delivery-count") != "" {
		t.Errorf("got %s %q with %v", msg.UUID, msg.Payload, msg.Metadata)
	}
	if msg.Metadata.Get(rabbitmq.MetaAttempts) != "1" || msg.Metadata.Get("tenant") != "a" || msg.Metadata.Get(rabbitmq.MetaError) != "" {
		t.Errorf("the message changed: %v", msg.Metadata)
	}
	f.awaitDepth(f.topology.Queue(rabbitmq.Closer), 0)
	f.awaitDepth(f.topology.ParkingQueue(), 0)
}

// However many headers a stranger sends, under whatever names, the message climbs the
// ladder and no further: what counts the attempts is the last thing to be dropped.
func TestManyHeadersDoNotHideTheAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	f.consume(func(*message.Message) error {
		calls.Add(1)
		return errors.New("always")
	})
	headers := amqp.Table{}
	for i := range 26 {
		headers[fmt.Sprintf("ordertimeout-%02d", i)] = strings.Repeat("y", 4<<10)
	}
	err := f.raw.PublishWithContext(f.ctx(), "", f.topology.Queue(rabbitmq.Closer), true, false, amqp.Publishing{Body: []byte("x"), Headers: headers})
	if err != nil {
		t.Fatal(err)
	}
	parked := f.get(f.topology.ParkingQueue())
	if want := len(f.ladder) + 1; calls.Load() != int64(want) || parked.Headers[rabbitmq.MetaAttempts] != fmt.Sprint(want) {
		t.Errorf("handled %d times, parked with %v attempts, want %d", calls.Load(), parked.Headers[rabbitmq.MetaAttempts], want)
	}
	for _, header := range []string{rabbitmq.MetaConsumer, rabbitmq.MetaQueue, rabbitmq.MetaError, rabbitmq.MetaErrorClass, rabbitmq.MetaFirstFailedAt, rabbitmq.MetaLastFailedAt} {
		if parked.Headers[header] == nil {
			t.Errorf("%s was dropped", header)
		}
	}
}

// Holding a message and moving it share one limit, or a consumer whose database and
// parking are both away would keep it for twice as long, and the broker would close its
// channel: a move that begins too late is tried once, and then the message is returned.
func TestHoldingAndMovingShareOneLimit(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	f := newFixture(t)
	if _, err := f.raw.QueueDelete(f.topology.ParkingQueue(), false, false, false); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	again := make(chan *message.Message, 1)
	f.consumeHolding(limit, func(msg *message.Message) error {
		switch {
		case msg.Metadata.Get("amqp.redelivered") != "":
			again <- msg
			return nil
		case first.IsZero():
			first = time.Now()
			return domain.ErrUnavailable
		default:
			<-time.After(time.Until(first.Add(limit))) // as long as the limit allows
			return domain.ErrMalformed
		}
	})
	sent := f.publish(f.topology.TimerRoute(0), "x")
	if msg := receive(t, again); msg.UUID != sent.UUID {
		t.Errorf("got %s, sent %s", msg.UUID, sent.UUID)
	}
	if n := testutil.ToFloat64(f.count.WithLabelValues("closer", "move_failed", "malformed")); n != 1 {
		t.Errorf("the move was tried %g times", n)
	}
}
