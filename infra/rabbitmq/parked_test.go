package rabbitmq_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

const (
	anOrder      = `"order_id":"0190a0b0-0000-7000-8000-000000000001"`
	timeoutBody  = `{"type":"order.timeout","version":1,` + anOrder + `}`
	paidBody     = `{"type":"order.paid","version":1,"payment_id":"p",` + anOrder + `}`
	foreignJSON  = `{"hello": ["world", 1e400], "hello": null}`
	binaryBody   = "\x00\x01\xff\xfe{\"\r\n"
	storyFirstAt = "2026-01-02T03:04:05.000000006Z"
	storyLastAt  = "2026-01-02T03:05:00Z"
)

// readAt is what tests give ReadParked for now. No message of theirs says this time.
var readAt = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

// parking is a fixture with a subscription to its parking queue.
type parking struct {
	*fixture
	messages <-chan *message.Message
}

func newParking(t *testing.T) parking {
	t.Helper()
	f := newFixture(t)
	messages, _ := f.subscribe(f.ctx(), f.topology.ParkingQueue(), rabbitmq.SubscriberConfig{NackDelay: time.Millisecond})
	return parking{f, messages}
}

// send publishes as any client of the broker may.
func (p parking) send(exchange, key string, m amqp.Publishing) {
	p.t.Helper()
	if err := p.raw.PublishWithContext(p.ctx(), exchange, key, true, false, m); err != nil {
		p.t.Fatal(err)
	}
}

// park sends a message to the parking exchange and returns what is read from it.
func (p parking) park(key string, m amqp.Publishing) rabbitmq.ParkedDelivery {
	p.t.Helper()
	p.send(p.topology.Namespace()+".parking.exchange", key, m)
	return p.read()
}

// read takes the next message out of the parking queue.
func (p parking) read() rabbitmq.ParkedDelivery {
	p.t.Helper()
	msg := receive(p.t, p.messages)
	msg.Ack()
	return p.topology.ReadParked(msg, readAt)
}

// crash takes a message from a consumer's queue and dies on it until the broker gives up.
func (p parking) crash(c rabbitmq.Consumer) {
	p.t.Helper()
	for range rabbitmq.DeliveryLimit + 1 {
		eventually(p.t, func() error {
			d, found, err := p.raw.Get(p.topology.Queue(c), false)
			if err != nil {
				p.t.Fatal(err)
			}
			if !found {
				return fmt.Errorf("%s stays empty", p.topology.Queue(c))
			}
			return d.Nack(false, true)
		})
	}
}

