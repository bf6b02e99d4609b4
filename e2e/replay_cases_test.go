package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

// While timers were parked the world moved on: some orders were paid, some closed, some
// got more time. A replay of all, twice and beside live traffic, touches only what is
// still due.
func TestReplayOfOrdersThatMovedOn(t *testing.T) {
	t.Parallel()
	const each = 8
	shop := brokenShop(t, 4*each)
	shop.SetStock("coffee", units(1000))
	ids := shop.Texts(`SELECT id::text FROM orders ORDER BY id`)
	paid, closed, extended := ids[:each], ids[each:2*each], ids[2*each:3*each]
	for _, id := range paid {
		if answer, status, err := shop.Pay(shop.Get(id), "pay-"+id); err != nil || status != http.StatusOK || answer.Outcome != "accepted" {
			t.Fatalf("pay: %d, %v, %+v", status, err, answer)
		}
	}
	for _, id := range closed {
		put(t, shop, shop.Topology.Queue(rabbitmq.Closer), timerOf(id), nil)
	}
	for _, id := range extended {
		body := map[string]any{"due_at": time.Now().Add(3 * time.Second).UTC()}
		if status, err := shop.Call(http.MethodPost, "/v1/orders/"+id+"/extension", body, nil); err != nil || status != http.StatusOK {
			t.Fatalf("extension: %d, %v", status, err)
		}
	}
	shop.AwaitCount(each, `SELECT count(*) FROM orders WHERE closed_by = 'timer'`)
	before := shop.Texts(`SELECT xmin::text || id FROM orders WHERE status <> 'pending' ORDER BY id`)

	shop.Run("reconciler")
	live := make(chan struct{})
	go func() {
		defer close(live)
		for range 50 {
			shop.Place("300ms", harness.Line{SKU: "coffee", Quantity: 1, UnitPrice: 1})
		}
	}()
	var first, second replayRun
	parked(t, shop, &first, "replay", "--all", "--json")
	parked(t, shop, &second, "replay", "--all", "--json")
	<-live
	if first.Status != "done" || first.Resolved != 2*each || first.Handled != 2*each {
		t.Errorf("the first run: %+v", first)
	}
	if second.Status != "done" || second.Total != 0 {
		t.Errorf("the second run: %+v", second)
	}
	shop.AwaitSettled()
	after := shop.Texts(`SELECT xmin::text || id FROM orders WHERE id = ANY($1) ORDER BY id`, append(append([]string{}, paid...), closed...))
	if strings.Join(before, " ") != strings.Join(after, " ") {
		t.Error("rows of settled orders were written again")
	}
	for want, sql := range map[int64]string{
		each: `SELECT count(*) FROM orders WHERE closed_by = 'replay'`,
		0:    `SELECT count(*) FROM parked_messages WHERE settled_at IS NULL`,
	} {
		if n := shop.Count(sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	if n := shop.Count(`SELECT count(*) FROM orders WHERE id = ANY($1) AND closed_by = 'timer'`, extended); n != each {
		t.Errorf("%d extended orders closed by their timer, want %d", n, each)
	}
	mails := 4*each + 50 // a receipt or a close for each
	shop.AwaitMails(mails)
	shop.AwaitQuiet(0)
	shop.CheckMails(mails)
	shop.CheckInvariants(map[string]int64{"tea": 4 * each, "coffee": 1000})
}

// A replay against a handler that is still broken ends, and so does every other one:
// each message once a run, with the same budget of attempts each time, until a message
// was replayed often enough.
func TestReplaysOfWhatStillFails(t *testing.T) {
	t.Parallel()
	const orders = 20
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1h")
	shop.Setenv("REPLAY_LIMIT", "2")
	shop.Run("order", "relay", "closer", "notifier", "reconciler")
	shop.SetStock("tea", units(orders))
	mend := breakCloses(t, shop)
	for range orders {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	parkedWith := func(replays int) string {
		return fmt.Sprintf(`SELECT count(*) FROM parked_messages WHERE status = 'parked' AND attempts = 4 AND replays = %d`, replays)
	}
	shop.AwaitCount(orders, parkedWith(0))

	var slow, fast, none replayRun // none: over all of nothing
	parked(t, shop, &slow, "replay", "--all", "--canary", "0", "--rate", "4", "--detach", "--json")
	if out, code := shop.Command("parked", "replay", "--all"); code != 1 || !strings.Contains(out, slow.ID) {
		t.Errorf("a second run at once: exit %d: %s", code, out)
	}
	shop.AwaitCount(1, `SELECT 1 WHERE (SELECT count(*) FROM replay_items WHERE sent_at IS NOT NULL) >= 2`)
	parked(t, shop, nil, "stop", slow.ID)
	awaitRun(t, shop, &slow)
	if slow.Status != "stopped" || slow.FailedAgain < 2 || slow.Skipped == 0 || slow.FailedAgain+slow.Skipped != orders {
		t.Errorf("the run that was stopped: %+v", slow)
	}
	shop.AwaitCount(orders, `SELECT count(*) FROM parked_messages WHERE status = 'parked'`)

	out, code := shop.Command("parked", "replay", "--all", "--canary", "0")
	if code != 1 || !strings.Contains(out, "failed again 20") {
		t.Errorf("a run against what is broken: exit %d: %s", code, out)
	}
	shop.AwaitCount(int64(slow.FailedAgain), parkedWith(2))
	shop.AwaitCount(int64(slow.Skipped), parkedWith(1))
	if out, code := shop.Command("parked", "replay", "--consumer", "notifier"); code != 1 || !strings.Contains(out, "consumer=notifier") {
		t.Errorf("a run over nothing: exit %d: %s", code, out)
	}

	mend()
	parked(t, shop, &fast, "replay", "--all", "--detach", "--json")
	awaitRun(t, shop, &fast)
	if fast.Status != "done" || fast.Skipped != slow.FailedAgain || fast.Handled != slow.Skipped {
		t.Errorf("replayed twice is the limit: %+v", fast)
	}
	parked(t, shop, nil, "discard", "--all", "--reason", "the rest")
	parked(t, shop, &none, "replay", "--all", "--json")
	if none.Status != "done" || none.Total != 0 {
		t.Errorf("a run over all of nothing: %+v", none)
	}
	shop.AwaitQuiet(0)
	shop.CheckInvariants(map[string]int64{"tea": orders})
}

// Whatever way a message came to parking, by the product or by the broker itself, a
// replay handles it, or it stays parked with a reason. A plain move of the parked
// message, with the broker's own headers, loses nothing either.
func TestReplayOfEveryKindOfDeath(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1h")
	shop.Run("order", "relay", "notifier")
	shop.Run("closer")[0].Terminate() // it declares the topology
	shop.SetStock("tea", units(100))
	ch := rabbitmqtest.Channel(t)
	timeouts := shop.Topology.Queue(rabbitmq.Closer)
	die := deaths(t, ch, shop)
	kinds := []string{"rejected", "expired", "maxlen", "delivery_limit"}
	for _, kind := range kinds {
		order := shop.Place("30m", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
		if _, err := shop.DB.Exec(context.Background(), `UPDATE orders SET created_at = now() - interval '1h', due_at = now() - interval '1 minute' WHERE id = $1`, order.ID); err != nil {
			t.Fatal(err)
		}
		die(kind, timerOf(order.ID))
	}
	put(t, shop, timeouts, `{`, nil)
	put(t, shop, timeouts, fmt.Sprintf(`{"type":"order.timeout","version":2,"order_id":%q}`, uuid.NewString()), nil)
	closer := shop.Run("closer")[0]
	awaitDepth(t, shop, shop.Topology.ParkingQueue(), len(kinds)+2)

	// A plain shovel: from parking to the timeout queue, headers and all, with a closer
	// that fails on it once more.
	mend := breakCloses(t, shop)
	moved := 0
	for range len(kinds) + 2 {
		d, ok, err := ch.Get(shop.Topology.ParkingQueue(), true)
		if err != nil || !ok {
			t.Fatalf("parking: %v, %v", ok, err)
		}
		to := shop.Topology.ParkingQueue()
		if strings.Contains(d.RoutingKey, "expired") || strings.Contains(d.RoutingKey, "delivery_limit") {
			to, moved = timeouts, moved+1
		}
		put(t, shop, to, string(d.Body), d.Headers)
	}
	if moved != 2 {
		t.Fatalf("%d messages were moved, want 2", moved)
	}
	awaitDepth(t, shop, shop.Topology.ParkingQueue(), len(kinds)+2)
	mend()
	if code := closer.Terminate(); code != 0 {
		t.Fatalf("the closer ended with status %d", code)
	}

	shop.Run("closer", "reconciler")
	shop.AwaitCount(int64(len(kinds)+2), `SELECT count(*) FROM parked_messages WHERE status = 'parked' AND class <> ''`)
	var run replayRun
	parked(t, shop, &run, "replay", "--all", "--canary", "0", "--detach", "--json")
	awaitRun(t, shop, &run)
	if run.Status != "done" || run.Handled != len(kinds) || run.Skipped != 2 {
		t.Errorf("run: %+v", run)
	}
	shop.AwaitCount(int64(len(kinds)), `SELECT count(*) FROM orders WHERE closed_by = 'replay'`)
	shop.AwaitCount(1, `SELECT count(*) FROM parked_messages WHERE status = 'parked' AND class = 'malformed' AND payload = '{'`)
	shop.AwaitCount(1, `SELECT count(*) FROM parked_messages WHERE status = 'parked' AND class = 'unsupported_event'`)
	shop.AwaitCount(1, `SELECT count(*) FROM replay_items WHERE outcome = 'skipped' AND reason LIKE '%version 2%release%'`)
	shop.AwaitMails(len(kinds))
	shop.CheckMails(len(kinds))
	shop.CheckInvariants(map[string]int64{"tea": 100})
}

// deaths returns a function that makes the broker itself park a message.
func deaths(t *testing.T, ch *amqp.Channel, shop *harness.Shop) func(kind, body string) {
	t.Helper()
	queue := func(kind string, args amqp.Table) string {
		name := shop.Topology.Namespace() + ".test." + kind
		args["x-dead-letter-exchange"] = shop.Topology.ParkingRoute(rabbitmq.Closer).Exchange
		args["x-dead-letter-routing-key"] = string(rabbitmq.Closer) + "." + kind
		if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := rabbitmqtest.Channel(t).QueueDelete(name, false, false, false); err != nil {
				t.Error(err)
			}
		})
		return name
	}
	reject := func(name string, requeue bool) {
		t.Helper()
		harness.Eventually(t, func() error {
			d, ok, err := ch.Get(name, false)
			if err != nil || !ok {
				return fmt.Errorf("nothing in %s, %w", name, err)
			}
			return d.Reject(requeue)
		})
	}
	return func(kind, body string) {
		t.Helper()
		switch kind {
		case "rejected":
			name := queue(kind, amqp.Table{})
			put(t, shop, name, body, nil)
			reject(name, false)
		case "expired":
			put(t, shop, queue(kind, amqp.Table{"x-message-ttl": int64(1)}), body, nil)
		case "maxlen":
			name := queue(kind, amqp.Table{"x-max-length": int64(1)})
			put(t, shop, name, body, nil)
			put(t, shop, name, `"pushes the other one out"`, nil)
		default:
			put(t, shop, shop.Topology.Queue(rabbitmq.Closer), body, nil)
			for range rabbitmq.DeliveryLimit + 1 {
				reject(shop.Topology.Queue(rabbitmq.Closer), true)
			}
		}
	}
}

// put publishes to one queue.
func put(t *testing.T, shop *harness.Shop, queue, body string, headers amqp.Table) {
	t.Helper()
	publish(t, shop, rabbitmq.Route{Key: queue}, amqp.Publishing{Body: []byte(body), Headers: headers, DeliveryMode: amqp.Persistent})
}

func timerOf(orderID string) string {
	return fmt.Sprintf(`{"type":"order.timeout","version":1,"order_id":%q}`, orderID)
}
