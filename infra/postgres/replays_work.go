package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

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

// clipText bounds what is told about one message in a list.
func clipText(s string) string {
	if runes := []rune(s); len(runes) > maxErrorText {
		return string(runes[:maxErrorText])
	}
	return s
}