// story is what Outcomes writes on a message of the closer, and more after it.
func story(more amqp.Table) amqp.Table {
	headers := amqp.Table{
		rabbitmq.MetaConsumer: "closer", rabbitmq.MetaAttempts: "4", rabbitmq.MetaErrorClass: "transient", rabbitmq.MetaError: "no luck",
		rabbitmq.MetaQueue: "first.queue", rabbitmq.MetaExchange: "first.exchange", rabbitmq.MetaRoutingKey: "first.key",
		rabbitmq.MetaFirstFailedAt: storyFirstAt, rabbitmq.MetaLastFailedAt: storyLastAt,
	}
	maps.Copy(headers, more)
	return headers
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

// checkParked compares what a table states. Key, headers and story are for the caller.
func checkParked(t *testing.T, got, want rabbitmq.ParkedDelivery, payload string) {
	t.Helper()
	if string(got.Payload) != payload {
		t.Errorf("payload %q, want %q", got.Payload, payload)
	}
	for _, field := range []struct {
		name      string
		got, want any
	}{
		{"consumer", got.Consumer, want.Consumer}, {"type", got.Type, want.Type},
		{"class", got.Class, want.Class}, {"error", got.Error, want.Error}, {"attempts", got.Attempts, want.Attempts},
		{"queue", got.Queue, want.Queue}, {"exchange", got.Exchange, want.Exchange}, {"routing key", got.RoutingKey, want.RoutingKey},
		{"first failed at", got.FirstFailedAt.UTC(), want.FirstFailedAt.UTC()}, {"last failed at", got.LastFailedAt.UTC(), want.LastFailedAt.UTC()},
		{"replay of", got.ReplayOf, want.ReplayOf},
	} {
		if field.got != field.want {
			t.Errorf("%s: %v, want %v", field.name, field.got, field.want)
		}
	}
}

// What a consumer parked tells everything, in the words that Outcomes wrote; the sender's
// text headers are kept apart from the story, and nothing is made up.
func TestReadParkedAfterTheLadder(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	p.consume(func(*message.Message) error { return errors.New("always") })
	ns := p.topology.Namespace()
	p.send(ns+".dlx.exchange", ns+".timeout.key", amqp.Publishing{
		MessageId: "m-1", Type: "order.timeout", Body: []byte(binaryBody),
		Headers: amqp.Table{"tenant": "ä", "shard": int32(7)},
	})
	got := p.read()
	checkParked(t, got, rabbitmq.ParkedDelivery{
		Consumer: rabbitmq.Closer, Type: "order.timeout", Class: "transient", Error: "always", Attempts: len(p.ladder) + 1,
		Queue: p.topology.Queue(rabbitmq.Closer), Exchange: ns + ".dlx.exchange", RoutingKey: ns + ".timeout.key",
		FirstFailedAt: at(t, got.Story[rabbitmq.MetaFirstFailedAt]), LastFailedAt: at(t, got.Story[rabbitmq.MetaLastFailedAt]),
	}, binaryBody)
	if got.MessageID != "m-1" || !got.FirstFailedAt.Before(got.LastFailedAt) {
		t.Errorf("message %s failed first at %s, last at %s", got.MessageID, got.FirstFailedAt, got.LastFailedAt)
	}
	if !maps.Equal(got.Headers, map[string]string{"tenant": "ä"}) {
		t.Errorf("the sender's headers: %v", got.Headers)
	}
	if got.Story[rabbitmq.MetaOriginalHeaders] != `{"shard":"7"}` {
		t.Errorf("headers that are not text: %q", got.Story[rabbitmq.MetaOriginalHeaders])
	}
}

// A message that its consumer died on is told from all others, whatever the sender had
// written into the death history before: the broker's own entry is the newest.
func TestReadParkedAfterACrashLoop(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	const died = "came back 21 times without an answer: its consumer died on it"
	for name, test := range map[string]struct {
		consumer rabbitmq.Consumer
		headers  amqp.Table
		err      string
		attempts int
		origin   string // where the story says that it came from
	}{
		"without a story":        {consumer: rabbitmq.Closer, err: died, attempts: 21},
		"of the notifier":        {consumer: rabbitmq.Notifier, err: died, attempts: 21},
		"after a failure":        {consumer: rabbitmq.Closer, headers: story(nil), err: died + "; before that: no luck", attempts: 21, origin: "first."},
		"after many failures":    {consumer: rabbitmq.Closer, headers: story(amqp.Table{rabbitmq.MetaAttempts: "30"}), err: died + "; before that: no luck", attempts: 30, origin: "first."},
		"history that is text":   {consumer: rabbitmq.Closer, headers: amqp.Table{"x-death": "text"}, err: died, attempts: 21},
		"history of wrong types": {consumer: rabbitmq.Closer, headers: amqp.Table{"x-death": []any{amqp.Table{"count": "text"}, amqp.Table{"queue": int64(3)}, amqp.Table{}}}, err: died, attempts: 21},
		"history of no time": {consumer: rabbitmq.Closer, headers: amqp.Table{"x-death": []any{amqp.Table{
			"count": int64(1), "reason": "expired", "queue": "q", "exchange": "", "routing-keys": []any{"k"}, "time": time.Unix(1<<40, 0),
		}}}, err: died, attempts: 21},
	} {
		p.send("", p.topology.Queue(test.consumer), amqp.Publishing{MessageId: name, Headers: test.headers, Body: []byte(binaryBody)})
		p.crash(test.consumer)
		got := p.read()
		t.Run(name, func(t *testing.T) {
			queue := p.topology.Queue(test.consumer)
			want := rabbitmq.ParkedDelivery{
				Consumer: test.consumer, Class: rabbitmq.ClassDeliveryLimit, Error: test.err, Attempts: test.attempts,
				Queue: queue, RoutingKey: queue, // sent through the default exchange
				FirstFailedAt: got.LastFailedAt, LastFailedAt: got.LastFailedAt,
			}
			if test.origin != "" {
				want.Queue, want.Exchange, want.RoutingKey = test.origin+"queue", test.origin+"exchange", test.origin+"key"
				want.FirstFailedAt = at(t, storyFirstAt)
			}
			checkParked(t, got, want, binaryBody)
			if got.MessageID != name {
				t.Errorf("message id %q", got.MessageID)
			}
			if when := got.LastFailedAt.Format(time.RFC3339); !strings.Contains(got.Story["amqp.header.x-death"], when) {
				t.Errorf("last failed at %s, the broker says %s", when, got.Story["amqp.header.x-death"])
			}
		})
	}
}

// Everything else that can lie in the parking queue: what a person or another program put
// there, with as much of a story as it happens to have.
func TestReadParkedFillsInWhatIsMissing(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	ns := p.topology.Namespace()
	death := func(queue, reason string) []any {
		return []any{amqp.Table{
			"count": int64(1), "queue": queue, "reason": reason, "exchange": "an.exchange",
			"routing-keys": []any{"one", "two"}, "time": time.Unix(1767323045, 0),
		}}
	}
	deathAt := time.Unix(1767323045, 0)
	none := rabbitmq.ParkedDelivery{Class: rabbitmq.ClassUnknown, Error: "parked without a reason", FirstFailedAt: readAt, LastFailedAt: readAt}
	of := func(c rabbitmq.Consumer) rabbitmq.ParkedDelivery {
		want := none
		want.Consumer = c
		return want
	}
	told := rabbitmq.ParkedDelivery{
		Consumer: rabbitmq.Closer, Class: "transient", Error: "no luck", Attempts: 4,
		Queue: "first.queue", Exchange: "first.exchange", RoutingKey: "first.key",
		FirstFailedAt: at(t, storyFirstAt), LastFailedAt: at(t, storyLastAt),
	}
	with := func(d rabbitmq.ParkedDelivery, change func(*rabbitmq.ParkedDelivery)) rabbitmq.ParkedDelivery {
		change(&d)
		return d
	}
	for name, test := range map[string]struct {
		key     string
		headers amqp.Table
		typ     string
		body    string
		want    rabbitmq.ParkedDelivery
	}{
		"story": {key: "closer.parked", headers: story(nil), body: binaryBody, want: told},
		"story of a replay": {key: "closer.parked", headers: story(amqp.Table{rabbitmq.MetaReplayOf: "parking-1"}), want: with(told, func(d *rabbitmq.ParkedDelivery) {
			d.ReplayOf = "parking-1"
		})},
		"story beats a death that is no crash": {key: "x", headers: story(amqp.Table{"x-death": death(ns+".notify.queue", "expired")}), want: told},
		"story beats a death of another way":   {key: "closer.parked", headers: story(amqp.Table{"x-death": death(ns+".timeout.queue", "delivery_limit")}), want: told},
		"story without an end": {key: "closer.parked", headers: story(amqp.Table{rabbitmq.MetaLastFailedAt: ""}), want: with(told, func(d *rabbitmq.ParkedDelivery) {
			d.LastFailedAt = readAt
		})},
		"story without a beginning": {key: "closer.parked", headers: story(amqp.Table{rabbitmq.MetaFirstFailedAt: ""}), want: with(told, func(d *rabbitmq.ParkedDelivery) {
			d.FirstFailedAt = d.LastFailedAt
		})},
		"story without a class": {key: "closer.parked", headers: story(amqp.Table{rabbitmq.MetaErrorClass: ""}), want: with(told, func(d *rabbitmq.ParkedDelivery) {
			d.Class, d.Error = rabbitmq.ClassUnknown, "parked without a reason"
		})},
		"dead letter": {key: "x", headers: amqp.Table{"x-death": death(ns+".notify.queue", "rejected")}, want: rabbitmq.ParkedDelivery{
			Consumer: rabbitmq.Notifier, Class: rabbitmq.ClassUnknown, Error: "dead-lettered by the broker: rejected",
			Queue: ns + ".notify.queue", Exchange: "an.exchange", RoutingKey: "one two", FirstFailedAt: deathAt, LastFailedAt: deathAt,
		}},
		"dead letter of nobody": {key: "x", headers: amqp.Table{"x-death": death("strange.queue", "maxlen")}, want: rabbitmq.ParkedDelivery{
			Class: rabbitmq.ClassUnknown, Error: "dead-lettered by the broker: maxlen",
			Queue: "strange.queue", Exchange: "an.exchange", RoutingKey: "one two", FirstFailedAt: deathAt, LastFailedAt: deathAt,
		}},

		"nothing at all":                {body: "", want: none},
		"foreign JSON":                  {key: "x", body: foreignJSON, want: none},
		"binary":                        {key: "x", body: binaryBody, want: none},
		"type of the sender":            {key: "x", typ: "their.event", body: foreignJSON, want: with(none, func(d *rabbitmq.ParkedDelivery) { d.Type = "their.event" })},
		"type among the headers":        {key: "x", headers: amqp.Table{"type": "their.event"}, want: with(none, func(d *rabbitmq.ParkedDelivery) { d.Type = "their.event" })},
		"consumer by its name":          {key: "closer.parked", headers: amqp.Table{rabbitmq.MetaConsumer: "notifier"}, body: timeoutBody, want: of(rabbitmq.Notifier)},
		"consumer that nobody knows":    {key: "x", headers: amqp.Table{rabbitmq.MetaConsumer: "mailer"}, want: none},
		"unknown consumer, known key":   {key: "notifier.parked", headers: amqp.Table{rabbitmq.MetaConsumer: "mailer"}, want: of(rabbitmq.Notifier)},
		"consumer by the routing key":   {key: "closer.parked", body: paidBody, want: of(rabbitmq.Closer)},
		"consumer by its queue":         {key: "x", headers: amqp.Table{rabbitmq.MetaQueue: ns + ".notify.queue"}, want: with(of(rabbitmq.Notifier), func(d *rabbitmq.ParkedDelivery) { d.Queue = ns + ".notify.queue" })},
		"consumer by a timer":           {key: "x", body: timeoutBody, want: of(rabbitmq.Closer)},
		"consumer by an event":          {key: "x", body: paidBody, want: of(rabbitmq.Notifier)},
		"event that is broken":          {key: "x", body: strings.Replace(paidBody, "payment_id", "payment", 1), want: none},
		"event of a version to come":    {key: "x", body: strings.Replace(paidBody, `"version":1`, `"version":2`, 1), want: none},
		"crash that never was":          {key: "closer.delivery_limit", want: of(rabbitmq.Closer)},
		"routing key that begins alike": {key: "closers.parked", want: none},
	} {
		got := p.park(test.key, amqp.Publishing{MessageId: "id of " + name, Type: test.typ, Headers: test.headers, Body: []byte(test.body)})
		t.Run(name, func(t *testing.T) {
			checkParked(t, got, test.want, test.body)
			if got.MessageID != "id of "+name || len(got.Key) == 0 || got.Headers == nil || len(got.Headers) > 0 {
				t.Errorf("message id %q, key %x, headers %v", got.MessageID, got.Key, got.Headers)
			}
			if got.Story["amqp.routing_key"] != test.key {
				t.Errorf("story: %v", got.Story)
			}
		})
	}
}

// A body of any size comes through as it was.
func TestReadParkedKeepsALargePayload(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	body := bytes.Repeat([]byte{0, 1, 0xff, '"'}, rabbitmq.MaxMessageSize/2)
	if got := p.park("x", amqp.Publishing{Body: body}); !bytes.Equal(got.Payload, body) {
		t.Errorf("%d bytes came back, %d were sent", len(got.Payload), len(body))
	}
}

// Whatever the sender calls a message it keeps its name; one without a name gets one.
func TestReadParkedKeepsMessageIDs(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	for _, id := range []string{" ", "not a uuid", "a|b\n\"c\"", "\x00\xff", "ä" + strings.Repeat("x", 253), "00000000-0000-0000-0000-000000000000"} {
		if got := p.park("x", amqp.Publishing{MessageId: id, Body: []byte("x")}); got.MessageID != id || string(got.Payload) != "x" {
			t.Errorf("sent as %q, read as %q with %q", id, got.MessageID, got.Payload)
		}
	}
	first, second := p.park("x", amqp.Publishing{Body: []byte("1")}), p.park("x", amqp.Publishing{Body: []byte("2")})
	if first.MessageID == "" || first.MessageID == second.MessageID {
		t.Errorf("messages without ids became %q and %q", first.MessageID, second.MessageID)
	}
}

// The same delivery has the same key when it comes again, a generated id or not, and any
// other message has another one.
func TestReadParkedKeyIsOfTheDelivery(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	owner := map[string]string{}
	for name, m := range map[string]struct {
		key string
		amqp.Publishing
	}{
		"anonymous":      {"x", amqp.Publishing{Body: []byte("body")}},
		"named":          {"x", amqp.Publishing{MessageId: "a", Body: []byte("body")}},
		"other name":     {"x", amqp.Publishing{MessageId: "b", Body: []byte("body")}},
		"other body":     {"x", amqp.Publishing{MessageId: "a", Body: []byte("bodY")}},
		"other key":      {"y", amqp.Publishing{MessageId: "a", Body: []byte("body")}},
		"other type":     {"x", amqp.Publishing{MessageId: "a", Type: "t", Body: []byte("body")}},
		"header":         {"x", amqp.Publishing{MessageId: "a", Headers: amqp.Table{"h": "1"}, Body: []byte("body")}},
		"other value":    {"x", amqp.Publishing{MessageId: "a", Headers: amqp.Table{"h": "2"}, Body: []byte("body")}},
		"another header": {"x", amqp.Publishing{MessageId: "a", Headers: amqp.Table{"h1": ""}, Body: []byte("body")}},
		"other replay":   {"x", amqp.Publishing{MessageId: "a", Headers: amqp.Table{rabbitmq.MetaReplayOf: "1"}, Body: []byte("body")}},
		"other failure":  {"x", amqp.Publishing{MessageId: "a", Headers: story(nil), Body: []byte("body")}},
		"other death":    {"x", amqp.Publishing{MessageId: "a", Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "q"}}}, Body: []byte("body")}},
	} {
		p.send(p.topology.Namespace()+".parking.exchange", m.key, m.Publishing)
		before := receive(t, p.messages)
		before.Nack()
		again := receive(t, p.messages)
		again.Ack()
		if again.Metadata.Get("amqp.redelivered") == "" {
			t.Fatalf("%s: not the same delivery: %v", name, again.Metadata)
		}
		key := p.topology.ReadParked(before, readAt).Key
		if !bytes.Equal(p.topology.ReadParked(again, readAt.Add(time.Hour)).Key, key) {
			t.Errorf("%s: another key when it comes again", name)
		}
		if other, taken := owner[string(key)]; taken {
			t.Errorf("%s has the key of %s", name, other)
		}
		owner[string(key)] = name
	}
}

