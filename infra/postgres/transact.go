package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A deadlock or serialization failure is over within milliseconds; by then its
	// winner has committed.
	transactAttempts = 5
	transactPause    = 10 * time.Millisecond

	rollbackTimeout = 2 * time.Second
)

// Transact runs fn in a transaction and commits when it returns nil. fn must use only
// tx: a second connection, taken while holding one, can wait for ever on a full pool.
// It runs again when PostgreSQL sacrificed the transaction, so it must not have effects
// outside of it.
//
// An error from the commit itself leaves it open whether the transaction happened:
// callers must be safe to repeat.
func (db *DB) Transact(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := db.transactOnce(ctx, fn)
		if !retryable(err) || attempt == transactAttempts || ctx.Err() != nil {
			return classify(err)
		}
		jitter := time.Duration(rand.Int64N(int64(transactPause)))
		select {
		case <-time.After(time.Duration(attempt)*transactPause + jitter):
		case <-ctx.Done():
			return classify(err)
		}
	}
}

func (db *DB) transactOnce(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		// A cancelled context must not keep the connection in an open transaction. After
		// a commit this does nothing.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		if errors.Is(err, pgx.ErrTxCommitRollback) {
			return fmt.Errorf("commit turned into a rollback: %w", err)
		}
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
