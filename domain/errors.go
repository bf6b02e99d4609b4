package domain

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrOrderNotFound says: no order has this id (yet: a timer may overtake a slow commit).
	ErrOrderNotFound = errors.New("unknown order")

	// ErrNotPending says: the decision needs a pending order and this one is paid or closed.
	ErrNotPending = errors.New("order is not pending")

	// ErrUnavailable says: something that handling depends on (database, mail server) is
	// away. Adapters wrap it around their driver's error. Waiting helps, counting does not.
	ErrUnavailable = errors.New("dependency unavailable")

	// ErrPanic says: the handler panicked. It is tried again like any other failure.
	ErrPanic = errors.New("panic")

	// ErrPermanent says: trying again cannot help.
	ErrPermanent = errors.New("permanent failure")

	// ErrMalformed says: a message that does not follow its contract. It is an ErrPermanent.
	ErrMalformed error = permanentError("malformed message")
)

// permanentError is a sentinel of its own that is an ErrPermanent too.
type permanentError string

func (e permanentError) Error() string        { return string(e) }
func (e permanentError) Is(target error) bool { return target == ErrPermanent }

// FieldError names an input field, what came and what is allowed.
type FieldError struct {
	Field   string // as the caller wrote it, such as "lines[1].quantity"
	Got     any
	Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: got %#v, allowed: %s", e.Field, e.Got, e.Allowed)
}

// NotDueError says: the order must not be closed before DueAt.
type NotDueError struct {
	OrderID   OrderID
	DueAt     time.Time
	Remaining time.Duration // always positive
}

func (e *NotDueError) Error() string {
	return fmt.Sprintf("order %s is due at %s, in %s", e.OrderID, e.DueAt.UTC().Format(time.RFC3339Nano), e.Remaining)
}

// SoldOutError says: fewer units are available than one line asks for. Nothing was taken.
type SoldOutError struct {
	SKU       string
	Requested int64
	Available int64
}

func (e *SoldOutError) Error() string {
	return fmt.Sprintf("sku %s is sold out: requested %d, available %d", e.SKU, e.Requested, e.Available)
}

// UnsupportedEventError says: an event of a type or version that this release does not
// know. It is permanent for this release; a later one may replay the message.
type UnsupportedEventError struct {
	Type    string
	Version int
}

func (e *UnsupportedEventError) Error() string {
	return fmt.Sprintf("unsupported event %q version %d", e.Type, e.Version)
}

// Is makes an unsupported event a permanent failure.
func (e *UnsupportedEventError) Is(target error) bool { return target == ErrPermanent }
