package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// Outbox stores messages until the broker has them.
type Outbox struct{ db *DB }

// NewOutbox returns the store of the outbox.
func NewOutbox(db *DB) *Outbox { return &Outbox{db: db} }

// OutboxRow is one message to be published.
type OutboxRow struct {
	ID        int64
	MessageID string
	OrderID   string
	Type      domain.EventType
	Payload   []byte
	Timer     bool          // has a deadline:
	Remaining time.Duration //   what is left of it by the database's clock, negative when overdue
	CreatedAt time.Time
	Attempts  int // that failed
}

// RelayResult counts what became of the rows of one pass.
type RelayResult struct {
	Claimed  int
	Sent     int // confirmed and deleted
	Failed   int // at fault: they back off
	Deferred int // untouched, because the broker is away
}

const (
	maxErrorText = 1024 // characters of an error that are kept

	// settleTimeout bounds the recording of what was sent, after send returned.
	settleTimeout = 5 * time.Second
)

// Relay claims up to limit rows that nobody else has, hands them to send and records
// its verdicts, one error for each row: nil deletes the row; domain.ErrUnavailable
// leaves it untouched, however often; anything else is the row's own fault, counts an
// attempt and makes the row wait, 1 s doubling to 5 min, with the error kept.
//
// Rows are claimed by when they became due, so a row that backs off is never ahead of
// a new one. No order is promised between messages. While send runs the rows are
// locked by an open transaction: a crash frees them at once, and those sent by then
// are sent again.
//
// When ctx ends during send, what was sent is recorded all the same.
func (s *Outbox) Relay(ctx context.Context, limit int, send func(ctx context.Context, rows []OutboxRow) []error) (RelayResult, error) {
	tx, err := s.db.pool.Begin(ctx)
	if err != nil {
		return RelayResult{}, classify(fmt.Errorf("begin: %w", err))
	}
	settle := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	}
	defer func() {
		ctx, cancel := settle()
		defer cancel()
		_ = tx.Rollback(ctx) // does nothing after the commit
	}()
	rows, err := claim(ctx, tx, limit)
	if err != nil || len(rows) == 0 {
		return RelayResult{}, classify(err)
	}
	verdicts := send(ctx, rows)

	ctx, cancel := settle()
	defer cancel()
	result, err := record(ctx, tx, rows, verdicts)
	if err != nil {
		return RelayResult{}, classify(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return RelayResult{}, classify(fmt.Errorf("commit: %w", err))
	}
	return result, nil
}

func claim(ctx context.Context, tx pgx.Tx, limit int) ([]OutboxRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, message_id::text, order_id::text, type, payload, due_at IS NOT NULL,
		       coalesce(extract(epoch FROM due_at - clock_timestamp()) * 1000000, 0)::bigint, created_at, attempts
		FROM outbox WHERE next_attempt_at <= now()
		ORDER BY next_attempt_at, id LIMIT $1
		FOR UPDATE SKIP LOCKED`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r OutboxRow, err error) {
		var micros int64
		err = row.Scan(&r.ID, &r.MessageID, &r.OrderID, &r.Type, &r.Payload, &r.Timer, &micros, &r.CreatedAt, &r.Attempts)
		r.Remaining = time.Duration(micros) * time.Microsecond
		return r, err
	})
}

func record(ctx context.Context, tx pgx.Tx, rows []OutboxRow, verdicts []error) (RelayResult, error) {
	result := RelayResult{Claimed: len(rows)}
	var sent, failed []int64
	var texts []string
	for i, err := range verdicts {
		switch {
		case err == nil:
			sent = append(sent, rows[i].ID)
		case errors.Is(err, domain.ErrUnavailable):
			result.Deferred++
		default:
			failed = append(failed, rows[i].ID)
			texts = append(texts, errorText(err))
		}
	}
	result.Sent, result.Failed = len(sent), len(failed)
	var batch pgx.Batch
	if len(sent) > 0 {
		batch.Queue(`DELETE FROM outbox WHERE id = ANY($1)`, sent)
	}
	if len(failed) > 0 {
		batch.Queue(`
			UPDATE outbox o SET attempts = o.attempts + 1, last_error = f.error,
				next_attempt_at = now() + least(interval '5 minutes', interval '1 second' * 2 ^ least(o.attempts, 20)) * (0.8 + 0.4 * random())
			FROM unnest($1::bigint[], $2::text[]) AS f (id, error) WHERE o.id = f.id`, failed, texts)
	}
	return result, sendBatch(ctx, tx, &batch)
}

// errorText is what fits the row: bounded, and without the one character that text
// cannot hold.
func errorText(err error) string {
	text := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")
	if runes := []rune(text); len(runes) > maxErrorText {
		return string(runes[:maxErrorText])
	}
	return text
}

// Backlog is what waits in the outbox.
type Backlog struct {
	Rows    int64
	Oldest  time.Duration // age of the oldest row
	Failing int64         // rows that failed at least once
}

// Backlog counts the rows.
func (s *Outbox) Backlog(ctx context.Context) (Backlog, error) {
	all, err := collect(ctx, s.db, func(row pgx.CollectableRow) (b Backlog, err error) {
		var micros int64
		err = row.Scan(&b.Rows, &micros, &b.Failing)
		b.Oldest = time.Duration(micros) * time.Microsecond
		return b, err
	}, `SELECT count(*), coalesce(extract(epoch FROM now() - min(created_at)) * 1000000, 0)::bigint,
	           count(*) FILTER (WHERE attempts > 0) FROM outbox`)
	if err != nil {
		return Backlog{}, err
	}
	return all[0], nil
}

// FailingRow is a message that could not be published.
type FailingRow struct {
	ID            int64
	MessageID     string
	OrderID       string
	Type          string
	Attempts      int
	NextAttemptAt time.Time
	LastError     string
	CreatedAt     time.Time
}

// Failing returns rows that failed, oldest first.
func (s *Outbox) Failing(ctx context.Context, limit int) ([]FailingRow, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (r FailingRow, err error) {
		err = row.Scan(&r.ID, &r.MessageID, &r.OrderID, &r.Type, &r.Attempts, &r.NextAttemptAt, &r.LastError, &r.CreatedAt)
		return r, err
	}, `SELECT id, message_id::text, order_id::text, type, attempts, next_attempt_at, coalesce(last_error, ''), created_at
	    FROM outbox WHERE attempts > 0 ORDER BY id LIMIT $1`, limit)
}
