package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/infra/rabbitmq"
)

// declared leaves the making of queues to the topology.
type declared struct{}

func (declared) BuildTopology(*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (declared) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// With this package's Marshaler watermill-amqp's own subscriber takes what its default
// one refuses: a message that was dead-lettered, and then redelivered.
func TestMarshalerFitsWatermillAMQP(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := wamqp.NewDurableQueueConfig(brokerURL())
	config.Marshaler = rabbitmq.Marshaler{}
	config.TopologyBuilder = declared{}
	subscriber, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscriber.Close() })
	messages, err := subscriber.Subscribe(f.ctx(), f.topology.Queue(rabbitmq.Closer))
	if err != nil {
		t.Fatal(err)
	}
	sent := f.publish(f.topology.TimerRoute(100*time.Millisecond), "x")
	first := receive(t, messages)
	first.Nack()
	second := receive(t, messages)
	second.Ack()
	if first.UUID != sent.UUID || second.UUID != sent.UUID || second.Metadata.Get("amqp.header.x-delivery-count") != "1" {
		t.Errorf("got %s %v, then %s %v", first.UUID, first.Metadata, second.UUID, second.Metadata)
	}
	f.awaitDepth(f.topology.Queue(rabbitmq.Closer), 0)
}
