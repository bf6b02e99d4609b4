package rabbitmq

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/ordertimeout/domain"
)

// MetaReplayOf is the id of the parking that a replay took the message from. It stays
// on the message while it climbs the ladder, so that the next parking knows the earlier.
const MetaReplayOf = metaOwn + "replay-of"

// Classes of what the broker itself parked; domain.Class names the others.
const (
	ClassDeliveryLimit = "delivery_limit" // its consumer died on it too often
	ClassUnknown       = "unknown"        // somebody put it there without a word
)

// ParkedDelivery is what a message in the parking queue tells.
type ParkedDelivery struct {
	Key           []byte   // digest: the same delivery again has the same one
	Consumer      Consumer // empty when nothing tells
	Type          string
	MessageID     string
	Class         string
	Error         string
	Attempts      int
	Queue         string
	Exchange      string
	RoutingKey    string
	FirstFailedAt time.Time
	LastFailedAt  time.Time
	ReplayOf      string            // the parking that a replay had taken it from
	Headers       map[string]string // the sender's own
	Story         map[string]string // everything else
	Payload       []byte
}

// ReadParked reads a message from the parking queue. It never fails: what is missing,
// because the broker parked the message or a stranger did, is filled in from the
// broker's death history, and with now for times.
func (t Topology) ReadParked(msg *message.Message, now time.Time) ParkedDelivery {
	own := func(key string) string { return msg.Metadata.Get(key) }
	death := lastDeath(msg)
	p := ParkedDelivery{
		Key:        parkingKey(msg),
		Consumer:   t.failedConsumer(msg, death),
		Type:       own(MetaType),
		MessageID:  msg.UUID,
		Class:      own(MetaErrorClass),
		Error:      own(MetaError),
		Attempts:   attempts(msg),
		Queue:      orText(own(MetaQueue), death.Queue),
		Exchange:   orText(own(MetaExchange), death.Exchange),
		RoutingKey: orText(own(MetaRoutingKey), strings.Join(death.RoutingKeys, " ")),
		ReplayOf:   own(MetaReplayOf),
		Headers:    map[string]string{},
		Story:      map[string]string{},
		Payload:    msg.Payload,
	}
	p.LastFailedAt = readTime(own(MetaLastFailedAt), orTime(death.Time, now))
	p.FirstFailedAt = readTime(own(MetaFirstFailedAt), p.LastFailedAt)
	p.explain(own(metaRoutingKey), death)
	if p.FirstFailedAt.After(p.LastFailedAt) { // the broker's times are whole seconds, a stranger's anything
		p.FirstFailedAt = p.LastFailedAt
	}
	for key, value := range msg.Metadata {
		switch {
		case key == MetaType || key == metaQueue:
		case sendable(key) && !strings.HasPrefix(key, metaOwn):
			p.Headers[key] = value
		default:
			p.Story[key] = value
		}
	}
	return p
}

// explain fills in why the broker parked a message: the handler never came to say it.
func (p *ParkedDelivery) explain(routingKey string, death death) {
	switch {
	case death.Reason == ClassDeliveryLimit && strings.HasSuffix(routingKey, keyDeliveryLimit):
		before := ""
		if p.Error != "" {
			before = "; before that: " + p.Error
		}
		p.Class = ClassDeliveryLimit
		p.Error = fmt.Sprintf("came back %d times without an answer: its consumer died on it%s", DeliveryLimit+1, before)
		p.Attempts = max(p.Attempts, DeliveryLimit+1)
		p.LastFailedAt = orTime(death.Time, p.LastFailedAt)
	case p.Class == "" && death.Reason != "":
		p.Class = ClassUnknown
		p.Error = "dead-lettered by the broker: " + death.Reason
	case p.Class == "":
		p.Class = ClassUnknown
		p.Error = "parked without a reason"
	}
}

// failedConsumer finds out whose message it is: by what it says itself, by the way it
// came, or by what it is.
func (t Topology) failedConsumer(msg *message.Message, death death) Consumer {
	said, _, _ := strings.Cut(msg.Metadata.Get(metaRoutingKey), ".")
	for _, c := range Consumers {
		if msg.Metadata.Get(MetaConsumer) == string(c) {
			return c
		}
	}
	for _, c := range Consumers {
		if said == string(c) || death.Queue == t.Queue(c) || msg.Metadata.Get(MetaQueue) == t.Queue(c) {
			return c
		}
	}
	event, err := domain.DecodeEvent(msg.Payload)
	for _, c := range Consumers {
		if err == nil && slices.Contains(c.Handles(), event.Type()) {
			return c
		}
	}
	return ""
}

// Replay returns a parked message as a replay sends it: to its consumer's queue and to
// nobody else, with its own id and headers, a fresh budget of attempts, and nothing of
// the broker's death history, which would make a broker of version 3 drop it as a cycle.
func (t Topology) Replay(c Consumer, id, parkedID, eventType string, headers map[string]string, payload []byte) Outgoing {
	msg := message.NewMessage(id, payload)
	for key, value := range headers {
		msg.Metadata.Set(key, value)
	}
	msg.Metadata.Set(MetaType, eventType)
	msg.Metadata.Set(MetaReplayOf, parkedID)
	return Outgoing{Route: Route{Key: t.Queue(c)}, Message: msg, delivered: true}
}

// death is one entry of the broker's history of a message.
type death struct {
	Queue       string    `json:"queue"`
	Reason      string    `json:"reason"`
	Exchange    string    `json:"exchange"`
	RoutingKeys []string  `json:"routing-keys"`
	Time        time.Time `json:"time"`
}

// lastDeath returns the newest entry, or nothing when it cannot be read. The broker puts
// its own in front of whatever the sender had written there.
func lastDeath(msg *message.Message) death {
	var deaths []json.RawMessage
	if err := json.Unmarshal([]byte(msg.Metadata.Get(metaDeath)), &deaths); err != nil || len(deaths) == 0 {
		return death{}
	}
	var newest death
	if err := json.Unmarshal(deaths[0], &newest); err != nil {
		return death{}
	}
	return newest
}

// parkingKey digests everything of a delivery that stays the same when it comes again.
func parkingKey(msg *message.Message) []byte {
	sum := sha256.New()
	if msg.Metadata.Get(metaGeneratedID) == "" {
		digest(sum, msg.UUID)
	}
	for _, key := range slices.Sorted(maps.Keys(msg.Metadata)) {
		if sendable(key) || key == metaDeath || key == metaRoutingKey {
			digest(sum, key)
			digest(sum, msg.Metadata[key])
		}
	}
	digest(sum, string(msg.Payload))
	return sum.Sum(nil)
}

// digest writes a text so that it cannot run into its neighbour.
func digest(sum hash.Hash, text string) {
	_, _ = fmt.Fprintf(sum, "%d:%s", len(text), text) // a hash takes everything
}

func readTime(text string, missing time.Time) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return missing
	}
	return orTime(t, missing)
}

// orTime replaces a time that cannot be shown too: a list with it would fail as a whole.
func orTime(t, missing time.Time) time.Time {
	if t.IsZero() || !shown(t) {
		return missing
	}
	return t
}

func orText(text, missing string) string {
	if text == "" {
		return missing
	}
	return text
}

// ParseConsumer returns false for a text that names none.
func ParseConsumer(text string) (Consumer, bool) {
	c := Consumer(text)
	return c, slices.Contains(Consumers, c)
}
