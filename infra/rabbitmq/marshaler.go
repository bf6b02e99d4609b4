package rabbitmq

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Metadata of a message. What begins with "amqp." describes one delivery: it is there
// to be read and never sent.
const (
	MetaType       = "type" // the event's type, also the AMQP type property
	metaReadOnly   = "amqp."
	metaExchange   = metaReadOnly + "exchange"
	metaRoutingKey = metaReadOnly + "routing_key"
	metaQueue      = metaReadOnly + "queue"
	metaDeath      = metaReadOnly + "header.x-death"

	metaGeneratedID = metaReadOnly + "generated_id" // it came without an id of its own
)

// MaxMessageSize bounds a body that is published, in bytes. The broker closes the
// channel over a message that is too large for it (16 MiB from version 4), and
// everything else that was on its way with it; ours are a few hundred bytes. A body that
// the broker delivered is moved on whatever its size: the broker took it before.
const MaxMessageSize = 1 << 20

const (
	maxHeaderValue = 4 << 10  // longer text is clipped
	maxHeaders     = 64 << 10 // all of them together must fit one frame of 128 KiB
)

// ErrTooLarge says: the message cannot be sent, now or later.
var ErrTooLarge = errors.New("message is too large")

// Marshaler maps between Watermill and AMQP. Unlike watermill-amqp's default it takes
// every delivery: a dead-lettered message carries a table and a redelivered one an
// integer among its headers, and both must reach the handler.
type Marshaler struct{}

var _ wamqp.Marshaler = Marshaler{}

// Marshal makes a persistent message. Metadata becomes headers, except the broker's
// own x-* and what only describes a delivery: a broker of version 3 drops replayed
// messages as a cycle when a client sends x-death back.
//
// It never fails. Header values are clipped, and dropped once they no longer fit a frame.
func (Marshaler) Marshal(msg *message.Message) (amqp.Publishing, error) {
	headers := amqp.Table{}
	size := 0
	for _, key := range sortedStoryFirst(msg.Metadata) {
		value := clip(msg.Metadata[key], maxHeaderValue)
		size += len(key) + len(value) + 8
		if len(key) > 255 || size > maxHeaders {
			continue
		}
		headers[key] = value
	}
	return amqp.Publishing{
		Headers:      headers,
		ContentType:  "application/json",
		DeliveryMode: amqp.Persistent,
		MessageId:    msg.UUID,
		Type:         clip(msg.Metadata.Get(MetaType), 255),
		Timestamp:    time.Now().UTC(),
		Body:         msg.Payload,
	}, nil
}

// Unmarshal never fails on a real delivery. It refuses the empty one that the client
// hands out when a queue is deleted under its consumer.
func (Marshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errors.New("not a delivery: the consumer was cancelled")
	}
	msg := message.NewMessage(d.MessageId, d.Body)
	if d.MessageId == "" { // a stranger's message: it still needs a name
		msg.UUID = uuid.NewString()
		msg.Metadata.Set(metaGeneratedID, "true")
	}
	for key, value := range d.Headers {
		text, isText := value.(string)
		switch {
		case isText && sendable(key):
			msg.Metadata.Set(key, text)
		case isText:
			msg.Metadata.Set(metaReadOnly+"header."+key, text)
		default:
			msg.Metadata.Set(metaReadOnly+"header."+key, asText(value))
		}
	}
	if d.Type != "" {
		msg.Metadata.Set(MetaType, d.Type)
	}
	msg.Metadata.Set(metaExchange, d.Exchange)
	msg.Metadata.Set(metaRoutingKey, d.RoutingKey)
	if d.Redelivered {
		msg.Metadata.Set(metaReadOnly+"redelivered", "true")
	}
	if !d.Timestamp.IsZero() {
		msg.Metadata.Set(metaReadOnly+"timestamp", d.Timestamp.UTC().Format(time.RFC3339))
	}
	return msg, nil
}

func sendable(key string) bool {
	return !strings.HasPrefix(key, "x-") && !strings.HasPrefix(key, metaReadOnly)
}

// sortedStoryFirst lists the keys to send, the story of a failure before everything else,
// so that it is never dropped: a message without its attempts would climb for ever.
func sortedStoryFirst(metadata message.Metadata) []string {
	var story, others []string
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch {
		case !sendable(key):
		case ofStory(key):
			story = append(story, key)
		default:
			others = append(others, key)
		}
	}
	return append(story, others...)
}

// ofStory tells the headers that this application writes; all of them together fit.
func ofStory(key string) bool {
	switch key {
	case MetaType, MetaAttempts, MetaConsumer, MetaQueue, MetaExchange, MetaRoutingKey, MetaFirstFailedAt,
		MetaLastFailedAt, MetaErrorClass, MetaError, MetaDeathHistory, MetaOriginalHeaders, MetaReplayOf:
		return true
	default:
		return false
	}
}

// asText writes a header's value as JSON. Every dead letter has one that is not text, so
// this is done without reflection.
func asText(value any) string { return string(appendJSON(nil, value)) }

func appendJSON(out []byte, value any) []byte {
	switch v := value.(type) {
	case amqp.Table:
		out = append(out, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendText(out, key), ':')
			out = appendJSON(out, v[key])
		}
		return append(out, '}')
	case []any:
		out = append(out, '[')
		for i, item := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendJSON(out, item)
		}
		return append(out, ']')
	case string:
		return appendText(out, v)
	case int64:
		return strconv.AppendInt(out, v, 10)
	case time.Time:
		if !shown(v) { // JSON has no form for it, and it must not hide what stands beside it
			return appendText(out, v.String())
		}
		return append(v.UTC().AppendFormat(append(out, '"'), time.RFC3339Nano), '"')
	default:
		text, err := json.Marshal(v)
		if err != nil { // infinity, for example
			return appendText(out, fmt.Sprint(v))
		}
		return append(out, text...)
	}
}

func appendText(out []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // a text is always written
			return append(out, text...)
		}
	}
	return append(append(append(out, '"'), s...), '"')
}

// shown tells that every notation has a form for a time: its year in UTC is 1 to 9999.
func shown(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1 && year <= 9999
}

func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// foreignHeaders are the headers that a message cannot keep because they are not
// text, as JSON text; the broker's death history is told apart.
func foreignHeaders(msg *message.Message) string {
	foreign := amqp.Table{}
	for key, value := range msg.Metadata {
		if name, ok := strings.CutPrefix(key, metaReadOnly+"header."); ok && !strings.HasPrefix(name, "x-") {
			foreign[name] = value
		}
	}
	if len(foreign) == 0 {
		return ""
	}
	return clip(asText(foreign), maxHeaderValue)
}
