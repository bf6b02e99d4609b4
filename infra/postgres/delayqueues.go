package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// DelayQueues remembers every delay that was given a queue in the broker.
type DelayQueues struct{ db *DB }

// NewDelayQueues returns the store of delay queues.
func NewDelayQueues(db *DB) *DelayQueues { return &DelayQueues{db: db} }

// Record notes that the delays have queues in a topology namespace.
func (s *DelayQueues) Record(ctx context.Context, namespace string, delays []time.Duration) error {
	millis := make([]int64, len(delays))
	for i, d := range delays {
		millis[i] = d.Milliseconds()
	}
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO delay_queues (namespace, delay_ms, last_declared_at)
			SELECT $1, d, now() FROM unnest($2::bigint[]) AS d ORDER BY d
			ON CONFLICT (namespace, delay_ms) DO UPDATE SET last_declared_at = now()`, namespace, millis)
		return err
	})
}

// List returns the recorded delays, ascending.
func (s *DelayQueues) List(ctx context.Context, namespace string) ([]time.Duration, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (time.Duration, error) {
		var millis int64
		err := row.Scan(&millis)
		return time.Duration(millis) * time.Millisecond, err
	}, `SELECT delay_ms FROM delay_queues WHERE namespace = $1 ORDER BY delay_ms`, namespace)
}

// Remove forgets a delay whose queue is gone.
func (s *DelayQueues) Remove(ctx context.Context, namespace string, delay time.Duration) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM delay_queues WHERE namespace = $1 AND delay_ms = $2`, namespace, delay.Milliseconds())
		return err
	})
}

// PendingWithWindow counts the pending orders whose timers may still be in the queue of
// a payment window: those that were placed with it, and those that are overdue, whose
// timers may be stuck anywhere.
func (s *DelayQueues) PendingWithWindow(ctx context.Context, window time.Duration) (int64, error) {
	counts, err := collect(ctx, s.db, pgx.RowTo[int64], `
		SELECT count(*) FROM orders WHERE status = 'pending' AND (payment_window_ms = $1 OR due_at < now())`, window.Milliseconds())
	if err != nil {
		return 0, err
	}
	return counts[0], nil
}
