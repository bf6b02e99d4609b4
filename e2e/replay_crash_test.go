package e2e

import (
	"fmt"
	"testing"
	"time"

	"example.com/ordertimeout/e2e/harness"
)

// brokenShop has orders whose timers are parked, for a bug that is mended by now. No
// reconciler runs.
func brokenShop(t *testing.T, orders int) *harness.Shop {
	t.Helper()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1h") // or the sweep would close them
	shop.Run("order", "relay", "closer", "notifier")
	reconciler := shop.Run("reconciler")[0]
	shop.SetStock("tea", units(int64(orders)))
	mend := breakCloses(t, shop)
	for range orders {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	shop.AwaitCount(int64(orders), `SELECT count(*) FROM parked_messages WHERE status = 'parked'`)
	mend()
	if code := reconciler.Terminate(); code != 0 {
		t.Fatalf("the reconciler ended with status %d", code)
	}
	return shop
}

// A run that was killed at any of its steps goes on by itself when a reconciler is
// there: nothing is lost, and nothing is handled with double effect.
func TestReconcilerKilledDuringARun(t *testing.T) {
	const orders = 30
	for name, at := range map[string]struct {
		variable string
		pattern  []byte
	}{
		"before a message is published":     {"AMQP_URL", harness.PublishRequest},
		"between publishing and the record": {"DATABASE_URL", harness.CommitRequest},
		"after the record":                  {"DATABASE_URL", harness.CommitAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shop := brokenShop(t, orders)
			var run replayRun
			parked(t, shop, &run, "replay", "--all", "--canary", "0", "--rate", "20", "--detach", "--json")
			for round := range 4 {
				proxy := harness.NewProxy(t, shop.Addr(at.variable))
				held := proxy.HoldAt(at.pattern)
				reconciler := shop.Start("reconciler", shop.Via(at.variable, proxy.Addr))
				select {
				case <-held:
				case <-time.After(harness.Patience):
					t.Fatalf("round %d: the run never came there", round)
				}
				reconciler.Kill()
				proxy.Cut()
			}
			if n := shop.Count(`SELECT count(*) FROM replay_items WHERE outcome = 'waiting'`); n == 0 {
				t.Fatal("the run was over before it was killed often enough")
			}
			shop.Run("reconciler")
			awaitRun(t, shop, &run)
			if run.Status != "done" || run.Handled != orders {
				t.Errorf("the run ended as %+v", run)
			}
			checkReplayed(t, shop, orders)
		})
	}
}

// Two reconcilers work side by side on several runs, and one of them is killed.
func TestTwoReconcilersShareTheWork(t *testing.T) {
	t.Parallel()
	const orders = 40
	shop := brokenShop(t, orders)
	var runs [2]replayRun
	half := shop.Text(`SELECT id::text FROM parked_messages ORDER BY id OFFSET 20 LIMIT 1`)
	ids := shop.Texts(`SELECT id::text FROM parked_messages WHERE id < $1`, half)
	parked(t, shop, &runs[0], append([]string{"replay", "--canary", "0", "--rate", "20", "--detach", "--json"}, ids...)...)
	refused, code := shop.Command("parked", "replay", "--all", "--detach")
	if code != 1 {
		t.Errorf("a run over messages of another one: exit %d: %s", code, refused)
	}
	ids = shop.Texts(`SELECT id::text FROM parked_messages WHERE id >= $1`, half)
	parked(t, shop, &runs[1], append([]string{"replay", "--canary", "0", "--rate", "20", "--detach", "--json"}, ids...)...)
	both := shop.Run("reconciler")
	both = append(both, shop.Start("reconciler", "CONSOLE_ADDR=127.0.0.1:0"))
	both[1].AwaitReady()
	shop.AwaitCount(1, `SELECT 1 WHERE (SELECT count(*) FROM replay_items WHERE outcome = 'handled') >= 5`)
	both[0].Kill()
	for i := range runs {
		awaitRun(t, shop, &runs[i])
		if runs[i].Status != "done" || runs[i].Handled != runs[i].Total {
			t.Errorf("run %d ended as %+v", i, runs[i])
		}
	}
	checkReplayed(t, shop, orders)
}

// awaitRun waits until a run is finished.
func awaitRun(t *testing.T, shop *harness.Shop, run *replayRun) {
	t.Helper()
	harness.Eventually(t, func() error {
		*run = replayRun{ID: run.ID}
		parked(t, shop, run, "runs", run.ID, "--json")
		if run.Status != "done" && run.Status != "stopped" && run.Status != "canary_failed" {
			return fmt.Errorf("run is %+v", *run)
		}
		return nil
	})
}

// checkReplayed verifies that every order was closed by a replay, once.
func checkReplayed(t *testing.T, shop *harness.Shop, orders int) {
	t.Helper()
	shop.AwaitSettled()
	shop.AwaitMails(orders)
	shop.AwaitQuiet(0)
	shop.CheckMails(orders)
	shop.CheckInvariants(map[string]int64{"tea": int64(orders)})
	for want, sql := range map[int64]string{
		int64(orders): `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_by = 'replay'`,
		0:             `SELECT count(*) FROM parked_messages WHERE status <> 'handled'`,
	} {
		if n := shop.Count(sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}
