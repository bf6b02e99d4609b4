package domain

import (
	"slices"
	"time"
)

// Placement is a buyer's wish, before it is checked.
type Placement struct {
	ID       OrderID
	Customer Customer
	Currency Currency
	Lines    []Line // Held is ignored
	Window   time.Duration
}

// Validate returns a FieldError for the first field that cannot be accepted.
func (p Placement) Validate() error {
	return p.snapshot().validateInput()
}

// Place decides whether an order can be placed: stock holds the locked rows of its
// SKUs and now is the database's time. All lines are held, or none.
//
// It returns a FieldError for bad input or an unknown SKU and a SoldOutError when
// stock does not suffice.
func Place(p Placement, stock map[string]Stock, now time.Time) (*Order, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	held, moves, err := hold(p.Lines, stock)
	if err != nil {
		return nil, err
	}
	s := p.snapshot()
	s.Status = Pending
	s.Lines = held
	s.CreatedAt = now
	s.DueAt = now.Add(p.Window)
	return &Order{s: s, changes: Changes{
		Order:  true,
		Stock:  moves,
		Events: []Event{OrderTimeout{OrderID: s.ID, DueAt: s.DueAt}},
	}}, nil
}

func (p Placement) snapshot() Snapshot {
	return Snapshot{
		ID:       p.ID,
		Customer: p.Customer,
		Currency: p.Currency,
		Lines:    slices.Clone(p.Lines),
		Window:   p.Window,
	}
}
