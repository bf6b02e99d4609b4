package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"example.com/ordertimeout/e2e/harness"
)

// break makes every close of an order with this customer fail, until the returned
// function mends it: a bug that a release brings and the next one cures.
func breakCloses(t *testing.T, shop *harness.Shop) (mend func()) {
	t.Helper()
	exec := func(sql string) {
		t.Helper()
		if _, err := shop.DB.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'boom for order %', NEW.id USING ERRCODE = '23514'; END $$`)
	exec(`CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.status = 'closed') EXECUTE FUNCTION refuse()`)
	return func() { exec(`DROP TRIGGER refuse ON orders`) }
}

type parkedGroup struct {
	ID       string `json:"id"`
	Consumer string `json:"consumer"`
	Class    string `json:"class"`
	Messages int    `json:"messages"`
}

type replayRun struct {
	ID          string `json:"id"`
	Status      string `json:"status"`
	Total       int    `json:"total"`
	Handled     int    `json:"handled"`
	FailedAgain int    `json:"failed_again"`
	Resolved    int    `json:"resolved"`
	Skipped     int    `json:"skipped"`
}

// parked runs one of the operator's commands and reads its JSON.
func parked(t *testing.T, shop *harness.Shop, into any, args ...string) {
	t.Helper()
	out, code := shop.Command(append([]string{"parked"}, args...)...)
	if code != 0 {
		t.Fatalf("parked %s: exit %d: %s", strings.Join(args, " "), code, out)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("parked %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// What fails for a bug climbs the ladder, is parked, seen as one group, fails its
// canary while the bug is there, and is closed by the replay once it is mended.
func TestReplayAfterTheBugIsMended(t *testing.T) {
	t.Parallel()
	const orders = 20
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1h") // or the sweep would close them meanwhile
	shop.Run("order", "relay", "closer", "notifier", "reconciler")
	shop.SetStock("tea", units(100))
	mend := breakCloses(t, shop)
	for range orders {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 2, UnitPrice: 1})
	}
	shop.AwaitCount(orders, `SELECT count(*) FROM parked_messages WHERE status = 'parked' AND attempts = 4`)
	shop.AwaitQuiet(0)

	var groups []parkedGroup
	parked(t, shop, &groups, "ls", "--json")
	if len(groups) != 1 || groups[0].Messages != orders || groups[0].Consumer != "closer" {
		t.Fatalf("groups: %+v", groups)
	}
	var run replayRun
	if out, code := shop.Command("parked", "replay", "--group", groups[0].ID, "--json"); code != 1 || !strings.Contains(out, "canary_failed") {
		t.Errorf("a replay that failed: exit %d: %s", code, out)
	}
	run.ID = shop.Text(`SELECT id::text FROM replay_runs`)
	awaitRun(t, shop, &run)
	if run.Status != "canary_failed" || run.FailedAgain != 1 || run.Skipped != orders-1 {
		t.Fatalf("the bug is there: %+v", run)
	}
	shop.AwaitCount(orders, `SELECT count(*) FROM parked_messages WHERE status = 'parked'`)
	shop.AwaitCount(1, `SELECT count(*) FROM parked_messages n JOIN parked_messages p ON p.id = n.previous_id
		WHERE n.status = 'parked' AND p.status = 'failed_again' AND n.replays = 1`)

	mend()
	run = replayRun{}
	parked(t, shop, &run, "replay", "--all", "--json")
	if run.Status != "done" || run.Handled != orders {
		t.Fatalf("the bug is mended: %+v", run)
	}
	shop.AwaitCount(orders, `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_by = 'replay'`)
	shop.AwaitSettled()
	shop.AwaitMails(orders)
	shop.CheckMails(orders)
	shop.CheckInvariants(map[string]int64{"tea": 100})
	shop.AwaitQuiet(0)
	shop.AwaitCount(0, `SELECT count(*) FROM parked_messages WHERE settled_at IS NULL`)
	var audit []struct{ Action, Outcome string }
	parked(t, shop, &audit, "audit", "--json")
	if got := fmt.Sprint(audit); got != "[{replay finished done} {replay started} {replay finished canary_failed} {replay started}]" {
		t.Errorf("audit: %s", got)
	}
}
