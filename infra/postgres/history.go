package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// HistoryEntry is one thing that happened to an order.
type HistoryEntry struct {
	At     time.Time
	What   string // placed, paid, closed, payment, mail, parked, replayed, or a final state of a parked message
	Detail string
	Parked string // the parked message that it is about; empty for the rest
}

// History returns what is known to have happened to an order, oldest first.
func (s *Orders) History(ctx context.Context, id domain.OrderID) ([]HistoryEntry, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (e HistoryEntry, err error) {
		err = row.Scan(&e.At, &e.What, &e.Detail, &e.Parked)
		return e, err
	}, `
		SELECT created_at, 'placed', 'to be paid within ' || (payment_window_ms / 1000.0)::float8 || ' s', '' FROM orders WHERE id = $1
		UNION ALL SELECT paid_at, 'paid', '', '' FROM orders WHERE id = $1 AND paid_at IS NOT NULL
		UNION ALL SELECT closed_at, 'closed', 'by ' || closed_by, '' FROM orders WHERE id = $1 AND closed_at IS NOT NULL
		UNION ALL SELECT received_at, 'payment', id || coalesce(', to be refunded: ' || refund_reason, ''), '' FROM payments WHERE order_id = $1
		UNION ALL SELECT sent_at, 'mail', kind, '' FROM notifications WHERE order_id = $1 AND sent_at IS NOT NULL
		UNION ALL SELECT parked_at, 'parked', consumer || ', attempt ' || attempts || ': ' || left(error, 200), id::text FROM parked_messages WHERE order_id = $1
		UNION ALL SELECT settled_at, status, coalesce(reason, ''), id::text FROM parked_messages WHERE order_id = $1 AND settled_at IS NOT NULL
		UNION ALL SELECT i.sent_at, 'replayed', r.requested_by, p.id::text
			FROM parked_messages p JOIN replay_items i ON i.parked_id = p.id JOIN replay_runs r ON r.id = i.run_id
			WHERE p.order_id = $1 AND i.sent_at IS NOT NULL
		ORDER BY 1`, id)
}

// Placed returns how many orders were placed within the last span, by the time in their
// ids, which is that of the services that placed them.
func (s *Orders) Placed(ctx context.Context, span time.Duration) (int, error) {
	all, err := collect(ctx, s.db, pgx.RowTo[int], `
		SELECT count(*)::int FROM orders
		WHERE id >= (lpad(to_hex((extract(epoch FROM now() - $1::interval) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid`, span)
	if err != nil {
		return 0, err
	}
	return all[0], nil
}
