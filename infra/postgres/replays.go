package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Replays stores replay runs. A run is a list of parked messages, each of them once,
// that is worked off in any number of passes and processes:
//
//	canary ─▶ running ─▶ done
//	   └────────┴─▶ stopping ─▶ stopped, canary_failed
//
// A message of a run is waiting, then sent, then handled or failed_again; or resolved
// or skipped without having been sent; or unknown, when its outcome did not come.
type Replays struct{ db *DB }

// NewReplays returns the store of replay runs.
func NewReplays(db *DB) *Replays { return &Replays{db: db} }

// RunStatus is where a run stands.
type RunStatus string

// The states of a run. The first three are open.
const (
	RunCanary       RunStatus = "canary"        // the first messages are out, the rest waits for their outcome
	RunRunning      RunStatus = "running"       //
	RunStopping     RunStatus = "stopping"      // nothing more is sent, outcomes are awaited
	RunDone         RunStatus = "done"          // every message has its outcome
	RunStopped      RunStatus = "stopped"       // by a person
	RunCanaryFailed RunStatus = "canary_failed" // the rest was not sent
)

// Run is one replay run with its progress.
type Run struct {
	ID          string
	Status      RunStatus
	RequestedBy string
	Selection   string  // in words
	Rate        float64 // messages a second; 0 is as fast as it can
	Canaries    int     // how many must be handled before the rest is sent
	Total       int     // messages of the run; each has one of these outcomes:
	Waiting     int     // not sent yet
	Sent        int     // sent, and not settled yet
	Handled     int     // the consumer is done with it
	FailedAgain int     // parked once more
	Resolved    int     // the world moved on, not sent
	Skipped     int     // not sent, still parked
	Unknown     int     // sent, and nothing was heard of it: parked as it was
	CreatedAt   time.Time
	SentAt      time.Time // when the last message was sent
	FinishedAt  time.Time // zero while it is open
	WorkedOn    bool      // a reconciler holds its lease: false on an open run is an interruption
}

// Settled is how many messages have a final outcome.
func (r Run) Settled() int { return r.Total - r.Waiting - r.Sent }

// Finished tells that nothing more happens.
func (r Run) Finished() bool { return !r.FinishedAt.IsZero() }

// ErrRunNotFound says: no replay run has this id.
var ErrRunNotFound = errors.New("unknown replay run")

// InRunError says: messages that were picked are part of an open run already.
type InRunError struct {
	Messages int
	RunID    string // of one of them
}

func (e *InRunError) Error() string {
	return fmt.Sprintf("in replay run %s, which is not finished: %d of these messages; wait for it, or stop it", e.RunID, e.Messages)
}

// ReplayRequest says what to replay and how.
type ReplayRequest struct {
	Operator string
	Filter   ParkedFilter
	Rate     float64 // messages a second; 0 is as fast as it can
	Canaries int     // sent first; the rest only once all of them were handled
}

// massTimeout bounds statements over everything that is parked, in place of the session's
// own limit: a hundred thousand messages take some seconds.
const massTimeout = "SET LOCAL statement_timeout = '60s'"

// Start begins a run over what the filter picks. A run over all of nothing is done at once.
//
// It returns an InRunError when any of it is part of an open run, ErrNothingPicked when
// no open message fits the filter's conditions, and, for messages named by their ids,
// ErrParkedNotFound or ErrNotParked; then nothing happened.
func (s *Replays) Start(ctx context.Context, r ReplayRequest) (Run, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Run{}, err
	}
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, massTimeout); err != nil {
			return err
		}
		if err := lockSelection(ctx, tx, r.Filter); err != nil {
			return err
		}
		return insertRun(ctx, tx, id.String(), r)
	})
	if err != nil {
		return Run{}, err
	}
	return s.Get(ctx, id.String())
}

