package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// groupTimeout bounds one shared transaction; its statements are bounded much closer.
const groupTimeout = 10 * time.Second

// GroupedOrders updates orders for many callers at once: those that wait at the same
// time share one transaction (group commit), so that a burst costs one commit for
// hundreds of orders and not one each.
//
// What a caller sees is what Orders.Update does: its own outcome, after the commit that
// holds it.
//
//	Update ─▶ waiting ─▶ transaction: lock all, decide each, write all, commit ─▶ outcome of each
//	                       ├── rows that others have locked: Orders.Update, each alone
//	                       └── it failed: Orders.Update, each alone
//
// So an order that cannot be updated fails alone, and one that a payment has in hand
// holds up nobody.
type GroupedOrders struct {
	orders *Orders
	gather *gatherer[*update]
}

// NewGroupedOrders returns a store that updates as orders does. It needs no end.
func NewGroupedOrders(orders *Orders, config GroupConfig) *GroupedOrders {
	g := &GroupedOrders{orders: orders}
	g.gather = newGatherer(config, g.together)
	return g
}

// update is one call of Update.
type update struct {
	ctx    context.Context //nolint:containedctx // of the caller, for what is done for it alone
	id     domain.OrderID
	decide func(*domain.Order, time.Time) error

	done  chan struct{} // closed when the outcome is there:
	order *domain.Order
	err   error
}

func (u *update) finish(order *domain.Order, err error) {
	u.order, u.err = order, err
	close(u.done)
}

// Update is Orders.Update. When ctx ends before the transaction began, nothing happened
// and the error is that of ctx; once it began its outcome is awaited.
func (g *GroupedOrders) Update(ctx context.Context, id domain.OrderID, decide func(order *domain.Order, now time.Time) error) (*domain.Order, error) {
	u := &update{ctx: ctx, id: id, decide: decide, done: make(chan struct{})}
	g.gather.add(u)
	select {
	case <-u.done:
	case <-ctx.Done():
		if g.gather.withdraw(u) {
			return nil, classify(fmt.Errorf("waiting for a transaction: %w", ctx.Err()))
		}
		<-u.done
	}
	return u.order, u.err
}

func (g *GroupedOrders) alone(u *update) {
	order, err := g.orders.Update(u.ctx, u.id, u.safely)
	u.finish(order, err)
}

// together updates a group in one transaction, and what is left of it each alone.
func (g *GroupedOrders) together(group []*update) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	var verdicts []verdict
	err := g.orders.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		verdicts, err = updateAll(ctx, tx, group)
		return err
	})
	if err != nil && (len(group) == 1 || errors.Is(ofOneRow(err), domain.ErrUnavailable)) {
		for _, u := range group {
			u.finish(nil, err)
		}
		return
	}
	for i, u := range group {
		if err != nil || !verdicts[i].decided {
			go g.alone(u) // not in here, where it may wait for a lock; the pool bounds how many of these work at once
			continue
		}
		u.finish(verdicts[i].order, verdicts[i].err)
	}
}

// verdict is what became of one update in a shared transaction.
type verdict struct {
	decided bool // false: its row was not there to be locked
	order   *domain.Order
	err     error
}

// updateAll decides and writes a group. Two updates may be about the same order: they
// are decided one after the other, on one state.
func updateAll(ctx context.Context, tx pgx.Tx, group []*update) ([]verdict, error) {
	ids := make([]string, len(group))
	for i, u := range group {
		ids[i] = string(u.id)
	}
	orders, now, err := lockOrders(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(group))
	for i, u := range group {
		if order := orders[u.id]; order != nil {
			verdicts[i] = verdict{decided: true, order: order, err: u.safely(order, now)}
		}
	}
	var changed []*domain.Order
	for _, order := range orders {
		changed = append(changed, order)
	}
	if err := writeChanges(ctx, tx, changed...); err != nil {
		return nil, err
	}
	for i, v := range verdicts {
		switch {
		case v.err != nil:
			verdicts[i].order = nil
		case v.order != nil:
			verdicts[i].order = v.order.Settled()
		}
	}
	return verdicts, nil
}

// safely decides. A panic is this update's failure and nobody else's.
func (u *update) safely(order *domain.Order, now time.Time) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", domain.ErrPanic, r, debug.Stack())
		}
	}()
	return u.decide(order, now)
}
