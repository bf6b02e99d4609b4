package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

func (w *world) startRun(r postgres.ReplayRequest) postgres.Run {
	w.t.Helper()
	r.Operator = "ada"
	return must(postgres.NewReplays(w.db).Start(ctx, r))
}

// sendAll gives every message the same verdict.
func sendAll(v postgres.ReplayVerdict) func(context.Context, []postgres.ReplayItem) []postgres.ReplayVerdict {
	return func(_ context.Context, items []postgres.ReplayItem) []postgres.ReplayVerdict {
		verdicts := make([]postgres.ReplayVerdict, len(items))
		for i := range verdicts {
			verdicts[i] = v
		}
		return verdicts
	}
}

var sent = postgres.ReplayVerdict{Action: domain.ReplaySend}

// Two runs over the same messages at once: one of them gets all, the other one is
// refused and named the first.
func TestOneRunTakesAMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.park(200)
	replays := postgres.NewReplays(w.db)
	var mu sync.Mutex
	var runs []postgres.Run
	var refusals []*postgres.InRunError
	together(6, func(int) {
		run, err := replays.Start(ctx, postgres.ReplayRequest{Operator: "ada"})
		mu.Lock()
		defer mu.Unlock()
		var refused *postgres.InRunError
		switch {
		case err == nil:
			runs = append(runs, run)
		case errors.As(err, &refused):
			refusals = append(refusals, refused)
		default:
			t.Error(err)
		}
	})
	if len(runs) != 1 || runs[0].Total != 200 || len(refusals) != 5 {
		t.Fatalf("%d runs, %d refusals", len(runs), len(refusals))
	}
	for _, r := range refusals {
		if r.RunID != runs[0].ID || r.Messages != 200 {
			t.Errorf("refused with %v", r)
		}
	}
}

// A filter that fits nothing is a mistake, and leaves no trace; all of nothing is done.
func TestRunsOverNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.park(1)
	replays, parked := postgres.NewReplays(w.db), postgres.NewParked(w.db)
	nothing := postgres.ParkedFilter{Class: "panic"}
	if _, err := replays.Start(ctx, postgres.ReplayRequest{Operator: "ada", Filter: nothing}); !errors.Is(err, postgres.ErrNothingPicked) {
		t.Errorf("replay: %v", err)
	}
	if _, err := parked.Discard(ctx, "ada", nothing, "why"); !errors.Is(err, postgres.ErrNothingPicked) {
		t.Errorf("discard: %v", err)
	}
	if n := w.count(`SELECT (SELECT count(*) FROM audit) + (SELECT count(*) FROM replay_runs)`); n != 0 {
		t.Errorf("%d traces of what was refused", n)
	}
	must(parked.Discard(ctx, "ada", postgres.ParkedFilter{IDs: ids}, "why"))
	if run := w.startRun(postgres.ReplayRequest{Canaries: 1}); run.Status != postgres.RunDone || !run.Finished() || run.Total != 0 {
		t.Errorf("a run over all of nothing is %+v", run)
	}
	if entries := must(postgres.NewAudit(w.db).List(ctx, 0, 10)); len(entries) != 3 || entries[0].Action != "replay finished" {
		t.Errorf("audit: %+v", entries)
	}
}

