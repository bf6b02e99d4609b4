package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

func (w *world) fill(n int) {
	w.t.Helper()
	_, err := w.db.Pool().Exec(ctx, `
		INSERT INTO outbox (message_id, order_id, type, payload, due_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'order.timeout', '{}', now() + interval '30 minutes' FROM generate_series(1, $1)`, n)
	if err != nil {
		w.t.Fatal(err)
	}
}

// Several relays share the rows, and each row is sent once.
func TestRelaysShareTheOutbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(2000)
	var mu sync.Mutex
	seen := map[int64]int{}
	together(4, func(int) {
		for {
			result, err := w.outbox.Relay(ctx, 70, func(_ context.Context, rows []postgres.OutboxRow) []error {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range rows {
					seen[r.ID]++
				}
				return make([]error, len(rows))
			})
			if err != nil {
				t.Error(err)
				return
			}
			if result.Claimed == 0 {
				return
			}
		}
	})
	for id, n := range seen {
		if n != 1 {
			t.Errorf("row %d was sent %d times", id, n)
		}
	}
	if len(seen) != 2000 || w.count(`SELECT count(*) FROM outbox`) != 0 {
		t.Errorf("%d rows sent, %d left", len(seen), w.count(`SELECT count(*) FROM outbox`))
	}
}

// A row at fault backs off with its error and holds up nobody; an absent broker costs
// no row and no attempt.
func TestRelayTellsFaultsFromOutages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(101)
	bad := w.count(`SELECT min(id) FROM outbox`)
	relay := func(verdict func(postgres.OutboxRow) error) postgres.RelayResult {
		t.Helper()
		return must(w.outbox.Relay(ctx, 500, func(_ context.Context, rows []postgres.OutboxRow) []error {
			errs := make([]error, len(rows))
			for i, r := range rows {
				errs[i] = verdict(r)
			}
			return errs
		}))
	}
	away := relay(func(postgres.OutboxRow) error { return domain.ErrUnavailable })
	if away.Deferred != 101 || w.count(`SELECT count(*) FROM outbox WHERE attempts = 0 AND next_attempt_at <= now()`) != 101 {
		t.Fatalf("outage: %+v", away)
	}
	result := relay(func(r postgres.OutboxRow) error {
		if r.Remaining < 29*time.Minute || r.Remaining > 30*time.Minute || !r.Timer {
			t.Errorf("remaining %s", r.Remaining)
		}
		if r.ID == bad {
			return errors.New("unroutable \x00" + strings.Repeat("ä", 5000))
		}
		return nil
	})
	if result.Sent != 100 || result.Failed != 1 {
		t.Errorf("%+v", result)
	}
	if again := relay(func(postgres.OutboxRow) error { return nil }); again.Claimed != 0 {
		t.Errorf("the row did not back off: %+v", again)
	}
	failing := must(w.outbox.Failing(ctx, 10))
	if len(failing) != 1 || failing[0].ID != bad || failing[0].Attempts != 1 || !strings.HasPrefix(failing[0].LastError, "unroutable") || len(failing[0].LastError) > 3000 {
		t.Errorf("%+v", failing)
	}
	if b := must(w.outbox.Backlog(ctx)); b.Rows != 1 || b.Failing != 1 || b.Oldest <= 0 {
		t.Errorf("%+v", b)
	}
}

// A drain in the middle of a batch records what was sent.
func TestRelayRecordsWhatWasSentWhenItIsStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(10)
	stopping, stop := context.WithCancel(ctx)
	_, err := w.outbox.Relay(stopping, 10, func(_ context.Context, rows []postgres.OutboxRow) []error {
		stop()
		return make([]error, len(rows))
	})
	if err != nil || w.count(`SELECT count(*) FROM outbox`) != 0 {
		t.Errorf("%v, %d rows left", err, w.count(`SELECT count(*) FROM outbox`))
	}
}

func TestMailIsClaimedByOneSender(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1)
	n := postgres.NewNotifications(w.db)
	key := postgres.NotificationKey{OrderID: w.place(time.Hour, line("a", 1)).ID(), Kind: "closed"}
	results := make([]error, 8)
	together(8, func(i int) { _, results[i] = n.Claim(ctx, key, time.Hour) })
	winners := 0
	for _, err := range results {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, postgres.ErrClaimed) || !errors.Is(err, domain.ErrUnavailable):
			t.Error(err)
		}
	}
	if winners != 1 {
		t.Fatalf("%d senders", winners)
	}
	if err := n.Release(ctx, key); err != nil {
		t.Fatal(err)
	}
	if sent, err := n.Claim(ctx, key, -time.Second); sent || err != nil { // a claim that ran out
		t.Fatalf("after release: %v, %v", sent, err)
	}
	if sent, err := n.Claim(ctx, key, time.Hour); sent || err != nil {
		t.Fatalf("after a dead sender: %v, %v", sent, err)
	}
	if err := n.MarkSent(ctx, key); err != nil {
		t.Fatal(err)
	}
	if sent, err := n.Claim(ctx, key, time.Hour); !sent || err != nil {
		t.Fatalf("after it was sent: %v, %v", sent, err)
	}
	key.Reference = "another payment"
	if sent, err := n.Claim(ctx, key, time.Hour); sent || err != nil {
		t.Fatalf("another mail: %v, %v", sent, err)
	}
}

func TestDelayQueuesAreRemembered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 2)
	d := postgres.NewDelayQueues(w.db)
	for range 2 {
		if err := d.Record(ctx, "ns", []time.Duration{time.Minute, time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Remove(ctx, "ns", time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := must(d.List(ctx, "ns")); len(got) != 1 || got[0] != time.Second {
		t.Errorf("%v", got)
	}
	w.place(time.Hour, line("a", 1))
	w.place(time.Millisecond, line("a", 1)) // overdue: its timer may be anywhere
	if n := must(d.PendingWithWindow(ctx, time.Hour)); n != 2 {
		t.Errorf("%d orders", n)
	}
	if n := must(d.PendingWithWindow(ctx, 2*time.Hour)); n != 1 {
		t.Errorf("%d orders", n)
	}
}
