package rabbitmq_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

// Watermill's own suite for publishers and subscribers. The two leave the making of
// queues to the topology, so here a wrapper declares the suite's topics.
func TestWatermillConformance(t *testing.T) {
	tests.TestPubSub(t, tests.Features{
		Persistent:                          true,
		GuaranteedOrder:                     false,
		GuaranteedOrderWithSingleSubscriber: false,
	}, newPubSub, nil)
}

func newPubSub(t *testing.T) (message.Publisher, message.Subscriber) {
	t.Helper()
	config := rabbitmq.Config{URL: rabbitmqtest.URL(), Namespace: "unused"}
	publishing := rabbitmq.Connect(config, "conformance publishing", discard())
	consuming := rabbitmq.Connect(config, "conformance consuming", discard())
	t.Cleanup(publishing.Close)
	t.Cleanup(consuming.Close)
	publisher := rabbitmq.NewPublisher(publishing)
	subscriber := rabbitmq.NewSubscriber(consuming, rabbitmq.SubscriberConfig{
		Window:        100,
		DrainTimeout:  time.Second, // the suite leaves messages in hand on purpose
		NackDelay:     time.Millisecond,
		NackDelayMost: 50 * time.Millisecond,
	}, discard())
	topics := &topics{t: t, known: map[string]bool{}}
	return publisherOnTopics{publisher, topics}, subscriberOnTopics{subscriber, topics}
}

// topics declares a durable queue for each topic on first use.
type topics struct {
	t     *testing.T
	mu    sync.Mutex
	known map[string]bool
}

func (ts *topics) declare(topic string) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.known[topic] {
		return nil
	}
	conn, err := amqp.Dial(rabbitmqtest.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(topic, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	rabbitmqtest.Delete(ts.t, []string{topic}, nil)
	ts.known[topic] = true
	return nil
}

type publisherOnTopics struct {
	*rabbitmq.Publisher
	topics *topics
}

func (p publisherOnTopics) Publish(topic string, messages ...*message.Message) error {
	if err := p.topics.declare(topic); err != nil {
		return err
	}
	return p.Publisher.Publish(topic, messages...)
}

type subscriberOnTopics struct {
	*rabbitmq.Subscriber
	topics *topics
}

func (s subscriberOnTopics) SubscribeInitialize(topic string) error { return s.topics.declare(topic) }
