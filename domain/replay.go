package domain

import (
	"errors"
	"fmt"
)

// ReplayAction is what to do with a parked message when its turn in a replay comes.
type ReplayAction int

// The actions of a replay.
const (
	ReplaySend    ReplayAction = iota // to the queue of the consumer that failed
	ReplayResolve                     // the world moved on: nothing is left to do for it
	ReplaySkip                        // it would fail again as it is: it stays parked
)

// ReplayDecision is an action with its reason, which is empty for ReplaySend.
type ReplayDecision struct {
	Action ReplayAction
	Reason string
}

// DecideReplay looks whether handling a message still makes sense, so that a replay
// does not send what would be refused, or what is done. status is the order's present
// one, and the zero Status when no order has the message's id.
//
// It only spares work and noise. Handlers decide by the locked row, so a message that
// is sent although the order changes at this moment does no harm.
func DecideReplay(payload []byte, status Status) ReplayDecision {
	event, err := DecodeEvent(payload)
	var unsupported *UnsupportedEventError
	switch {
	case errors.As(err, &unsupported):
		return ReplayDecision{ReplaySkip, fmt.Sprintf("%v: replay it with a release that knows it, or edit it", err)}
	case err != nil:
		return ReplayDecision{ReplaySkip, fmt.Sprintf("%v: edit it first", err)}
	case status == Status{}:
		return ReplayDecision{ReplaySkip, "no order has this id"}
	}
	if wanted, ok := statusFor(event); ok && status != wanted {
		return ReplayDecision{ReplayResolve, "the order is " + status.String()}
	}
	return ReplayDecision{Action: ReplaySend}
}

// statusFor returns the status in which an event has something to do. A refund is due
// whatever became of the order.
func statusFor(event Event) (Status, bool) {
	switch event.(type) {
	case OrderTimeout:
		return Pending, true
	case OrderPaid:
		return Paid, true
	case OrderClosed:
		return Closed, true
	default:
		return Status{}, false
	}
}
