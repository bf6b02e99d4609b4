package reconciler

import (
	"fmt"
	"slices"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

// maxPayload bounds an edited payload, in bytes; events are a few hundred.
const maxPayload = 64 << 10

// CheckPayload checks what an operator wants to send instead of a parked payload: it
// must follow the event contract, and be something that this consumer handles. It
// returns the order that it names.
//
// It returns a domain.FieldError for the field payload.
func CheckPayload(consumer string, payload []byte) (domain.OrderID, error) {
	refuse := func(got any, allowed string) error {
		return &domain.FieldError{Field: "payload", Got: got, Allowed: allowed}
	}
	c, known := rabbitmq.ParseConsumer(consumer)
	if !known {
		return "", refuse("a message of nobody", "a message whose consumer is known")
	}
	if len(payload) > maxPayload {
		return "", refuse(fmt.Sprintf("%d bytes", len(payload)), fmt.Sprintf("%d bytes at most", maxPayload))
	}
	event, err := domain.DecodeEvent(payload)
	if err != nil {
		return "", refuse(clip(string(payload)), fmt.Sprintf("a body that follows the event contract of this release; this is a %v", err))
	}
	if handled := c.Handles(); !slices.Contains(handled, event.Type()) {
		return "", refuse(string(event.Type()), fmt.Sprintf("what the %s handles: %v", c, handled))
	}
	return event.Order(), nil
}

// clip shortens an input that an error repeats.
func clip(s string) string {
	if runes := []rune(s); len(runes) > 200 {
		return string(runes[:199]) + "…"
	}
	return s
}

// CheckFilter returns a domain.FieldError for a consumer that there is not.
func CheckFilter(f postgres.ParkedFilter) error {
	if _, known := rabbitmq.ParseConsumer(f.Consumer); f.Consumer != "" && !known {
		return &domain.FieldError{Field: "consumer", Got: f.Consumer, Allowed: fmt.Sprintf("one of %v", rabbitmq.Consumers)}
	}
	return nil
}

// ParseParkedStatus reads where messages must stand to be listed: one of the statuses,
// all, or open, which is what empty means too. It returns a domain.FieldError.
func ParseParkedStatus(text string) (status postgres.ParkedStatus, all bool, err error) {
	status = postgres.ParkedStatus(text)
	switch {
	case text == "" || text == "open":
		return "", false, nil
	case text == "all":
		return "", true, nil
	case slices.Contains(postgres.ParkedStatuses, status):
		return status, false, nil
	default:
		return "", false, &domain.FieldError{Field: "status", Got: text, Allowed: fmt.Sprintf("open, all, or one of %v", postgres.ParkedStatuses)}
	}
}

// CheckReplay returns a domain.FieldError for a rate or a canary that makes no sense.
func CheckReplay(r postgres.ReplayRequest) error {
	if !(r.Rate >= 0 && r.Rate <= maxRate) {
		return &domain.FieldError{Field: "rate", Got: r.Rate, Allowed: fmt.Sprintf("messages a second, up to %d, or 0 for as fast as it can", maxRate)}
	}
	if r.Canaries < 0 || r.Canaries > maxCanaries {
		return &domain.FieldError{Field: "canary", Got: r.Canaries, Allowed: fmt.Sprintf("0 to %d messages", maxCanaries)}
	}
	return nil
}

const (
	maxRate     = 100_000 // beyond what one broker takes
	maxCanaries = 1000
)
