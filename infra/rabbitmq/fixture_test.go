package rabbitmq_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

// patience is how long a test waits for what must happen. It decides nothing about
// speed: only a broken program is still not done by then.
const patience = 30 * time.Second

// fixture is a declared topology with short clocks in a namespace of its own.
type fixture struct {
	t         *testing.T
	topology  rabbitmq.Topology
	conn      *rabbitmq.Connection
	publisher *rabbitmq.Publisher
	raw       *amqp.Channel
	ladder    domain.Ladder
	count     *prometheus.CounterVec // of the last consumer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	ladder := domain.Ladder{50 * time.Millisecond, 100 * time.Millisecond}
	delays := domain.NewDelays(domain.Windows{300 * time.Millisecond}, domain.Tiers{100 * time.Millisecond, time.Second})
	return newFixtureOf(t, rabbitmq.NewTopology(rabbitmqtest.Namespace(), delays, ladder), ladder)
}

func newFixtureOf(t *testing.T, topology rabbitmq.Topology, ladder domain.Ladder) *fixture {
	t.Helper()
	f := &fixture{t: t, topology: topology, ladder: ladder, raw: rabbitmqtest.Channel(t)}
	f.conn = connect(t)
	f.publisher = rabbitmq.NewPublisher(connect(t))
	queues, exchanges := topology.Names()
	rabbitmqtest.Delete(t, queues, exchanges)
	if err := topology.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	return f
}

func connect(t *testing.T) *rabbitmq.Connection {
	t.Helper()
	conn := rabbitmq.Connect(rabbitmq.Config{URL: rabbitmqtest.URL(), Namespace: "x"}, "test", discard())
	t.Cleanup(conn.Close)
	ch, err := conn.Channel(within(t))
	if err != nil {
		t.Fatalf("no broker: %v", err)
	}
	_ = ch.Close() // it only showed that the connection is up
	return conn
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (f *fixture) ctx() context.Context { return within(f.t) }

func (f *fixture) publish(route rabbitmq.Route, body string) *message.Message {
	f.t.Helper()
	msg := message.NewMessage(watermill.NewUUID(), []byte(body))
	if err := f.publisher.Publish(route.Topic(), msg); err != nil {
		f.t.Fatal(err)
	}
	return msg
}

func (f *fixture) subscribe(ctx context.Context, queue string, config rabbitmq.SubscriberConfig) (<-chan *message.Message, *rabbitmq.Subscriber) {
	f.t.Helper()
	subscriber := rabbitmq.NewSubscriber(f.conn, config, discard())
	messages, err := subscriber.Subscribe(ctx, queue)
	if err != nil {
		f.t.Fatal(err)
	}
	return messages, subscriber
}

// receive returns the next message, or fails.
func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the channel of messages was closed")
		}
		return msg
	case <-time.After(patience):
		t.Fatal("no message")
	}
	return nil
}

// eventually polls until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// depth returns how many messages are ready in a queue.
func (f *fixture) depth(queue string) int {
	f.t.Helper()
	q, err := f.raw.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return q.Messages
}

func (f *fixture) awaitDepth(queue string, want int) {
	f.t.Helper()
	eventually(f.t, func() error {
		if got := f.depth(queue); got != want {
			return fmt.Errorf("queue %s holds %d messages, want %d", queue, got, want)
		}
		return nil
	})
}

// get takes one message out of a queue.
func (f *fixture) get(queue string) amqp.Delivery {
	f.t.Helper()
	var got amqp.Delivery
	eventually(f.t, func() error {
		d, ok, err := f.raw.Get(queue, true)
		if err != nil {
			f.t.Fatal(err)
		}
		if !ok {
			return fmt.Errorf("queue %s stays empty", queue)
		}
		got = d
		return nil
	})
	return got
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func brokerURL() string { return rabbitmqtest.URL() }
