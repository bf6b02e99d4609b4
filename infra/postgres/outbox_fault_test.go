package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// sendNothing keeps what it was given and finds every row at fault.
func sendNothing(seen *[]postgres.OutboxRow) func(context.Context, []postgres.OutboxRow) []error {
	return func(_ context.Context, rows []postgres.OutboxRow) []error {
		*seen = append(*seen, rows...)
		errs := make([]error, len(rows))
		for i := range errs {
			errs[i] = errors.New("unroutable")
		}
		return errs
	}
}

// The wait doubles from a second to five minutes, give or take a fifth, and stays there.
func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(1)
	for attempts, want := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 3: 8 * time.Second, 8: 256 * time.Second,
		9: 5 * time.Minute, 2_000_000_000: 5 * time.Minute,
	} {
		if _, err := w.db.Pool().Exec(ctx, `UPDATE outbox SET attempts = $1, next_attempt_at = now()`, attempts); err != nil {
			t.Fatal(err)
		}
		before := time.Duration(w.count(`SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)) * time.Microsecond
		var seen []postgres.OutboxRow
		if result := must(w.outbox.Relay(ctx, 1, sendNothing(&seen))); result.Failed != 1 || seen[0].Attempts != attempts {
			t.Fatalf("after %d attempts: %+v, %+v", attempts, result, seen)
		}
		next := time.Duration(w.count(`SELECT (extract(epoch FROM next_attempt_at) * 1000000)::bigint FROM outbox`)) * time.Microsecond
		const slack = 5 * time.Second // for the transaction to begin on a busy machine
		if wait := next - before; wait < want*8/10 || wait > want*12/10+slack {
			t.Errorf("after %d attempts the row waits %s, want %s", attempts, wait, want)
		}
		if n := w.count(`SELECT attempts FROM outbox`); n != int64(attempts)+1 {
			t.Errorf("%d attempts counted after %d", n, attempts)
		}
	}
}

// A timer says what is left of its deadline, also when that has passed; other messages
// have none.
func TestRowsSayWhatIsLeftOfTheirDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.db.Pool().Exec(ctx, `
		INSERT INTO outbox (message_id, order_id, type, payload, due_at) VALUES
			(gen_random_uuid(), gen_random_uuid(), 'order.timeout', '{}', now() - interval '1 hour'),
			(gen_random_uuid(), gen_random_uuid(), 'order.timeout', '{}', now() + interval '720 hours'),
			(gen_random_uuid(), gen_random_uuid(), 'order.closed', '{}', NULL)`)
	if err != nil {
		t.Fatal(err)
	}
	var rows []postgres.OutboxRow
	must(w.outbox.Relay(ctx, 10, sendNothing(&rows)))
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	late, far, none := rows[0], rows[1], rows[2]
	if !late.Timer || late.Remaining > -time.Hour || late.Remaining < -time.Hour-time.Minute {
		t.Errorf("overdue: %+v", late)
	}
	if !far.Timer || far.Remaining > 720*time.Hour || far.Remaining < 720*time.Hour-time.Minute {
		t.Errorf("far: %+v", far)
	}
	if none.Timer || none.Remaining != 0 || none.Type != domain.TypeOrderClosed {
		t.Errorf("no timer: %+v", none)
	}
}

// A relay that loses its connection while the broker has the rows says that the database
// is away. The rows are free for the next relay at once, and no attempt is counted.
func TestRelayThatLosesItsConnectionLeavesTheRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(20)
	_, err := w.outbox.Relay(ctx, 20, func(_ context.Context, rows []postgres.OutboxRow) []error {
		// In two steps: a planner may end sessions before it asks whose they are.
		relay := w.count(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
		if n := w.count(`SELECT pg_terminate_backend($1::int, 10000)::int`, relay); n != 1 {
			t.Error("the relay's connection did not end")
		}
		return make([]error, len(rows))
	})
	if !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	var again int
	result := must(w.outbox.Relay(ctx, 20, func(_ context.Context, rows []postgres.OutboxRow) []error {
		for _, r := range rows {
			again += 1 + 100*r.Attempts
		}
		return make([]error, len(rows))
	}))
	if again != 20 || result.Sent != 20 || w.count(`SELECT count(*) FROM outbox`) != 0 {
		t.Errorf("%d rows came again, %+v", again, result)
	}
}

// A mixed batch settles each row by its own verdict.
func TestEachRowIsSettledByItsOwnVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(9)
	result := must(w.outbox.Relay(ctx, 9, func(_ context.Context, rows []postgres.OutboxRow) []error {
		errs := make([]error, len(rows))
		for i := range rows {
			errs[i] = []error{nil, domain.ErrUnavailable, errors.New("too large")}[i%3]
		}
		return errs
	}))
	if want := (postgres.RelayResult{Claimed: 9, Sent: 3, Failed: 3, Deferred: 3}); result != want {
		t.Errorf("got %+v, want %+v", result, want)
	}
	if n := w.count(`SELECT count(*) FROM outbox WHERE attempts = 0 AND last_error IS NULL AND next_attempt_at <= now()`); n != 3 {
		t.Errorf("%d rows untouched, want 3", n)
	}
	failing := must(w.outbox.Failing(ctx, 2))
	if len(failing) != 2 || failing[0].ID >= failing[1].ID || failing[0].LastError != "too large" || failing[0].NextAttemptAt.IsZero() {
		t.Errorf("%+v", failing)
	}
}