// Headers are whatever a stranger likes. The message is read all the same, whole, with
// fields that can be stored and shown.
func TestReadParkedTakesAnyHeaders(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	deep := amqp.Table{"end": int64(1)}
	for range 15 { // the client reads 32 levels
		deep = amqp.Table{"d": []any{deep}}
	}
	everything := func(value any) amqp.Table {
		headers := amqp.Table{"theirs": value, "x-death": value, "type": value, rabbitmq.MetaReplayOf: value}
		for key := range story(nil) {
			headers[key] = value
		}
		return headers
	}
	unknown := rabbitmq.ParkedDelivery{Class: rabbitmq.ClassUnknown, Error: "parked without a reason", FirstFailedAt: readAt, LastFailedAt: readAt}
	told := func(change func(*rabbitmq.ParkedDelivery)) rabbitmq.ParkedDelivery {
		d := rabbitmq.ParkedDelivery{
			Consumer: rabbitmq.Closer, Class: "transient", Error: "no luck", Attempts: 4,
			Queue: "first.queue", Exchange: "first.exchange", RoutingKey: "first.key",
			FirstFailedAt: at(t, storyFirstAt), LastFailedAt: at(t, storyLastAt),
		}
		change(&d)
		return d
	}
	attempts := func(n int) rabbitmq.ParkedDelivery {
		return told(func(d *rabbitmq.ParkedDelivery) { d.Attempts = n })
	}
	times := func(first, last time.Time) rabbitmq.ParkedDelivery {
		return told(func(d *rabbitmq.ParkedDelivery) { d.FirstFailedAt, d.LastFailedAt = first, last })
	}
	bothAt := func(text any) amqp.Table {
		return story(amqp.Table{rabbitmq.MetaFirstFailedAt: text, rabbitmq.MetaLastFailedAt: text})
	}
	for name, test := range map[string]struct {
		headers amqp.Table
		want    rabbitmq.ParkedDelivery
	}{
		"numbers":                {everything(int64(-7)), unknown},
		"floats":                 {everything(1e300), unknown},
		"bools":                  {everything(true), unknown},
		"nothing":                {everything(nil), unknown},
		"decimals":               {everything(amqp.Decimal{Scale: 255, Value: -1}), unknown},
		"bytes":                  {everything([]byte("\x00\xff")), unknown},
		"times":                  {everything(time.Unix(1767323045, 0)), unknown},
		"times without a year":   {everything(time.Unix(math.MaxInt64, 0)), unknown},
		"times before all":       {everything(time.Unix(math.MinInt64, 0)), unknown},
		"tables":                 {everything(amqp.Table{"a": amqp.Table{"b": int32(1)}}), unknown},
		"arrays":                 {everything([]any{[]any{[]any{"a", nil, time.Unix(1<<40, 0)}}, amqp.Table{}}), unknown},
		"deep":                   {amqp.Table{"x-death": []any{deep}, "theirs": deep}, unknown},
		"strange names":          {amqp.Table{"": "a", "\x00\xff": "b", "amqp.routing_key": "closer.delivery_limit", "amqp.queue": "q", "amqp.generated_id": "true"}, unknown},
		"attempts below zero":    {story(amqp.Table{rabbitmq.MetaAttempts: "-1"}), attempts(0)},
		"attempts beyond all":    {story(amqp.Table{rabbitmq.MetaAttempts: "99999999999999999999"}), attempts(0)},
		"many attempts":          {story(amqp.Table{rabbitmq.MetaAttempts: "2147483648"}), attempts(1000)},
		"attempts in words":      {story(amqp.Table{rabbitmq.MetaAttempts: "two"}), attempts(0)},
		"attempts as a number":   {story(amqp.Table{rabbitmq.MetaAttempts: int64(3)}), attempts(0)},
		"a huge error":           {story(amqp.Table{rabbitmq.MetaError: strings.Repeat("ä", 30_000)}), told(func(d *rabbitmq.ParkedDelivery) { d.Error = strings.Repeat("ä", 30_000) })},
		"times in words":         {bothAt("yesterday"), times(readAt, readAt)},
		"times as numbers":       {bothAt("1767323045"), times(readAt, readAt)},
		"times that never were":  {bothAt("2026-02-30T00:00:00Z"), times(readAt, readAt)},
		"year 0":                 {bothAt("0000-06-01T00:00:00Z"), times(readAt, readAt)},
		"year 0 in UTC":          {bothAt("0001-01-01T00:00:00+14:00"), times(readAt, readAt)},
		"year 10000 in UTC":      {bothAt("9999-12-31T23:59:59-14:00"), times(readAt, readAt)},
		"times of another place": {bothAt("2026-01-02T04:04:05.000000006+01:00"), times(at(t, storyFirstAt), at(t, storyFirstAt))},
		"last before first": {
			story(amqp.Table{rabbitmq.MetaFirstFailedAt: storyLastAt, rabbitmq.MetaLastFailedAt: storyFirstAt}),
			times(at(t, storyFirstAt), at(t, storyFirstAt)),
		},
		"death history as text": {amqp.Table{"x-death": `[{"queue":"q","reason":"maxlen","time":"9999-12-31T23:59:59-14:00"}]`}, func() rabbitmq.ParkedDelivery {
			d := unknown
			d.Queue, d.Error = "q", "dead-lettered by the broker: maxlen"
			return d
		}()},
		"death history that is no list": {amqp.Table{"x-death": amqp.Table{"queue": "q", "reason": "maxlen"}}, unknown},
		"death history of nothing":      {amqp.Table{"x-death": []any{}}, unknown},
		"death history of texts":        {amqp.Table{"x-death": []any{"a", "b"}}, unknown},
		"death in wrong types": {amqp.Table{"x-death": []any{amqp.Table{
			"queue": int64(1), "reason": amqp.Table{}, "routing-keys": "k", "time": "now",
		}}}, unknown},
	} {
		got := p.park("x", amqp.Publishing{MessageId: name, Headers: test.headers, Body: []byte(binaryBody)})
		t.Run(name, func(t *testing.T) {
			checkParked(t, got, test.want, binaryBody)
			if got.MessageID != name {
				t.Errorf("message id %q", got.MessageID)
			}
			if _, err := json.Marshal([]time.Time{got.FirstFailedAt, got.LastFailedAt}); err != nil {
				t.Errorf("cannot be shown: %v", err)
			}
			for key := range got.Headers {
				if _, isText := test.headers[key].(string); !isText {
					t.Errorf("a replay would send %q as text", key)
				}
			}
		})
	}
}

