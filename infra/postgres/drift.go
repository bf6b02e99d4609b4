package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// DriftCounts is what the database knows of orders and their timers, all of one instant.
type DriftCounts struct {
	At            time.Time // that instant, by the database's clock
	Pending       int       // orders that are neither paid nor closed
	EarlySettled  int       // orders paid ahead of a deadline that is still to come
	Overdue       int       // pending orders past their deadline
	Late          int       // of these, past it by more than the grace
	LateFor       time.Duration
	LateOrders    []domain.OrderID // the oldest of the late ones; LateFor is the first one's
	OutboxTimers  int
	ParkedTimers  int // open parked messages of the closer, without those that a replay has sent
	FailingOrders int // that the sweep could not close
}

// Drift counts. It returns up to sample late orders.
func (s *Sweep) Drift(ctx context.Context, grace time.Duration, sample int) (DriftCounts, error) {
	all, err := collect(ctx, s.db, func(row pgx.CollectableRow) (c DriftCounts, err error) {
		var late []string
		var micros int64
		err = row.Scan(&c.At, &c.Pending, &c.Overdue, &c.Late, &micros, &late, &c.EarlySettled, &c.OutboxTimers, &c.ParkedTimers, &c.FailingOrders)
		c.LateFor = time.Duration(micros) * time.Microsecond
		for _, id := range late {
			c.LateOrders = append(c.LateOrders, domain.OrderID(id))
		}
		return c, err
	}, `
		SELECT now(), o.pending, o.overdue, o.late, o.late_for,
			array(SELECT id::text FROM orders WHERE status = 'pending' AND due_at < now() - $1::interval ORDER BY due_at, id LIMIT $2),
			(SELECT count(*) FROM orders WHERE status = 'paid' AND due_at > now()),
			(SELECT count(*) FROM outbox WHERE type = 'order.timeout'),
			(SELECT count(*) FROM parked_messages p WHERE p.settled_at IS NULL AND p.consumer = 'closer'
				AND NOT EXISTS (SELECT FROM replay_items i WHERE i.parked_id = p.id AND i.outcome = 'sent')),
			(SELECT count(*) FROM sweep_failures)
		FROM (
			SELECT count(*) AS pending, count(*) FILTER (WHERE due_at <= now()) AS overdue,
				count(*) FILTER (WHERE due_at < now() - $1::interval) AS late,
				coalesce(extract(epoch FROM now() - min(due_at) FILTER (WHERE due_at < now() - $1::interval)) * 1000000, 0)::bigint AS late_for
			FROM orders WHERE status = 'pending'
		) o`, grace, sample)
	if err != nil {
		return DriftCounts{}, err
	}
	return all[0], nil
}
