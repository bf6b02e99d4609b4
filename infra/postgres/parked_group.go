package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// GroupedParked stores parkings for many callers at once, as GroupedOrders updates
// orders: those that wait at the same time share one transaction, and one that cannot
// be stored fails alone.
type GroupedParked struct {
	parked *Parked
	gather *gatherer[*parking]
}

// NewGroupedParked returns a store that stores as parked does. It needs no end.
func NewGroupedParked(parked *Parked, config GroupConfig) *GroupedParked {
	g := &GroupedParked{parked: parked}
	g.gather = newGatherer(config, g.together)
	return g
}

// parking is one call of Store.
type parking struct {
	ctx     context.Context //nolint:containedctx // of the caller, for what is done for it alone
	key     []byte
	message ParkedMessage

	done   chan struct{} // closed when the outcome is there:
	stored bool
	err    error
}

// Store is Parked.Store. When ctx ends before the transaction began, nothing is stored;
// once it began its outcome is awaited.
func (g *GroupedParked) Store(ctx context.Context, key []byte, m ParkedMessage) (stored bool, err error) {
	p := &parking{ctx: ctx, key: key, message: m, done: make(chan struct{})}
	g.gather.add(p)
	select {
	case <-p.done:
	case <-ctx.Done():
		if g.gather.withdraw(p) {
			return false, classify(fmt.Errorf("waiting for a transaction: %w", ctx.Err()))
		}
		<-p.done
	}
	return p.stored, p.err
}

func (g *GroupedParked) together(group []*parking) {
	// Replays are settled in the order of their ids, as everywhere.
	slices.SortFunc(group, func(a, b *parking) int { return cmp.Compare(a.message.PreviousID, b.message.PreviousID) })
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	stored := make([]bool, len(group))
	err := g.parked.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		for i, p := range group {
			if stored[i], err = storeParked(ctx, tx, p.key, p.message); err != nil {
				return err
			}
		}
		return nil
	})
	alone := err != nil && len(group) > 1 && !errors.Is(ofOneRow(err), domain.ErrUnavailable)
	for i, p := range group {
		if alone {
			go p.storeIn(g.parked) // the pool bounds how many of these work at once
			continue
		}
		p.stored, p.err = stored[i] && err == nil, err
		close(p.done)
	}
}

func (p *parking) storeIn(parked *Parked) {
	p.stored, p.err = parked.Store(p.ctx, p.key, p.message)
	close(p.done)
}
