package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
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

// ReplayItem is one message whose turn has come.
type ReplayItem struct {
	ParkedMessage

	OrderStatus domain.Status // of the order that its payload names, now; zero when there is none
}

// ReplayVerdict is what was done with a ReplayItem.
type ReplayVerdict struct {
	Action domain.ReplayAction
	Reason string
	Again  bool // nothing was done, its turn comes again
}

// SendResult counts what one pass did.
type SendResult struct {
	Taken int // messages whose turn came
	Sent  int // of these
	Again int // whose turn comes again
}

// Send takes up to limit waiting messages of a run that nobody else has in hand,
// passes them to send and records its verdicts.
//
// The rows are locked by an open transaction while send runs. A crash frees them: what
// was sent by then is sent once more, unless its outcome came meanwhile.
func (s *Replays) Send(ctx context.Context, runID string, limit int, send func(context.Context, []ReplayItem) []ReplayVerdict) (result SendResult, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		items, err := claimItems(ctx, tx, runID, limit)
		result = SendResult{Taken: len(items)}
		if err != nil || len(items) == 0 {
			return err
		}
		verdicts := send(ctx, items)
		for _, v := range verdicts {
			switch {
			case v.Again:
				result.Again++
			case v.Action == domain.ReplaySend:
				result.Sent++
			}
		}
		return recordVerdicts(ctx, tx, runID, items, verdicts)
	})
	return result, err
}

func claimItems(ctx context.Context, tx pgx.Tx, runID string, limit int) ([]ReplayItem, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+parkedColumns+`, coalesce(o.status, '')
		FROM replay_items i JOIN parked_messages p ON p.id = i.parked_id LEFT JOIN orders o ON o.id = p.order_id
		WHERE i.run_id = $1 AND i.outcome = 'waiting'
		ORDER BY i.parked_id LIMIT $2 FOR UPDATE OF i SKIP LOCKED`, runID, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (item ReplayItem, err error) {
		var status string
		if item.ParkedMessage, err = scanParkedAnd(row, &status); err != nil || status == "" {
			return item, err
		}
		item.OrderStatus, err = domain.ParseStatus(status)
		return item, err
	})
}

func recordVerdicts(ctx context.Context, tx pgx.Tx, runID string, items []ReplayItem, verdicts []ReplayVerdict) error {
	ids := map[domain.ReplayAction][]string{}
	reasons := map[domain.ReplayAction][]string{}
	for i, v := range verdicts {
		if !v.Again {
			ids[v.Action] = append(ids[v.Action], items[i].ID)
			reasons[v.Action] = append(reasons[v.Action], text(v.Reason))
		}
	}
	var batch pgx.Batch
	if sent := ids[domain.ReplaySend]; len(sent) > 0 {
		batch.Queue(`UPDATE replay_items SET outcome = 'sent', sent_at = clock_timestamp() WHERE run_id = $1 AND parked_id = ANY($2)`, runID, sent)
	}
	settle := func(action domain.ReplayAction, outcome, parked string) {
		if len(ids[action]) == 0 {
			return
		}
		batch.Queue(`
			UPDATE replay_items i SET outcome = $4, reason = v.reason, settled_at = now()
			FROM unnest($2::uuid[], $3::text[]) AS v (id, reason) WHERE i.run_id = $1 AND i.parked_id = v.id`,
			runID, ids[action], reasons[action], outcome)
		batch.Queue(parked, ids[action], reasons[action])
	}
	settle(domain.ReplayResolve, "resolved", `
		UPDATE parked_messages p SET status = 'resolved', settled_at = now(), reason = v.reason
		FROM unnest($1::uuid[], $2::text[]) AS v (id, reason) WHERE p.id = v.id AND p.status = 'replaying'`)
	settle(domain.ReplaySkip, "skipped", `
		UPDATE parked_messages p SET status = 'parked' FROM unnest($1::uuid[], $2::text[]) AS v (id, reason) WHERE p.id = v.id AND p.status = 'replaying'`)
	return sendBatch(ctx, tx, &batch)
}

// Handled settles messages that a replay had sent: their consumer is done with them.
// It is safe to repeat, and ids that no replay sent are ignored.
func (s *Replays) Handled(ctx context.Context, parkedIDs []string) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return settleReplays(ctx, tx, parkedIDs, StatusHandled, "")
	})
}

// settleReplays records how replayed messages ended, whichever run sent them. Everybody
// locks items before messages and each in the order of their ids.
//
// An item may still be waiting: the process that sent it died, or has not recorded it
// yet. A message may be parked again: its run gave it up.
func settleReplays(ctx context.Context, tx pgx.Tx, parkedIDs []string, outcome ParkedStatus, reason string) error {
	parkedIDs = slices.Sorted(slices.Values(parkedIDs))
	var batch pgx.Batch
	batch.Queue(`
		WITH open AS (
			SELECT run_id, parked_id FROM replay_items WHERE parked_id = ANY($1) AND outcome IN ('waiting', 'sent', 'unknown')
			ORDER BY parked_id, run_id FOR UPDATE
		)
		UPDATE replay_items i SET outcome = $2, reason = nullif($3, ''), settled_at = now(), sent_at = coalesce(i.sent_at, now())
		FROM open WHERE i.run_id = open.run_id AND i.parked_id = open.parked_id`, parkedIDs, string(outcome), clipText(reason))
	batch.Queue(`
		WITH open AS (
			SELECT p.id FROM parked_messages p WHERE p.id = ANY($1) AND p.status IN ('parked', 'replaying')
			AND EXISTS (SELECT FROM replay_items i WHERE i.parked_id = p.id) ORDER BY p.id FOR NO KEY UPDATE
		)
		UPDATE parked_messages p SET status = $2, settled_at = now() FROM open WHERE p.id = open.id`, parkedIDs, string(outcome))
	return sendBatch(ctx, tx, &batch)
}

