package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"example.com/ordertimeout/infra/rabbitmq"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/pubsub/tests.runTest.func1"))
}

// A dead-lettered message carries a table and a redelivered one an integer among its
// headers. Both reach the handler, once each time.
func TestExpiredAndRedeliveredMessagesReachTheHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	messages, _ := f.subscribe(f.ctx(), f.topology.Queue(rabbitmq.Closer), rabbitmq.SubscriberConfig{NackDelay: time.Millisecond})
	sent := f.publish(f.topology.TimerRoute(300*time.Millisecond), `{"x":1}`)
	first := receive(t, messages)
	if first.UUID != sent.UUID || string(first.Payload) != `{"x":1}` {
		t.Fatalf("got %s %q", first.UUID, first.Payload)
	}
	if first.Metadata.Get("amqp.header.x-death") == "" {
		t.Error("death history is missing")
	}
	first.Nack()
	second := receive(t, messages)
	if second.UUID != sent.UUID || second.Metadata.Get("amqp.header.x-delivery-count") == "" {
		t.Errorf("redelivery: %s %v", second.UUID, second.Metadata)
	}
	second.Ack()
	f.awaitDepth(f.topology.Queue(rabbitmq.Closer), 0)
}

// Draining lets work in hand finish and be acked, hands nothing new out, and loses
// nothing: what was not handed out is still in the queue, not in parking.
func TestDrainFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.topology.Queue(rabbitmq.Closer)
	for i := range 30 {
		f.publish(f.topology.TimerRoute(0), fmt.Sprint(i))
	}
	ctx, stop := context.WithCancel(context.Background())
	messages, _ := f.subscribe(ctx, queue, rabbitmq.SubscriberConfig{Window: 10})
	inHand := []*message.Message{receive(t, messages), receive(t, messages), receive(t, messages)}
	stop()
	for _, msg := range inHand {
		select {
		case <-msg.Context().Done():
			t.Fatal("a drain ended the context of work in hand")
		default:
		}
		msg.Ack()
	}
	for msg := range messages { // handed out before the end was seen
		msg.Ack()
		inHand = append(inHand, msg)
	}
	f.awaitDepth(queue, 30-len(inHand))
	f.awaitDepth(f.topology.ParkingQueue(), 0)
}

// What is not done when the patience ends goes back to the queue, and its context ends.
func TestDrainGivesUpAfterItsTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.topology.Queue(rabbitmq.Closer)
	f.publish(f.topology.TimerRoute(0), "slow")
	messages, subscriber := f.subscribe(context.Background(), queue, rabbitmq.SubscriberConfig{DrainTimeout: 50 * time.Millisecond})
	msg := receive(t, messages)
	if err := subscriber.Close(); err != nil {
		t.Fatal(err)
	}
	<-msg.Context().Done()
	if _, open := <-messages; open {
		t.Fatal("a message after the end")
	}
	f.awaitDepth(queue, 1)
	msg.Ack() // too late: it must not be written anywhere
	f.awaitDepth(queue, 1)
}

// The broker answers a deleted queue by cancelling the consumer. No empty message may
// come out of it, and the subscription comes back with the queue.
func TestSubscriptionSurvivesTheDeletionOfItsQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.topology.Queue(rabbitmq.Closer)
	messages, subscriber := f.subscribe(f.ctx(), queue, rabbitmq.SubscriberConfig{})
	eventually(t, subscriber.Ready)
	if _, err := f.raw.QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if subscriber.Ready() == nil {
			return fmt.Errorf("a subscription without a queue is ready")
		}
		return nil
	})
	if err := f.topology.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	eventually(t, subscriber.Ready)
	sent := f.publish(f.topology.TimerRoute(0), "after")
	msg := receive(t, messages)
	msg.Ack()
	if msg.UUID != sent.UUID {
		t.Fatalf("got a message that nobody sent: %q %v", msg.Payload, msg.Metadata)
	}
}