// A replay goes to the queue of the consumer that failed and to nobody else, as the
// sender had sent it: nothing of the failure and of the broker's history goes along.
func TestReplayGoesToTheFailingConsumerOnly(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	large := string(bytes.Repeat([]byte("x"), rabbitmq.MaxMessageSize+1))
	for name, test := range map[string]struct {
		consumer rabbitmq.Consumer
		typ      string
		body     string
	}{
		"timer":                  {rabbitmq.Closer, "order.timeout", timeoutBody},
		"event":                  {rabbitmq.Notifier, "order.paid", paidBody},
		"timer at the notifier":  {rabbitmq.Notifier, "order.timeout", timeoutBody},
		"binary without a type":  {rabbitmq.Closer, "", binaryBody},
		"larger than we send":    {rabbitmq.Notifier, "order.closed", large},
		"nothing":                {rabbitmq.Closer, "order.timeout", ""},
		"type that is very long": {rabbitmq.Closer, strings.Repeat("t", 255), foreignJSON},
	} {
		headers := story(amqp.Table{
			"tenant": "ä", "empty": "", "traceparent": "00-1-2-03", "shard": int32(1),
			rabbitmq.MetaConsumer: string(test.consumer), rabbitmq.MetaReplayOf: "the parking before",
			rabbitmq.MetaOriginalHeaders: "{}", rabbitmq.MetaDeathHistory: "[]", "ordertimeout-of-a-later-release": "1",
			"x-death": []any{amqp.Table{"count": int64(1), "queue": p.topology.Queue(test.consumer), "reason": "expired"}},
			"x-other": "1",
		})
		parked := p.park("closer.parked", amqp.Publishing{MessageId: "id", Type: test.typ, Headers: headers, Body: []byte(test.body)})
		out := p.topology.Replay(parked.Consumer, parked.MessageID, "parking-2", parked.Type, parked.Headers, parked.Payload)
		if err := p.publisher.PublishAll(p.ctx(), []rabbitmq.Outgoing{out})[0]; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := p.get(p.topology.Queue(test.consumer))
		t.Run(name, func(t *testing.T) {
			if out.Route != (rabbitmq.Route{Key: p.topology.Queue(test.consumer)}) {
				t.Errorf("goes to %+v", out.Route)
			}
			if string(got.Body) != test.body || got.MessageId != "id" || got.Type != test.typ || got.DeliveryMode != amqp.Persistent {
				t.Errorf("arrived as %s of type %q, mode %d, %d bytes", got.MessageId, got.Type, got.DeliveryMode, len(got.Body))
			}
			delete(got.Headers, "x-delivery-count") // the broker's, of this delivery
			want := map[string]any{"tenant": "ä", "empty": "", "traceparent": "00-1-2-03", "type": test.typ, rabbitmq.MetaReplayOf: "parking-2"}
			if !maps.Equal(map[string]any(got.Headers), want) {
				t.Errorf("headers %v, want %v", got.Headers, want)
			}
		})
		queues, _ := p.topology.Names()
		for _, queue := range queues {
			if d, found, err := p.raw.Get(queue, true); err != nil || found {
				t.Errorf("%s: a copy in %s: %q, %v", name, queue, d.Body, err)
			}
		}
	}
}

