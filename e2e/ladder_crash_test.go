package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/infra/rabbitmq"
)

// killAt starts a closer behind a proxy, kills it at the n-th piece with pattern and
// returns when its connections are gone too.
func killAt(t *testing.T, shop *harness.Shop, variable string, pattern []byte, n int) {
	t.Helper()
	proxy := harness.NewProxy(t, shop.Addr(variable))
	held := proxy.HoldAtNth(pattern, n)
	closer := shop.Start("closer", shop.Via(variable, proxy.Addr))
	select {
	case <-held:
	case <-time.After(harness.Patience):
		t.Fatalf("the closer never came there:\n%s", closer.Log())
	}
	closer.Kill()
	proxy.Cut()
}

// A message that kills every consumer it meets goes back DeliveryLimit times and once
// more, and then the broker parks it, body and id untouched. Sent again to a closer that
// survives it, it does its work.
func TestMessageThatKillsItsConsumerIsParked(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay", "notifier")
	shop.SetStock("tea", units(10))
	order := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	timeouts := shop.Topology.Queue(rabbitmq.Closer)
	var timer amqp.Delivery
	for range rabbitmq.DeliveryLimit - 1 { // a consumer that dies at once
		awaitDepth(t, shop, timeouts, 1)
		conn, err := amqp.Dial(shop.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		var found bool
		if timer, found, err = ch.Get(timeouts, false); err != nil || !found {
			t.Fatalf("found %v, %v", found, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Until(order.DueAt)) // an early timer would be sent on instead
	for range 2 {
		awaitDepth(t, shop, shop.Topology.ParkingQueue(), 0)
		killAt(t, shop, "DATABASE_URL", []byte("UPDATE orders"), 1) // with the message in hand
	}
	parked := take(t, shop, shop.Topology.ParkingQueue())
	if string(parked.Body) != string(timer.Body) || parked.MessageId != timer.MessageId || parked.Type != "order.timeout" ||
		parked.DeliveryMode != amqp.Persistent || parked.RoutingKey != "closer.delivery_limit" {
		t.Errorf("parked %+v, the timer was %+v", parked, timer)
	}
	deaths, _ := parked.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		t.Fatalf("no death history: %v", parked.Headers)
	}
	if last, _ := deaths[0].(amqp.Table); last["reason"] != "delivery_limit" || last["queue"] != timeouts {
		t.Errorf("died of %v in %v", last["reason"], last["queue"])
	}
	if status := shop.Get(order.ID).Status; status != "pending" {
		t.Errorf("the order is %s", status)
	}
	awaitDepth(t, shop, timeouts, 0)
	shop.Run("closer")
	republish(t, shop, parked)
	shop.AwaitSettled()
	shop.AwaitMails(1)
	shop.AwaitQuiet(0)
	shop.CheckMails(1)
	shop.CheckInvariants(map[string]int64{"tea": 10})
}

// The closer is killed again and again after it published to parking: before it read
// the confirm, and before the broker read its ack. There is always a copy in parking,
// each tells of the configured number of attempts, and there is one more for each kill.
func TestCloserKilledBetweenParkingAndAck(t *testing.T) {
	t.Parallel()
	const kills = 6
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "notifier")
	shop.SetStock("tea", units(10))
	sick := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	tries := sicken(t, shop, sick, always)
	<-time.After(time.Until(sick.DueAt))
	timeouts, parking := shop.Topology.Queue(rabbitmq.Closer), shop.Topology.ParkingQueue()
	body := fmt.Sprintf(`{"type":"order.timeout","version":1,"order_id":%q}`, sick.ID)
	publish(t, shop, rabbitmq.Route{Key: timeouts}, amqp.Publishing{
		Body: []byte(body), MessageId: "m-1", Headers: amqp.Table{rabbitmq.MetaAttempts: fmt.Sprint(rungs)}, // it was on every rung
	})
	for i := range kills {
		killAt(t, shop, "AMQP_URL", harness.AckRequest, 1+i%2)
		awaitDepth(t, shop, timeouts, 1)
		awaitDepth(t, shop, parking, i+1)
	}
	shop.Run("closer")
	shop.AwaitQuiet(kills + 1)
	for range kills + 1 {
		parked := take(t, shop, parking)
		if string(parked.Body) != body || parked.MessageId != "m-1" || parked.Headers[rabbitmq.MetaAttempts] != fmt.Sprint(rungs+1) {
			t.Errorf("parked %s %s with %v", parked.MessageId, parked.Body, parked.Headers)
		}
	}
	if n := tries(); n != kills+1 {
		t.Errorf("tried %d times, want %d", n, kills+1)
	}
}

// The parking queue and a rung are deleted under a closer that needs them. Nothing is
// acked meanwhile, the metrics tell, and once the topology is back each message goes
// where it has to, after the configured number of attempts.
func TestFailedMessagesOutliveTheirQueues(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	closer := shop.Run("closer", "order")[0]
	shop.SetStock("tea", units(10))
	sick := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	tries := sicken(t, shop, sick, always)
	rung := func(consumer rabbitmq.Consumer) string {
		return fmt.Sprintf("%s.%s.retry.1.200ms.queue", shop.Topology.Namespace(), consumer)
	}
	ch := shopChannel(t, shop)
	remove := func(queues ...string) {
		t.Helper()
		for _, queue := range queues {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove(rung(rabbitmq.Notifier))
	shop.AwaitQuiet(0) // it is back: the next look at the topology is a while off
	remove(rung(rabbitmq.Closer), shop.Topology.ParkingQueue())
	timer := fmt.Sprintf(`{"type":"order.timeout","version":1,"order_id":%q}`, sick.ID)
	attempts := map[string]string{timer: fmt.Sprint(rungs + 1), "{": "1"}
	for body := range attempts {
		publish(t, shop, rabbitmq.Route{Key: shop.Topology.Queue(rabbitmq.Closer)}, amqp.Publishing{Body: []byte(body)})
	}
	harness.Eventually(t, func() error {
		if n := closer.Handled("closer", "move_failed"); n < len(attempts) {
			return fmt.Errorf("%d moves failed", n)
		}
		return nil
	})
	shop.AwaitQuiet(len(attempts))
	for range attempts {
		parked := take(t, shop, shop.Topology.ParkingQueue())
		if want := attempts[string(parked.Body)]; want == "" || parked.Headers[rabbitmq.MetaAttempts] != want {
			t.Errorf("parked %s with %v, want %s attempts", parked.Body, parked.Headers, want)
		}
	}
	if n := tries(); n != rungs+1 {
		t.Errorf("tried %d times, want %d", n, rungs+1)
	}
}

// The database is away for longer than the ladder under load, and the broker for
// longer still: no attempt is spent, no row is given up, and every order is closed
// without anybody's help. Then the broker takes no publishes while a message fails: it
// stays where it is and goes its way afterwards.
func TestLadderInOutages(t *testing.T) {
	db, mq := privateServers(t)
	migrate(t, db.URL())
	shop := harness.New(t, harness.DefaultWindows, db.URL(), mq.URL())
	services := shop.Run("order", "relay", "closer", "notifier")
	closer, notifier := services[2], services[3]
	shop.SetStock("tea", units(1_000_000))
	step := func(what string, do func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := do(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	var taken atomic.Int64
	endLoad := startLoad(shop, &taken)
	accepted := func(more int64) {
		t.Helper()
		target := taken.Load() + more
		harness.Eventually(t, func() error {
			if n := taken.Load(); n < target {
				return fmt.Errorf("%d orders accepted, want %d", n, target)
			}
			return nil
		})
	}
	accepted(50)
	step("stopping the database", db.Stop)
	harness.Eventually(t, func() error {
		if closer.Handled("closer", "hold") == 0 {
			return fmt.Errorf("nothing is held")
		}
		return nil
	})
	<-time.After(2 * 1700 * time.Millisecond) // the ladder twice
	step("starting the database", db.Start)
	accepted(50)

	step("stopping the broker", mq.Stop)
	accepted(200)
	<-time.After(10 * time.Second) // several of the relay's attempts
	if n := shop.Count(`SELECT count(*) FROM outbox WHERE attempts > 0 OR last_error IS NOT NULL`); n != 0 {
		t.Errorf("%d rows were blamed for the broker's absence", n)
	}
	step("starting the broker", mq.Start)
	endLoad()
	shop.AwaitSettled()
	orders := int(shop.Count(`SELECT count(*) FROM orders`))
	shop.AwaitMails(orders)
	shop.AwaitQuiet(0)
	for _, outcome := range []string{"retry", "park"} {
		if n := closer.Handled("closer", outcome) + notifier.Handled("notifier", outcome); n != 0 {
			t.Errorf("%d times %s in the outages", n, outcome)
		}
	}
	checkBlockedBroker(t, shop, closer, func(watermark string) {
		step("memory alarm", func(ctx context.Context) error { return mq.Control(ctx, "set_vm_memory_high_watermark", watermark) })
	})
	shop.CheckMails(orders + 1)
	shop.CheckInvariants(map[string]int64{"tea": 1_000_000})
}

// checkBlockedBroker lets a timer fail while the broker blocks publishers. Where a
// publish was cut off without a confirm there may be a second copy of the message, with
// the same budget.
func checkBlockedBroker(t *testing.T, shop *harness.Shop, closer *harness.Process, setWatermark func(string)) {
	t.Helper()
	sick := shop.Place("3s", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	tries := sicken(t, shop, sick, always)
	shop.AwaitCount(0, `SELECT count(*) FROM outbox`)
	setWatermark("0.00001")
	harness.Eventually(t, func() error {
		if closer.Handled("closer", "move_failed") == 0 {
			return fmt.Errorf("no move failed")
		}
		return nil
	})
	if n := tries(); n != 1 {
		t.Errorf("tried %d times while the message could not move", n)
	}
	setWatermark("0.4")
	first := take(t, shop, shop.Topology.ParkingQueue())
	awaitDepth(t, shop, shop.Topology.Queue(rabbitmq.Closer), 0)
	heal(t, shop)
	republish(t, shop, first)
	shop.AwaitSettled()
	if first.Headers[rabbitmq.MetaAttempts] != fmt.Sprint(rungs+1) {
		t.Errorf("parked with %v", first.Headers)
	}
	if n := tries(); n < rungs+1 || n > 1+2*rungs {
		t.Errorf("tried %d times, want %d, or %d with a second copy", n, rungs+1, 1+2*rungs)
	}
	shop.AwaitMails(int(shop.Count(`SELECT count(*) FROM orders`)))
}