// GiveUp settles as unknown what a run sent longer ago than patience and heard nothing
// of. These messages are parked as they were; when their outcome does come it counts.
func (s *Replays) GiveUp(ctx context.Context, runID string, patience time.Duration) (n int, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			WITH silent AS (
				UPDATE replay_items SET outcome = 'unknown', settled_at = now()
				WHERE run_id = $1 AND outcome = 'sent' AND sent_at < now() - make_interval(secs => $2) RETURNING parked_id
			)
			UPDATE parked_messages p SET status = 'parked' FROM silent WHERE p.id = silent.parked_id AND p.status = 'replaying'`,
			runID, patience.Seconds())
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// Advance lets a run send the rest after its canaries.
func (s *Replays) Advance(ctx context.Context, runID string) error {
	_, err := s.db.pool.Exec(ctx, `UPDATE replay_runs SET status = 'running' WHERE id = $1 AND status = 'canary'`, runID)
	return classify(err)
}

// Stop ends the sending. What waits goes back to parking; what was sent is still
// awaited. Stopping a run that is stopping or finished changes nothing.
//
// It returns ErrRunNotFound.
func (s *Replays) Stop(ctx context.Context, operator, runID string) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		skipped, stopped, err := stopSending(ctx, tx, runID, RunStopped, "the run was stopped by "+operator)
		if err != nil || !stopped {
			return err
		}
		return writeAudit(ctx, tx, AuditEntry{
			Operator: operator, Action: "replay stopped", Subject: runID, Messages: skipped, Outcome: "not sent",
		})
	})
}

// FailCanary ends a run whose canary was not handled.
func (s *Replays) FailCanary(ctx context.Context, runID string) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, _, err := stopSending(ctx, tx, runID, RunCanaryFailed, "the canary failed")
		return err
	})
}

func stopSending(ctx context.Context, tx pgx.Tx, runID string, ending RunStatus, reason string) (skipped int, stopped bool, err error) {
	var status RunStatus
	err = tx.QueryRow(ctx, `SELECT status FROM replay_runs WHERE id = $1 FOR NO KEY UPDATE`, runID).Scan(&status)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, false, fmt.Errorf("%w %s", ErrRunNotFound, runID)
	case err != nil:
		return 0, false, err
	case status != RunCanary && status != RunRunning:
		return 0, false, nil
	}
	if _, err := tx.Exec(ctx, massTimeout); err != nil {
		return 0, false, err
	}
	if _, err := tx.Exec(ctx, `UPDATE replay_runs SET status = 'stopping', ending = $2 WHERE id = $1`, runID, string(ending)); err != nil {
		return 0, false, err
	}
	// Waits for what is being sent at this moment, which then is not waiting any more.
	tag, err := tx.Exec(ctx, `
		WITH rest AS (
			UPDATE replay_items SET outcome = 'skipped', reason = $2, settled_at = now()
			WHERE run_id = $1 AND outcome = 'waiting' RETURNING parked_id
		)
		UPDATE parked_messages p SET status = 'parked' FROM rest WHERE p.id = rest.parked_id AND p.status = 'replaying'`, runID, text(reason))
	return int(tag.RowsAffected()), true, err
}

// Finish closes a run in which nothing is waiting or under way, and reports whether it
// is closed now.
func (s *Replays) Finish(ctx context.Context, runID string) (finished bool, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		finished, err = finishRun(ctx, tx, runID)
		return err
	})
	return finished, err
}

func finishRun(ctx context.Context, tx pgx.Tx, runID string) (finished bool, err error) {
	tag, err := tx.Exec(ctx, `
		UPDATE replay_runs r SET status = coalesce(r.ending, 'done'), finished_at = now()
		WHERE r.id = $1 AND r.finished_at IS NULL
		  AND NOT EXISTS (SELECT FROM replay_items i WHERE i.run_id = r.id AND i.outcome IN ('waiting', 'sent'))`, runID)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	rows, err := tx.Query(ctx, `SELECT `+runColumns+` WHERE r.id = $1`, runID)
	if err != nil {
		return false, err
	}
	run, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if err != nil {
		return false, err
	}
	return true, writeAudit(ctx, tx, AuditEntry{
		Operator: run.RequestedBy, Action: "replay finished", Subject: runID, Messages: run.Total, Outcome: string(run.Status),
		Detail: map[string]any{
			"handled": run.Handled, "failed_again": run.FailedAgain, "resolved": run.Resolved, "skipped": run.Skipped, "unknown": run.Unknown,
		},
	})
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

// clipText bounds what is told about one message in a list.
func clipText(s string) string {
	if runes := []rune(s); len(runes) > maxErrorText {
		return string(runes[:maxErrorText])
	}
	return s
}