// What a replay says itself counts, whatever the headers it is given claim.
func TestReplayOverridesItsHeaders(t *testing.T) {
	t.Parallel()
	headers := map[string]string{rabbitmq.MetaReplayOf: "another", rabbitmq.MetaType: "another", "tenant": "a"}
	given := maps.Clone(headers)
	topology := managementTopology()
	out := topology.Replay(rabbitmq.Closer, "id", "parking", "order.timeout", headers, []byte(binaryBody))
	want := message.Metadata{rabbitmq.MetaReplayOf: "parking", rabbitmq.MetaType: "order.timeout", "tenant": "a"}
	if out.Message.UUID != "id" || string(out.Message.Payload) != binaryBody || !maps.Equal(out.Message.Metadata, want) {
		t.Errorf("%s %q %v", out.Message.UUID, out.Message.Payload, out.Message.Metadata)
	}
	if !maps.Equal(headers, given) {
		t.Errorf("the headers that were given changed: %v", headers)
	}
}

// A replay has the whole ladder before it, and the parking it ends in names the one it
// came from.
func TestReplayFailsAgainWithAFreshBudget(t *testing.T) {
	t.Parallel()
	p := newParking(t)
	parked := p.park("closer.parked", amqp.Publishing{MessageId: "id", Headers: story(amqp.Table{"tenant": "a"}), Body: []byte(binaryBody)})
	calls := make(chan string, 100)
	p.consume(func(msg *message.Message) error {
		calls <- msg.Metadata.Get(rabbitmq.MetaAttempts)
		return errors.New("again")
	})
	out := p.topology.Replay(parked.Consumer, parked.MessageID, "parking-1", parked.Type, parked.Headers, parked.Payload)
	if err := p.publisher.PublishAll(p.ctx(), []rabbitmq.Outgoing{out})[0]; err != nil {
		t.Fatal(err)
	}
	again := p.read()
	var attempts []string
	for len(calls) > 0 {
		attempts = append(attempts, <-calls)
	}
	if !slices.Equal(attempts, []string{"", "1", "2"}) {
		t.Errorf("handled after %q attempts", attempts)
	}
	if again.ReplayOf != "parking-1" || again.Attempts != len(p.ladder)+1 || again.Error != "again" || again.MessageID != "id" || string(again.Payload) != binaryBody {
		t.Errorf("parked again as %+v", again)
	}
	if again.Queue != p.topology.Queue(rabbitmq.Closer) || !again.FirstFailedAt.After(parked.LastFailedAt) || bytes.Equal(again.Key, parked.Key) {
		t.Errorf("the earlier story went along: %+v", again)
	}
	if !maps.Equal(again.Headers, map[string]string{"tenant": "a"}) {
		t.Errorf("headers %v", again.Headers)
	}
}

