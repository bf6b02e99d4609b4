package domain

import "time"

// Close closes an order that is pending at or past its deadline and gives back what
// it holds. It reports false for an order that is paid or closed already: nothing is
// left to do, so any number of timers for one order is harmless.
//
// It returns a NotDueError before the deadline.
func (o *Order) Close(by ClosedBy, now time.Time) (bool, error) {
	if o.s.Status != Pending {
		return false, nil
	}
	if left := o.s.DueAt.Sub(now); left > 0 {
		return false, &NotDueError{OrderID: o.s.ID, DueAt: o.s.DueAt, Remaining: left}
	}
	o.s.Status = Closed
	o.s.ClosedAt = now
	o.s.ClosedBy = by
	o.changes.Order = true
	o.changes.Stock = append(o.changes.Stock, release(o.s.Lines)...)
	o.changes.Events = append(o.changes.Events, OrderClosed{OrderID: o.s.ID, ClosedAt: now, ClosedBy: by.String()})
	return true, nil
}
