package rabbitmq

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
)

// Consumer is somebody who handles messages: it has a queue, a ladder of its own
// and its name on what it parks.
type Consumer string

// The consumers of this application.
const (
	Closer   Consumer = "closer"   // timers in: closes what is unpaid
	Notifier Consumer = "notifier" // events in: mails the buyer
)

// Consumers lists them.
var Consumers = []Consumer{Closer, Notifier}

// Handles lists the types of events that a consumer handles.
func (c Consumer) Handles() []domain.EventType {
	if c == Closer {
		return []domain.EventType{domain.TypeOrderTimeout}
	}
	return domain.BuyerEvents
}

// keyDeliveryLimit ends the routing key of what the broker itself parks.
const keyDeliveryLimit = ".delivery_limit"

// DeliveryLimit bounds how often a message may come back without an answer, because
// its consumer crashed on it. Then the broker parks it. A quorum queue delivers one
// time more than this.
const DeliveryLimit = 20

// Route is where a message is sent to.
type Route struct{ Exchange, Key string }

// Topic writes a route as a Watermill topic; parseTopic reads it.
func (r Route) Topic() string { return r.Exchange + "|" + r.Key }

// parseTopic reads what Topic wrote. A topic without "|" is the name of a queue,
// reached through the default exchange.
func parseTopic(topic string) Route {
	exchange, key, found := strings.Cut(topic, "|")
	if !found {
		return Route{Key: topic}
	}
	return Route{Exchange: exchange, Key: key}
}

// Topology is the map of one namespace. It is a value: build it with NewTopology.
//
//	place ─▶ <ns>.exchange ─▶ <ns>.delay.<ttl>.queue ─(expires)─▶ <ns>.dlx.exchange ─▶ <ns>.timeout.queue ─▶ closer
//	decide ─▶ <ns>.events.exchange ─▶ <ns>.notify.queue ─▶ notifier
//	fail ─▶ <ns>.retry.exchange ─▶ <ns>.<consumer>.retry.<n>.<ttl>.queue ─(expires)─▶ that consumer's queue
//	give up, or crash too often ─▶ <ns>.parking.exchange ─▶ <ns>.parking.queue
//
// Nothing ever mixes delays in one queue, because only a queue's head expires. A
// queue's name carries its TTL, because a queue's arguments cannot be changed.
type Topology struct {
	ns     string
	delays domain.Delays
	ladder domain.Ladder
}

// NewTopology returns the map for a namespace, its delays and its ladder.
func NewTopology(namespace string, delays domain.Delays, ladder domain.Ladder) Topology {
	return Topology{ns: namespace, delays: delays, ladder: ladder}
}

// Namespace returns the first part of every name.
func (t Topology) Namespace() string { return t.ns }

// TimerRoute returns where a timer goes that must fire after remaining: the queue of
// the next delay, or straight to the closer when it is due.
func (t Topology) TimerRoute(remaining time.Duration) Route {
	delay := t.delays.Next(remaining)
	if delay == 0 {
		return Route{t.deadLetterExchange(), t.timeoutKey()}
	}
	return Route{t.delayExchange(), t.delayKey(delay)}
}

// EventRoute returns where an event goes.
func (t Topology) EventRoute(typ domain.EventType) Route {
	return Route{t.eventsExchange(), string(typ)}
}

// RetryRoute returns the rung on which a message waits after its attempt-th failure.
func (t Topology) RetryRoute(c Consumer, attempt int) Route {
	return Route{t.retryExchange(), t.retryKey(c, attempt)}
}

// ParkingRoute returns the end of the line.
func (t Topology) ParkingRoute(c Consumer) Route {
	return Route{t.parkingExchange(), string(c) + ".parked"}
}

// Queue returns the queue that a consumer reads.
func (t Topology) Queue(c Consumer) string {
	if c == Notifier {
		return t.ns + ".notify.queue"
	}
	return t.ns + ".timeout.queue"
}

// DelayQueue returns the queue in which timers wait for delay.
func (t Topology) DelayQueue(delay time.Duration) string {
	return t.ns + ".delay." + domain.DelayName(delay) + ".queue"
}

// ParkingQueue returns the queue of what needs a person.
func (t Topology) ParkingQueue() string { return t.ns + ".parking.queue" }

func (t Topology) delayExchange() string      { return t.ns + ".exchange" }
func (t Topology) deadLetterExchange() string { return t.ns + ".dlx.exchange" }
func (t Topology) eventsExchange() string     { return t.ns + ".events.exchange" }
func (t Topology) retryExchange() string      { return t.ns + ".retry.exchange" }
func (t Topology) parkingExchange() string    { return t.ns + ".parking.exchange" }
func (t Topology) timeoutKey() string         { return t.ns + ".timeout.key" }

func (t Topology) delayKey(delay time.Duration) string {
	return t.ns + ".delay." + domain.DelayName(delay) + ".key"
}

