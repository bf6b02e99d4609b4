package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/ordertimeout/domain"
)

// Sweep finds orders whose timer did not come, closes them one by one and remembers
// those that cannot be closed.
type Sweep struct{ db *DB }

// NewSweep returns the store of the sweep.
func NewSweep(db *DB) *Sweep { return &Sweep{db: db} }

// OverdueOrder is a pending order past its deadline. It is also a place in the list of
// them, which goes by deadline and then id; the zero value is the beginning.
type OverdueOrder struct {
	ID    domain.OrderID
	DueAt time.Time
}

// overdueWhere is true for an order o that the sweep may close now, when $1 is the grace.
const overdueWhere = `o.status = 'pending' AND o.due_at < now() - $1::interval
	AND NOT EXISTS (SELECT FROM sweep_failures f WHERE f.order_id = o.id AND f.next_attempt_at > now())`

// pickOverdue names the deadline beside the place, or the index would be read from its
// beginning each time.
const pickOverdue = `
	SELECT o.id::text, o.due_at FROM orders o
	WHERE ` + overdueWhere + ` AND o.due_at >= coalesce($2, '-infinity'::timestamptz)
	  AND ($2 IS NULL OR (o.due_at, o.id) > ($2, nullif($3, '')::uuid))
	ORDER BY o.due_at, o.id LIMIT $4`

// Pick returns up to limit orders that are overdue by more than grace and do not back
// off, oldest first, those behind after. Nothing is locked.
func (s *Sweep) Pick(ctx context.Context, grace time.Duration, after OverdueOrder, limit int) ([]OverdueOrder, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (o OverdueOrder, err error) {
		err = row.Scan(&o.ID, &o.DueAt)
		return o, err
	}, pickOverdue, grace, orNull(after.DueAt), string(after.ID), limit)
}

// Close closes one order as Orders.Update would, with its stock and its message. It
// returns nil when there is nothing to close: somebody else has the row in hand, the
// order is settled or not overdue by more than grace any more, or it backs off.
//
// An error is domain.ErrUnavailable only when the database is away. A statement or a
// lock that took too long is this order's failure as any other one.
func (s *Sweep) Close(ctx context.Context, id domain.OrderID, grace time.Duration) (*domain.Order, error) {
	var order *domain.Order
	err := s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		order = nil
		locked, now, err := lockOverdue(ctx, tx, id, grace)
		if locked == nil || err != nil {
			return err
		}
		closed, err := locked.Close(domain.BySweep, now)
		if !closed || err != nil {
			return err
		}
		order = locked
		return writeChanges(ctx, tx, order)
	})
	if err != nil {
		return nil, ofOneRow(err)
	}
	if order == nil {
		return nil, nil
	}
	return order.Settled(), nil
}

// lockOverdue does not wait for the order's row. It returns nil unless it got it.
func lockOverdue(ctx context.Context, tx pgx.Tx, id domain.OrderID, grace time.Duration) (*domain.Order, time.Time, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+orderColumns+`, now() FROM orders o WHERE `+overdueWhere+` AND o.id = $2
		FOR NO KEY UPDATE OF o SKIP LOCKED`, grace, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	var now time.Time
	order, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*domain.Order, error) {
		return scanOrderAnd(row, &now)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, time.Time{}, nil
	}
	return order, now, err
}

// ofOneRow takes the mark of an outage from an error that says: this row, or what it
// drags along, took too long. The server is there, and it may be the one bad row.
func ofOneRow(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == queryCanceled || pgErr.Code == lockNotAvailable) {
		return fmt.Errorf("postgres: %w", pgErr)
	}
	return err
}

// SweepFailure is an overdue order that could not be closed.
type SweepFailure struct {
	OrderID       domain.OrderID
	Attempts      int
	NextAttemptAt time.Time
	LastError     string
	LastFailedAt  time.Time
}

const sweepFailureColumns = `f.order_id::text, f.attempts, f.next_attempt_at, f.last_error, f.last_failed_at`

func scanSweepFailure(row pgx.CollectableRow) (f SweepFailure, err error) {
	err = row.Scan(&f.OrderID, &f.Attempts, &f.NextAttemptAt, &f.LastError, &f.LastFailedAt)
	return f, err
}

// Fail records that an order could not be closed: the sweep looks at it again after
// 1 s, doubling to 10 min, give or take a fifth. Errors are those of Close.
func (s *Sweep) Fail(ctx context.Context, id domain.OrderID, cause error) (SweepFailure, error) {
	all, err := collect(ctx, s.db, scanSweepFailure, `
		INSERT INTO sweep_failures AS f (order_id, attempts, next_attempt_at, last_error, last_failed_at)
		VALUES ($1, 1, now() + interval '1 second' * (0.8 + 0.4 * random()), $2, now())
		ON CONFLICT (order_id) DO UPDATE SET
			attempts = f.attempts + 1, last_error = excluded.last_error, last_failed_at = excluded.last_failed_at,
			next_attempt_at = now() + least(interval '10 minutes', interval '1 second' * 2 ^ least(f.attempts, 20)) * (0.8 + 0.4 * random())
		RETURNING `+sweepFailureColumns, id, errorText(cause))
	if err != nil {
		return SweepFailure{}, ofOneRow(err)
	}
	return all[0], nil
}

// Forget removes the failures of orders that somebody settled, or whose deadline was
// moved ahead, and returns how many are left.
func (s *Sweep) Forget(ctx context.Context) (failing int, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			DELETE FROM sweep_failures f USING orders o
			WHERE o.id = f.order_id AND (o.status <> 'pending' OR o.due_at > now())`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT count(*) FROM sweep_failures`).Scan(&failing)
	})
	return failing, err
}

// Failing returns orders that could not be closed, those that failed most often first.
func (s *Sweep) Failing(ctx context.Context, limit int) ([]SweepFailure, error) {
	return collect(ctx, s.db, scanSweepFailure, `
		SELECT `+sweepFailureColumns+` FROM sweep_failures f ORDER BY f.attempts DESC, f.order_id LIMIT $1`, limit)
}

// Share is how many connections a sweep may use at once: half of the pool, so that the
// rest of its process goes on beside it.
func (s *Sweep) Share() int { return max(1, int(s.db.pool.Config().MaxConns)/2) }