func TestRunAdvancesThroughItsStates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.park(6)
	replays := postgres.NewReplays(w.db)
	run := w.startRun(postgres.ReplayRequest{Canaries: 1, Rate: 2.5})
	expect := func(status postgres.RunStatus, waiting, out, handled, failed, resolved, skipped int) {
		t.Helper()
		got := must(replays.Get(ctx, run.ID))
		if got.Status != status || got.Waiting != waiting || got.Sent != out || got.Handled != handled || got.FailedAgain != failed || got.Resolved != resolved || got.Skipped != skipped || got.Rate != 2.5 {
			t.Errorf("run is %+v", got)
		}
	}
	expect(postgres.RunCanary, 6, 0, 0, 0, 0, 0)
	if result := must(replays.Send(ctx, run.ID, 1, sendAll(sent))); result != (postgres.SendResult{Taken: 1, Sent: 1}) {
		t.Errorf("%+v", result)
	}
	expect(postgres.RunCanary, 5, 1, 0, 0, 0, 0)
	mustDo(t, replays.Handled(ctx, ids[:1]))
	mustDo(t, replays.Handled(ctx, ids[:1]))                    // safe to repeat
	mustDo(t, replays.Handled(ctx, []string{uuid.NewString()})) // of no replay
	mustDo(t, replays.Advance(ctx, run.ID))
	expect(postgres.RunRunning, 5, 0, 1, 0, 0, 0)
	must(replays.Send(ctx, run.ID, 1, sendAll(postgres.ReplayVerdict{Action: domain.ReplayResolve, Reason: "the order is paid"})))
	must(replays.Send(ctx, run.ID, 1, sendAll(postgres.ReplayVerdict{Action: domain.ReplaySkip, Reason: "malformed"})))
	if result := must(replays.Send(ctx, run.ID, 10, sendAll(postgres.ReplayVerdict{Again: true}))); result != (postgres.SendResult{Taken: 3, Again: 3}) {
		t.Errorf("%+v", result)
	}
	expect(postgres.RunRunning, 3, 0, 1, 0, 1, 1)
	must(replays.Send(ctx, run.ID, 10, sendAll(sent)))
	if finished := must(replays.Finish(ctx, run.ID)); finished {
		t.Error("finished while outcomes are awaited")
	}
	again := parkedMessage(3)
	again.PreviousID = ids[3]
	must(postgres.NewParked(w.db).Store(ctx, []byte("again"), again))
	mustDo(t, replays.Handled(ctx, ids[4:5]))
	expect(postgres.RunRunning, 0, 1, 2, 1, 1, 1)
	if n := must(replays.GiveUp(ctx, run.ID, time.Hour)); n != 0 {
		t.Errorf("gave up %d too early", n)
	}
	if n := must(replays.GiveUp(ctx, run.ID, -time.Second)); n != 1 {
		t.Errorf("gave up %d, want 1", n)
	}
	if finished := must(replays.Finish(ctx, run.ID)); !finished {
		t.Error("not finished")
	}
	expect(postgres.RunDone, 0, 0, 2, 1, 1, 1)

	statuses := map[string]postgres.ParkedStatus{
		ids[0]: postgres.StatusHandled, ids[1]: postgres.StatusResolved, ids[2]: postgres.StatusParked,
		ids[3]: postgres.StatusFailedAgain, ids[4]: postgres.StatusHandled, ids[5]: postgres.StatusParked,
	}
	for id, want := range statuses {
		if m := must(postgres.NewParked(w.db).Get(ctx, id)); m.Status != want {
			t.Errorf("%s is %s, want %s", id, m.Status, want)
		}
	}
	failed := must(postgres.NewParked(w.db).Get(ctx, ids[3]))
	next := must(postgres.NewParked(w.db).Get(ctx, failed.NextID))
	if next.PreviousID != ids[3] || next.Replays != 1 || next.Status != postgres.StatusParked {
		t.Errorf("the later parking is %+v", next)
	}
	// The one that was given up: its outcome comes after all.
	mustDo(t, replays.Handled(ctx, ids[5:]))
	if m := must(postgres.NewParked(w.db).Get(ctx, ids[5])); m.Status != postgres.StatusHandled || m.Replays != 1 {
		t.Errorf("given up and then handled: %+v", m)
	}
	items := must(replays.Items(ctx, run.ID, "", "", 100))
	if len(items) != 6 || items[1].Reason != "the order is paid" || items[3].Parked.NextID != next.ID {
		t.Errorf("items: %+v", items)
	}
	audit := must(postgres.NewAudit(w.db).List(ctx, 0, 10))
	if len(audit) != 2 || audit[0].Outcome != "done" || audit[0].Messages != 6 || fmt.Sprint(audit[0].Detail["unknown"]) != "1" {
		t.Errorf("audit: %+v", audit)
	}
}

// A crash can leave a message sent and unrecorded. Its outcome counts all the same, and
// it is not sent again.
func TestOutcomeBeforeTheRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.park(2)
	replays := postgres.NewReplays(w.db)
	run := w.startRun(postgres.ReplayRequest{})
	mustDo(t, replays.Handled(ctx, ids[:1]))
	again := parkedMessage(1)
	again.PreviousID = ids[1]
	must(postgres.NewParked(w.db).Store(ctx, []byte("again"), again))
	if result := must(replays.Send(ctx, run.ID, 10, sendAll(sent))); result.Taken != 0 {
		t.Errorf("sent again: %+v", result)
	}
	if finished := must(replays.Finish(ctx, run.ID)); !finished {
		t.Error("not finished")
	}
	if m := must(postgres.NewParked(w.db).List(ctx, postgres.ParkedQuery{Limit: 9})); len(m) != 1 || m[0].Replays != 1 {
		t.Errorf("parked: %+v", m)
	}
}