// retryKey carries the wait as the queue's name does: after the ladder is changed an
// old rung that still holds messages must not get a copy of every new one.
func (t Topology) retryKey(c Consumer, attempt int) string {
	return fmt.Sprintf("%s.retry.%d.%s", c, attempt, domain.DelayName(t.ladder[attempt-1]))
}

func (t Topology) retryQueue(c Consumer, attempt int) string {
	return t.ns + "." + t.retryKey(c, attempt) + ".queue"
}

// exchange, queue and binding are what has to exist.
type (
	exchange struct{ name, kind string }
	queue    struct {
		name string
		args amqp.Table
	}
	binding struct{ queue, exchange, key string }
)

func (t Topology) exchanges() []exchange {
	return []exchange{
		{t.delayExchange(), amqp.ExchangeDirect},
		{t.deadLetterExchange(), amqp.ExchangeDirect},
		{t.eventsExchange(), amqp.ExchangeTopic},
		{t.retryExchange(), amqp.ExchangeTopic},
		{t.parkingExchange(), amqp.ExchangeTopic},
	}
}

// queues lists targets before the queues that dead-letter into them. brokerMajor is
// the broker's major version.
func (t Topology) queues(brokerMajor int) []queue {
	all := []queue{{t.ParkingQueue(), parkingArgs(brokerMajor)}}
	for _, c := range Consumers {
		all = append(all, queue{t.Queue(c), t.consumerArgs(c)})
		for i, wait := range t.ladder {
			all = append(all, queue{t.retryQueue(c, i+1), waitingArgs(wait, "", t.Queue(c))})
		}
	}
	for _, delay := range t.delays.All() {
		all = append(all, queue{t.DelayQueue(delay), waitingArgs(delay, t.deadLetterExchange(), t.timeoutKey())})
	}
	return all
}

func (t Topology) bindings() []binding {
	all := []binding{
		{t.ParkingQueue(), t.parkingExchange(), "#"},
		{t.Queue(Closer), t.deadLetterExchange(), t.timeoutKey()},
	}
	for _, typ := range domain.BuyerEvents {
		all = append(all, binding{t.Queue(Notifier), t.eventsExchange(), string(typ)})
	}
	for _, c := range Consumers {
		for i := range t.ladder {
			all = append(all, binding{t.retryQueue(c, i+1), t.retryExchange(), t.retryKey(c, i+1)})
		}
	}
	for _, delay := range t.delays.All() {
		all = append(all, binding{t.DelayQueue(delay), t.delayExchange(), t.delayKey(delay)})
	}
	return all
}

// waitingArgs are those of a queue without a consumer, in which messages wait for
// ttl and then go to target. No x-expires, which would delete the queue with its
// messages because nobody consumes it, and no length limit, which would push
// messages out early.
func waitingArgs(ttl time.Duration, targetExchange, targetKey string) amqp.Table {
	args := amqp.Table{"x-message-ttl": ttl.Milliseconds()} // int64: a plain int is sent as 32 bits
	return withDeadLetters(args, targetExchange, targetKey)
}

// consumerArgs bound a message that kills its consumer: after DeliveryLimit returns
// the broker itself parks it.
func (t Topology) consumerArgs(c Consumer) amqp.Table {
	args := amqp.Table{"x-delivery-limit": int64(DeliveryLimit)}
	return withDeadLetters(args, t.parkingExchange(), string(c)+keyDeliveryLimit)
}

// withDeadLetters makes dead-lettering safe: at-least-once moves a message with
// confirms, so a crash in between loses nothing. It demands reject-publish.
func withDeadLetters(args amqp.Table, targetExchange, targetKey string) amqp.Table {
	args["x-queue-type"] = "quorum"
	args["x-dead-letter-exchange"] = targetExchange
	args["x-dead-letter-routing-key"] = targetKey
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish"
	return args
}

// parkingArgs: the end has no TTL, no dead letters and no limits. From version 4 a
// quorum queue drops a message after 20 returns unless the limit is switched off;
// version 3 takes the same argument for a limit below zero and drops the message at
// its first return.
func parkingArgs(brokerMajor int) amqp.Table {
	args := amqp.Table{"x-queue-type": "quorum"}
	if brokerMajor >= 4 {
		args["x-delivery-limit"] = int64(-1)
	}
	return args
}

// queueNames lists every queue, in the order messages pass them.
func (t Topology) queueNames() []string {
	var names []string
	for _, q := range t.queues(0) {
		names = append(names, q.name)
	}
	slices.Reverse(names)
	return names
}

// Names lists every queue, in the order messages pass them, and every exchange.
func (t Topology) Names() (queues, exchanges []string) {
	for _, e := range t.exchanges() {
		exchanges = append(exchanges, e.name)
	}
	return t.queueNames(), exchanges
}
