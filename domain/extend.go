package domain

import "time"

// MaxExtension is how far into the future a deadline can be moved. Longer holds are
// a sale on account, not an unpaid order.
const MaxExtension = 90 * 24 * time.Hour

// Extend moves the deadline, forwards or backwards. The timer that is on its way is
// not touched: when it comes early, the closer sends it on for the time that is left.
// A new timer is needed only where none may be on its way: for a deadline that moves
// backwards, and for an order that is overdue, whose timer may be lost.
//
// It returns ErrNotPending for a paid or closed order and a FieldError unless dueAt
// is after now and within MaxExtension.
func (o *Order) Extend(dueAt, now time.Time) error {
	if o.s.Status != Pending {
		return ErrNotPending
	}
	if !dueAt.After(now) || dueAt.After(now.Add(MaxExtension)) {
		return &FieldError{
			Field:   "due_at",
			Got:     dueAt.UTC().Format(time.RFC3339Nano),
			Allowed: "after " + now.UTC().Format(time.RFC3339Nano) + " and within " + MaxExtension.String(),
		}
	}
	needsTimer := dueAt.Before(o.s.DueAt) || !o.s.DueAt.After(now)
	o.s.DueAt = dueAt
	o.changes.Order = true
	if needsTimer {
		o.changes.Events = append(o.changes.Events, OrderTimeout{OrderID: o.s.ID, DueAt: dueAt})
	}
	return nil
}