// A subscription that stays deaf at a broker that is there asks for a restart; one that
// hears, or whose broker is away, does not.
func TestDeafSubscriptionIsNotAlive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, hearing := f.subscribe(f.ctx(), f.topology.Queue(rabbitmq.Closer), rabbitmq.SubscriberConfig{DeafLimit: time.Millisecond})
	eventually(t, hearing.Ready)
	_, deaf := f.subscribe(f.ctx(), f.topology.Namespace()+".nowhere", rabbitmq.SubscriberConfig{DeafLimit: time.Millisecond})
	eventually(t, func() error {
		if deaf.Alive() == nil {
			return errors.New("a deaf subscription is alive")
		}
		return nil
	})
	if err := hearing.Alive(); err != nil {
		t.Error(err)
	}
	f.conn.Close()
	if err := deaf.Alive(); err != nil {
		t.Errorf("without a broker: %v", err)
	}
}

// Messages in hand while the connection is cut come again; answers that belong to the
// old connection do no harm on the new one.
func TestSubscriptionSurvivesCutConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.topology.Queue(rabbitmq.Closer)
	messages, _ := f.subscribe(f.ctx(), queue, rabbitmq.SubscriberConfig{})
	const total = 40
	for i := range total {
		f.publish(f.topology.TimerRoute(0), fmt.Sprint(i))
	}
	seen := map[string]bool{}
	var held []*message.Message
	for i := 0; len(seen) < total; i++ {
		msg := receive(t, messages)
		switch i % 8 {
		case 3:
			held = append(held, msg) // answered only after the cut
			f.conn.Cut()
			for _, late := range held {
				late.Ack()
			}
		default:
			seen[string(msg.Payload)] = true
			msg.Ack()
		}
	}
	eventually(t, func() error { // copies of what was acked during a cut may still come
		select {
		case msg := <-messages:
			msg.Ack()
			return fmt.Errorf("still receiving")
		case <-time.After(300 * time.Millisecond):
			return nil
		}
	})
	f.awaitDepth(queue, 0)
	f.awaitDepth(f.topology.ParkingQueue(), 0)
}

// A handler that fails every time must not spin: the deliveries of a second are few.
func TestNackBacksOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publish(f.topology.TimerRoute(0), "bad")
	messages, _ := f.subscribe(f.ctx(), f.topology.Queue(rabbitmq.Closer), rabbitmq.SubscriberConfig{})
	began := time.Now()
	for range 4 {
		receive(t, messages).Nack()
	}
	// Delays of 100, 150 and 225 ms, each shortened by half at most.
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("four deliveries within %s", took)
	}
	receive(t, messages).Ack()
}

// One message that takes for ever must not stop the others, even when they are more
// than the window.
func TestSlowMessageDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const total = 100
	for i := range total {
		f.publish(f.topology.TimerRoute(0), fmt.Sprint(i))
	}
	messages, _ := f.subscribe(f.ctx(), f.topology.Queue(rabbitmq.Closer), rabbitmq.SubscriberConfig{Window: 8})
	slow := receive(t, messages)
	for range total - 1 {
		receive(t, messages).Ack()
	}
	slow.Ack()
	f.awaitDepth(f.topology.Queue(rabbitmq.Closer), 0)
}

// A message that kills its consumer again and again ends in parking, whole.
func TestDeliveryLimitParksAMessageThatKillsItsConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.topology.Queue(rabbitmq.Closer)
	sent := f.publish(f.topology.TimerRoute(0), "deadly")
	deliveries := 0
	for {
		conn, err := amqp.Dial(brokerURL())
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		_, found, err := ch.Get(queue, false)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // the consumer dies without an answer
		if found {
			deliveries++
		}
		if f.depth(f.topology.ParkingQueue()) == 1 {
			break
		}
		if deliveries > rabbitmq.DeliveryLimit+1 {
			t.Fatalf("delivered %d times and still not parked", deliveries)
		}
	}
	parked := f.get(f.topology.ParkingQueue())
	if parked.MessageId != sent.UUID || string(parked.Body) != "deadly" {
		t.Fatalf("parked %s %q", parked.MessageId, parked.Body)
	}
}
