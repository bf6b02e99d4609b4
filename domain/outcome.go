package domain

import (
	"errors"
	"time"
)

// Outcome is what becomes of a message after its handler returned.
type Outcome int

// The outcomes. Every one but Done, and Hold while it lasts, moves a copy of the message
// first and acks the original after the broker confirmed the copy.
const (
	Done    Outcome = iota // handled, or nothing to do: ack
	Redelay                // not due yet: wait for the time that is left, no attempt counted
	Hold                   // a dependency is away: keep the message and try again, no attempt counted
	Retry                  // failed: wait on a rung of the ladder, one more attempt counted
	Park                   // failed for good: to the parking queue with its story
)

func (o Outcome) String() string {
	return [...]string{"done", "redelay", "hold", "retry", "park"}[o]
}

// Decision is an outcome with what it needs.
type Decision struct {
	Outcome Outcome
	Wait    time.Duration // Redelay: the time left; Retry: the rung's wait
	Attempt int           // failed attempts so far, this one included where it counts
	Class   string        // Retry and Park: what kind of failure it was
}

// Decide is the one switch from a handler's error to what happens to the message.
// failed is the number of attempts that failed before this one.
func Decide(err error, failed int, ladder Ladder) Decision {
	var notDue *NotDueError
	switch {
	case err == nil:
		return Decision{Outcome: Done, Attempt: failed}
	case errors.As(err, &notDue):
		return Decision{Outcome: Redelay, Wait: notDue.Remaining, Attempt: failed}
	case errors.Is(err, ErrUnavailable):
		return Decision{Outcome: Hold, Attempt: failed}
	}
	attempt := failed + 1
	class := Class(err)
	if wait, ok := ladder.Rung(attempt); ok && !errors.Is(err, ErrPermanent) {
		return Decision{Outcome: Retry, Wait: wait, Attempt: attempt, Class: class}
	}
	return Decision{Outcome: Park, Attempt: attempt, Class: class}
}

// Class names the kind of a failure, from a small fixed set that can be a metric's
// label: malformed, unsupported_event, unknown_order, permanent, panic or transient.
func Class(err error) string {
	var unsupported *UnsupportedEventError
	switch {
	case errors.Is(err, ErrMalformed):
		return "malformed"
	case errors.As(err, &unsupported):
		return "unsupported_event"
	case errors.Is(err, ErrOrderNotFound):
		return "unknown_order"
	case errors.Is(err, ErrPermanent):
		return "permanent"
	case errors.Is(err, ErrPanic):
		return "panic"
	default:
		return "transient"
	}
}