// Stopping waits for what is being sent at this moment, and gives back the rest.
func TestStopWhileSending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.park(10)
	replays := postgres.NewReplays(w.db)
	run := w.startRun(postgres.ReplayRequest{})
	sending, release, stopped := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		<-sending
		go func() { stopped <- replays.Stop(ctx, "bob", run.ID) }()
		// It must be at the rows by now, or it has no reason to wait; either is right.
		for waiting := int64(0); waiting == 0; {
			waiting = w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		}
		close(release)
	}()
	result, err := replays.Send(ctx, run.ID, 4, func(_ context.Context, items []postgres.ReplayItem) []postgres.ReplayVerdict {
		close(sending)
		<-release
		return sendAll(sent)(ctx, items)
	})
	if err != nil || result.Sent != 4 {
		t.Fatalf("%+v, %v", result, err)
	}
	mustDo(t, <-stopped)
	mustDo(t, replays.Stop(ctx, "bob", run.ID)) // changes nothing
	got := must(replays.Get(ctx, run.ID))
	if got.Status != postgres.RunStopping || got.Sent != 4 || got.Skipped != 6 {
		t.Errorf("%+v", got)
	}
	must(replays.GiveUp(ctx, run.ID, -time.Second))
	must(replays.Finish(ctx, run.ID))
	if got := must(replays.Get(ctx, run.ID)); got.Status != postgres.RunStopped {
		t.Errorf("%+v", got)
	}
	if n := w.count(`SELECT count(*) FROM parked_messages WHERE status = 'parked'`); n != 10 {
		t.Errorf("%d parked, want 10", n)
	}
	if err := replays.Stop(ctx, "bob", uuid.NewString()); !errors.Is(err, postgres.ErrRunNotFound) {
		t.Error(err)
	}
}

func TestLeaseHasOneHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.park(1)
	replays := postgres.NewReplays(w.db)
	run := w.startRun(postgres.ReplayRequest{})
	var mu sync.Mutex
	holders := 0
	together(8, func(int) {
		if _, ok, err := replays.Lease(ctx, time.Minute); err != nil {
			t.Error(err)
		} else if ok {
			mu.Lock()
			defer mu.Unlock()
			holders++
		}
	})
	if holders != 1 || !must(replays.Get(ctx, run.ID)).WorkedOn {
		t.Fatalf("%d holders", holders)
	}
	mustDo(t, replays.Renew(ctx, run.ID, 0))
	if must(replays.Get(ctx, run.ID)).WorkedOn {
		t.Error("given back and still worked on")
	}
	if id, ok, err := replays.Lease(ctx, time.Minute); id != run.ID || !ok || err != nil {
		t.Errorf("taken over: %s, %v, %v", id, ok, err)
	}
}

// Everything at once: engines that send, consumers that handle and fail, somebody who
// stops. No deadlock reaches anybody, and every message ends with one outcome.
func TestRunUnderFire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const messages = 300
	w.park(messages)
	replays, parked := postgres.NewReplays(w.db), postgres.NewParked(w.db)
	run := w.startRun(postgres.ReplayRequest{})
	out := make(chan string, messages*3)
	var engines sync.WaitGroup
	for range 3 {
		engines.Go(func() {
			for {
				result, err := replays.Send(ctx, run.ID, 20, func(_ context.Context, items []postgres.ReplayItem) []postgres.ReplayVerdict {
					for _, item := range items {
						out <- item.ID // its outcome may come before the record
					}
					return sendAll(sent)(ctx, items)
				})
				if err != nil {
					t.Error(err)
				}
				if err != nil || result.Taken == 0 {
					return
				}
			}
		})
	}
	var consumers sync.WaitGroup
	for range 4 {
		consumers.Go(func() {
			for id := range out {
				var err error
				if rand.IntN(3) == 0 {
					again := parkedMessage(0)
					again.PreviousID = id
					_, err = parked.Store(ctx, []byte("again "+id), again)
				} else {
					err = replays.Handled(ctx, []string{id})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for w.count(`SELECT count(*) FROM replay_items WHERE outcome <> 'waiting'`) < messages/3 {
	}
	mustDo(t, replays.Stop(ctx, "bob", run.ID))
	engines.Wait()
	close(out)
	consumers.Wait()
	if finished := must(replays.Finish(ctx, run.ID)); !finished {
		t.Error("not finished")
	}
	got := must(replays.Get(ctx, run.ID))
	if got.Handled+got.FailedAgain+got.Skipped != messages || got.Handled == 0 || got.FailedAgain == 0 {
		t.Errorf("%+v", got)
	}
	for sql, want := range map[string]int{
		`SELECT count(*) FROM parked_messages WHERE status = 'handled'`:      got.Handled,
		`SELECT count(*) FROM parked_messages WHERE status = 'failed_again'`: got.FailedAgain,
		`SELECT count(*) FROM parked_messages WHERE status = 'parked'`:       got.Skipped + got.FailedAgain,
		`SELECT count(*) FROM parked_messages WHERE status = 'replaying'`:    0,
	} {
		if n := w.count(sql); n != int64(want) {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