func TestParseConsumer(t *testing.T) {
	t.Parallel()
	for _, c := range rabbitmq.Consumers {
		if got, known := rabbitmq.ParseConsumer(string(c)); got != c || !known {
			t.Errorf("%s: %q, known %v", c, got, known)
		}
	}
	for _, text := range []string{"", "Closer", " closer", "closer ", "closer\x00", "closer.parked", "notif", "mailer"} {
		if _, known := rabbitmq.ParseConsumer(text); known {
			t.Errorf("%q is known", text)
		}
	}
}

// Every type of event is handled by one consumer.
func TestConsumerHandles(t *testing.T) {
	t.Parallel()
	for typ, want := range map[domain.EventType][]rabbitmq.Consumer{
		domain.TypeOrderTimeout: {rabbitmq.Closer},
		domain.TypeOrderPaid:    {rabbitmq.Notifier},
		domain.TypeOrderClosed:  {rabbitmq.Notifier},
		domain.TypeRefundDue:    {rabbitmq.Notifier},
		"their.event":           nil,
		"":                      nil,
	} {
		var got []rabbitmq.Consumer
		for _, c := range rabbitmq.Consumers {
			if slices.Contains(c.Handles(), typ) {
				got = append(got, c)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q is handled by %v, want %v", typ, got, want)
		}
	}
}