// lockSelection locks what is picked, in one order, so that two runs cannot both take it.
func lockSelection(ctx context.Context, tx pgx.Tx, f ParkedFilter) error {
	rows, err := tx.Query(ctx, `
		SELECT p.id::text, p.status FROM parked_messages p WHERE p.settled_at IS NULL AND `+parkedWhere+`
		ORDER BY p.id FOR NO KEY UPDATE`, f.args()...)
	if err != nil {
		return err
	}
	open := map[string]bool{}
	var inRun []string
	var id string
	var status ParkedStatus
	_, err = pgx.ForEachRow(rows, []any{&id, &status}, func() error {
		open[id] = true
		if status == StatusReplaying {
			inRun = append(inRun, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(inRun) > 0 {
		refused := &InRunError{Messages: len(inRun)}
		err := tx.QueryRow(ctx, `SELECT run_id::text FROM replay_items WHERE parked_id = $1 AND outcome IN ('waiting', 'sent')`, inRun[0]).Scan(&refused.RunID)
		if err != nil {
			return err
		}
		return refused
	}
	for _, id := range f.IDs {
		if !open[id] {
			return lockParked(ctx, tx, id) // says why
		}
	}
	if len(open) == 0 && !f.All() {
		return fmt.Errorf("%w %s", ErrNothingPicked, f.describe())
	}
	return nil
}

func insertRun(ctx context.Context, tx pgx.Tx, id string, r ReplayRequest) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO replay_runs (id, status, requested_by, selection, rate, canaries, total)
		VALUES ($1, CASE WHEN $5 > 0 THEN 'canary' ELSE 'running' END, $2, to_jsonb($3::text), nullif($4::float8, 0), $5, 0)`,
		id, text(r.Operator), r.Filter.describe(), r.Rate, r.Canaries)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, `
		WITH taken AS (
			UPDATE parked_messages p SET status = 'replaying' WHERE p.status = 'parked' AND p.settled_at IS NULL AND `+parkedWhere+` RETURNING p.id
		)
		INSERT INTO replay_items (run_id, parked_id) SELECT $10, id FROM taken`, r.Filter.args(id)...)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE replay_runs SET total = $2 WHERE id = $1`, id, tag.RowsAffected()); err != nil {
		return err
	}
	err = writeAudit(ctx, tx, AuditEntry{
		Operator: r.Operator, Action: "replay", Subject: id, Messages: int(tag.RowsAffected()), Outcome: "started",
		Detail: map[string]any{"selection": r.Filter.describe(), "rate": r.Rate, "canaries": r.Canaries},
	})
	if err == nil && tag.RowsAffected() == 0 {
		_, err = finishRun(ctx, tx, id)
	}
	return err
}

// Get returns ErrRunNotFound when there is no such run.
func (s *Replays) Get(ctx context.Context, id string) (Run, error) {
	found, err := collect(ctx, s.db, scanRun, `SELECT `+runColumns+` WHERE r.id = $1`, id)
	if err != nil {
		return Run{}, err
	}
	if len(found) == 0 {
		return Run{}, fmt.Errorf("%w %s", ErrRunNotFound, id)
	}
	return found[0], nil
}

// List returns runs, the newest first; before is exclusive, empty is from the newest.
func (s *Replays) List(ctx context.Context, before string, limit int) ([]Run, error) {
	return collect(ctx, s.db, scanRun, `
		SELECT `+runColumns+` WHERE $1 = '' OR r.id < nullif($1, '')::uuid ORDER BY r.id DESC LIMIT $2`, before, limit)
}

// ReplayOutcome is what became of one message of a run.
type ReplayOutcome struct {
	Parked    ParkedMessage
	Outcome   string
	Reason    string
	SentAt    time.Time
	SettledAt time.Time
}

// Items returns messages of a run in the order they are sent, without their payloads,
// headers and story; outcome empty is all, after is exclusive.
func (s *Replays) Items(ctx context.Context, runID, outcome, after string, limit int) ([]ReplayOutcome, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (o ReplayOutcome, err error) {
		var sentAt, settledAt *time.Time
		o.Parked, err = scanParkedAnd(row, &o.Outcome, &o.Reason, &sentAt, &settledAt)
		o.SentAt, o.SettledAt = orZero(sentAt), orZero(settledAt)
		return o, err
	}, `
		SELECT `+parkedListColumns+`, i.outcome, coalesce(i.reason, ''), i.sent_at, i.settled_at
		FROM replay_items i JOIN parked_messages p ON p.id = i.parked_id
		WHERE i.run_id = $1 AND ($2 = '' OR i.outcome = $2) AND ($3 = '' OR i.parked_id > nullif($3, '')::uuid)
		ORDER BY i.parked_id LIMIT $4`, runID, outcome, after, limit)
}

// Lease takes an open run that nobody works on, for the length of lease. It reports
// false when there is none.
func (s *Replays) Lease(ctx context.Context, lease time.Duration) (id string, ok bool, err error) {
	found, err := collect(ctx, s.db, pgx.RowTo[string], `
		UPDATE replay_runs SET leased_until = now() + make_interval(secs => $1)
		WHERE id = (SELECT id FROM replay_runs WHERE finished_at IS NULL AND leased_until < now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING id::text`, lease.Seconds())
	if err != nil || len(found) == 0 {
		return "", false, err
	}
	return found[0], true, nil
}

// Renew extends the lease on a run; a lease of 0 gives it back.
func (s *Replays) Renew(ctx context.Context, id string, lease time.Duration) error {
	_, err := s.db.pool.Exec(ctx, `UPDATE replay_runs SET leased_until = now() + make_interval(secs => $2) WHERE id = $1`, id, lease.Seconds())
	return classify(err)
}

const runColumns = `
	r.id::text, r.status, r.requested_by, r.selection #>> '{}', coalesce(r.rate, 0), r.canaries, r.total,
	r.created_at, r.finished_at, r.leased_until > now(), c.*
	FROM replay_runs r CROSS JOIN LATERAL (
		SELECT count(*) FILTER (WHERE i.outcome = 'waiting'), count(*) FILTER (WHERE i.outcome = 'sent'),
		       count(*) FILTER (WHERE i.outcome = 'handled'), count(*) FILTER (WHERE i.outcome = 'failed_again'),
		       count(*) FILTER (WHERE i.outcome = 'resolved'), count(*) FILTER (WHERE i.outcome = 'skipped'),
		       count(*) FILTER (WHERE i.outcome = 'unknown'), max(i.sent_at)
		FROM replay_items i WHERE i.run_id = r.id
	) c`

func scanRun(row pgx.CollectableRow) (r Run, err error) {
	var sentAt, finishedAt *time.Time
	err = row.Scan(&r.ID, &r.Status, &r.RequestedBy, &r.Selection, &r.Rate, &r.Canaries, &r.Total,
		&r.CreatedAt, &finishedAt, &r.WorkedOn,
		&r.Waiting, &r.Sent, &r.Handled, &r.FailedAgain, &r.Resolved, &r.Skipped, &r.Unknown, &sentAt)
	r.SentAt, r.FinishedAt = orZero(sentAt), orZero(finishedAt)
	return r, err
}
