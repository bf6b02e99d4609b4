package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/infra/smtp/smtptest"
)

// sicken makes the first times updates of one order break a constraint. tries counts all
// of them: a sequence keeps its value when a transaction is rolled back.
func sicken(t *testing.T, shop *harness.Shop, order harness.Order, times int) (tries func() int64) {
	t.Helper()
	_, err := shop.DB.Exec(context.Background(), fmt.Sprintf(`
		CREATE SEQUENCE tries;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('tries') <= %d THEN
				RAISE EXCEPTION 'this order is sick' USING ERRCODE = '23514';
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.id = '%s') EXECUTE FUNCTION refuse()`, times, order.ID))
	if err != nil {
		t.Fatal(err)
	}
	return func() int64 {
		return shop.Count(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries`)
	}
}

func heal(t *testing.T, shop *harness.Shop) {
	t.Helper()
	if _, err := shop.DB.Exec(context.Background(), `DROP TRIGGER refuse ON orders`); err != nil {
		t.Fatal(err)
	}
}

// always is more often than any message may be tried.
const always = 1000

// rungs is the length of harness.Ladder.
const rungs = 3

func awaitDepth(t *testing.T, shop *harness.Shop, queue string, want int) {
	t.Helper()
	ch := shopChannel(t, shop)
	harness.Eventually(t, func() error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err == nil && q.Messages != want {
			err = fmt.Errorf("%s holds %d messages, want %d", queue, q.Messages, want)
		}
		return err
	})
}

// shopChannel is a plain channel to the shop's own broker.
func shopChannel(t *testing.T, shop *harness.Shop) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(shop.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // a test may have closed it
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// take waits for a message in a queue and takes it out.
func take(t *testing.T, shop *harness.Shop, queue string) amqp.Delivery {
	t.Helper()
	ch := shopChannel(t, shop)
	var taken amqp.Delivery
	harness.Eventually(t, func() error {
		d, found, err := ch.Get(queue, true)
		if err == nil && !found {
			err = fmt.Errorf("%s stays empty", queue)
		}
		taken = d
		return err
	})
	return taken
}

func publish(t *testing.T, shop *harness.Shop, route rabbitmq.Route, msg amqp.Publishing) {
	t.Helper()
	msg.DeliveryMode = amqp.Persistent
	if err := shopChannel(t, shop).PublishWithContext(context.Background(), route.Exchange, route.Key, true, false, msg); err != nil {
		t.Fatal(err)
	}
}

// republish sends a parked message again as a replay does: to its consumer's own queue,
// without the story.
func republish(t *testing.T, shop *harness.Shop, parked amqp.Delivery) {
	t.Helper()
	headers := maps.Clone(parked.Headers)
	maps.DeleteFunc(headers, func(key string, _ any) bool {
		return strings.HasPrefix(key, "ordertimeout-") || strings.HasPrefix(key, "x-")
	})
	publish(t, shop, rabbitmq.Route{Key: shop.Topology.Queue(rabbitmq.Closer)},
		amqp.Publishing{Headers: headers, MessageId: parked.MessageId, Type: parked.Type, Body: parked.Body})
}

// audit binds a queue of its own to what an exchange of the shop passes on.
func audit(t *testing.T, shop *harness.Shop, exchange, key string) (queue string) {
	t.Helper()
	queue = shop.Topology.Namespace() + ".audit." + exchange
	ch := rabbitmqtest.Channel(t)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	rabbitmqtest.Delete(t, []string{queue}, nil)
	if err := ch.QueueBind(queue, key, shop.Topology.Namespace()+"."+exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	return queue
}

// checkStory compares every header of a parked message but the count that a broker of
// version 3 adds to what it hands out; a value that ends in "…" is a beginning.
func checkStory(t *testing.T, parked amqp.Delivery, want map[string]string) {
	t.Helper()
	delete(parked.Headers, "x-delivery-count")
	got := slices.Sorted(maps.Keys(parked.Headers))
	if wanted := slices.Sorted(maps.Keys(want)); !slices.Equal(got, wanted) {
		t.Errorf("headers %v, want %v", got, wanted)
	}
	for key, value := range want {
		text, _ := parked.Headers[key].(string)
		begin, open := strings.CutSuffix(value, "…")
		if text != value && (!open || !strings.HasPrefix(text, begin)) {
			t.Errorf("%s: got %q, want %q", key, text, value)
		}
	}
	first, firstErr := time.Parse(time.RFC3339Nano, fmt.Sprint(parked.Headers[rabbitmq.MetaFirstFailedAt]))
	last, lastErr := time.Parse(time.RFC3339Nano, fmt.Sprint(parked.Headers[rabbitmq.MetaLastFailedAt]))
	if firstErr != nil || lastErr != nil || last.Sub(first) < 1700*time.Millisecond { // the waits of the ladder
		t.Errorf("failed first at %v, last at %v", parked.Headers[rabbitmq.MetaFirstFailedAt], parked.Headers[rabbitmq.MetaLastFailedAt])
	}
}

// A timer whose order can never be closed is tried once for each rung and once more,
// and parked with its whole story. What is queued behind it is handled meanwhile. Sent
// again it has the same budget once more, and once the order is well it is closed.
func TestSickOrderIsParkedWithItsStory(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay", "notifier")
	shop.SetStock("tea", units(100))
	fired := audit(t, shop, "dlx.exchange", shop.Topology.Namespace()+".timeout.key")
	sick := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	tries := sicken(t, shop, sick, always)
	timeouts := shop.Topology.Queue(rabbitmq.Closer)
	awaitDepth(t, shop, timeouts, 1)
	timer := take(t, shop, fired)
	for range 5 {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	awaitDepth(t, shop, timeouts, 6) // the sick one is the head
	closer := shop.Run("closer")[0]

	parking := shop.Topology.ParkingQueue()
	parked := take(t, shop, parking)
	if string(parked.Body) != string(timer.Body) || parked.MessageId != timer.MessageId || parked.Type != "order.timeout" ||
		parked.DeliveryMode != amqp.Persistent || parked.ContentType != "application/json" || parked.RoutingKey != "closer.parked" {
		t.Errorf("parked %+v, the timer was %+v", parked, timer)
	}
	ns := shop.Topology.Namespace()
	story := map[string]string{
		rabbitmq.MetaType:          "order.timeout",
		rabbitmq.MetaAttempts:      fmt.Sprint(rungs + 1),
		rabbitmq.MetaConsumer:      "closer",
		rabbitmq.MetaQueue:         timeouts,
		rabbitmq.MetaExchange:      ns + ".dlx.exchange",
		rabbitmq.MetaRoutingKey:    ns + ".timeout.key",
		rabbitmq.MetaFirstFailedAt: "2…",
		rabbitmq.MetaLastFailedAt:  "2…",
		rabbitmq.MetaErrorClass:    "transient",
		rabbitmq.MetaError:         "closing order " + sick.ID + ": …",
		rabbitmq.MetaDeathHistory:  "[{…",
	}
	checkStory(t, parked, story)
	if text := fmt.Sprint(parked.Headers[rabbitmq.MetaError]); !strings.Contains(text, "this order is sick") {
		t.Errorf("error %q", text)
	}
	if n := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed' AND closed_at < $1`, parked.Headers[rabbitmq.MetaLastFailedAt]); n != 5 {
		t.Errorf("%d orders behind it were closed before it was parked, want 5", n)
	}
	if n := tries(); n != rungs+1 {
		t.Errorf("tried %d times, want %d", n, rungs+1)
	}

	republish(t, shop, parked)
	again := take(t, shop, parking)
	story[rabbitmq.MetaExchange], story[rabbitmq.MetaRoutingKey] = "", timeouts
	checkStory(t, again, story)
	if string(again.Body) != string(timer.Body) || again.MessageId != timer.MessageId {
		t.Errorf("parked again as %+v", again)
	}
	if n := tries(); n != 2*(rungs+1) {
		t.Errorf("tried %d times in two rounds, want %d", n, 2*(rungs+1))
	}
	if retries, parks := closer.Handled("closer", "retry"), closer.Handled("closer", "park"); retries != 2*rungs || parks != 2 {
		t.Errorf("the metrics count %d retries and %d parked", retries, parks)
	}

	heal(t, shop)
	republish(t, shop, again)
	shop.AwaitSettled()
	shop.AwaitMails(6)
	shop.AwaitQuiet(0)
	shop.CheckMails(6)
	shop.CheckInvariants(map[string]int64{"tea": 100})
}

// While the closer fails three times on a timer, and then the notifier twice on the
// event, everybody else who listens gets each of the two once: a retry returns to the
// queue of the consumer that failed and to no exchange.
func TestRetriesReachOnlyTheConsumerThatFailed(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	notifier := shop.Run("notifier", "order", "relay")[0]
	shop.SetStock("tea", units(10))
	ns := shop.Topology.Namespace()
	timers := audit(t, shop, "dlx.exchange", ns+".timeout.key")
	events := audit(t, shop, "events.exchange", "#")
	refusals := make(chan struct{}, 2)
	refusals <- struct{}{}
	refusals <- struct{}{}
	shop.Mail.Refuse(func(stage smtptest.Stage, _ string) *smtptest.Reply {
		if stage != smtptest.RcptTo {
			return nil
		}
		select {
		case <-refusals:
			return &smtptest.Reply{Code: 450, Text: "mailbox busy"}
		default:
			return nil
		}
	})
	order := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	tries := sicken(t, shop, order, rungs)
	awaitDepth(t, shop, shop.Topology.Queue(rabbitmq.Closer), 1)
	<-time.After(time.Until(order.DueAt)) // an early timer would go round once more
	closer := shop.Run("closer")[0]
	shop.AwaitSettled()
	shop.AwaitMails(1)
	shop.AwaitQuiet(0)
	shop.CheckMails(1)
	if n := tries(); n != rungs+1 {
		t.Errorf("%d tries to close, want %d", n, rungs+1)
	}
	for what, got := range map[string][2]int{
		"the closer's retries":   {closer.Handled("closer", "retry"), rungs},
		"the closer's work":      {closer.Handled("closer", "done"), 1},
		"the notifier's retries": {notifier.Handled("notifier", "retry"), 2},
		"the notifier's work":    {notifier.Handled("notifier", "done"), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", what, got[0], got[1])
		}
	}
	for _, queue := range []string{timers, events} {
		awaitDepth(t, shop, queue, 1)
	}
	shop.CheckInvariants(map[string]int64{"tea": 10})
}

// What the mail server says decides: never (5xx) is parked at the first attempt, not
// now (4xx) climbs the ladder, and a server that goes away (421) costs no attempt.
func TestMailServerAnswers(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	notifier := shop.Run("notifier", "order", "relay", "closer")[0]
	shop.SetStock("tea", units(10))
	var mu sync.Mutex
	codes := map[string][]int{
		"never@example.com":  {550, 550, 550, 550, 550},
		"later@example.com":  {450, 451},
		"always@example.com": {450, 450, 450, 450, 450},
		"away@example.com":   {421, 421, 421, 421, 421},
	}
	shop.Mail.Refuse(func(stage smtptest.Stage, to string) *smtptest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if stage != smtptest.RcptTo || len(codes[to]) == 0 {
			return nil
		}
		code := codes[to][0]
		codes[to] = codes[to][1:]
		return &smtptest.Reply{Code: code, Text: "not now"}
	})
	ids := map[string]string{}
	for email := range maps.Clone(codes) {
		var order harness.Order
		status, err := shop.Call(http.MethodPost, "/v1/orders", map[string]any{
			"customer": map[string]string{"id": "c", "email": email}, "currency": "EUR", "payment_window": "300ms",
			"lines": []harness.Line{{SKU: "tea", Quantity: 1, UnitPrice: 1}},
		}, &order)
		if err != nil || status != http.StatusCreated {
			t.Fatal(status, err)
		}
		ids[order.ID] = email
	}
	shop.AwaitSettled()
	shop.AwaitMails(2)
	shop.AwaitQuiet(2)
	for _, mail := range shop.Mail.Taken() {
		if mail.To != "later@example.com" && mail.To != "away@example.com" {
			t.Errorf("a mail to %s", mail.To)
		}
	}
	shop.CheckMails(2)
	wanted := map[string][2]string{"never@example.com": {"permanent", "1"}, "always@example.com": {"transient", "4"}}
	for range wanted {
		parked := take(t, shop, shop.Topology.ParkingQueue())
		for id, email := range ids {
			if strings.Contains(string(parked.Body), id) {
				got := [2]string{fmt.Sprint(parked.Headers[rabbitmq.MetaErrorClass]), fmt.Sprint(parked.Headers[rabbitmq.MetaAttempts])}
				if got != wanted[email] || parked.Headers[rabbitmq.MetaConsumer] != "notifier" || parked.Type != "order.closed" {
					t.Errorf("%s: parked as %v with %v, want %v", email, got, parked.Headers, wanted[email])
				}
			}
		}
	}
	if retries, holds := notifier.Handled("notifier", "retry"), notifier.Handled("notifier", "hold"); retries != 2+rungs || holds < 5 {
		t.Errorf("%d retries, %d holds", retries, holds)
	}
	shop.CheckInvariants(map[string]int64{"tea": 10})
}

// A release that reads version 1 starts while timers of version 2 are pending beside
// its own: those are parked on the first attempt with the reason, and its own close
// their orders, with a field more or a field less.
func TestTimersOfANewerReleaseArePending(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay")[1].Terminate()
	shop.SetStock("tea", units(10))
	// Their own timers never come, so what is sent here closes them or nothing.
	var orders []harness.Order
	for range 3 {
		orders = append(orders, shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1}))
	}
	if _, err := shop.DB.Exec(context.Background(), `DELETE FROM outbox`); err != nil {
		t.Fatal(err)
	}
	pending := shop.Topology.TimerRoute(3 * time.Second)
	timer := func(version int, order harness.Order, fields string) string {
		return fmt.Sprintf(`{"type":"order.timeout","version":%d,"order_id":%q%s}`, version, order.ID, fields)
	}
	newer := map[string]bool{
		timer(2, orders[0], ""):                          true,
		timer(2, orders[1], `,"due":{"at":"noon"}`):      true,
		timer(99, orders[2], `,"due_at":"in a while"`):   true,
		`{"type":"order.paused","version":2,"order":17}`: true,
	}
	for body := range newer {
		publish(t, shop, pending, amqp.Publishing{Body: []byte(body), Type: "order.timeout"})
	}
	for i, fields := range []string{``, `,"priority":{"deep":[1,2]},"due_at":"2030-01-01T00:00:00Z"`, `,"reason":"moon"`} {
		publish(t, shop, pending, amqp.Publishing{Body: []byte(timer(1, orders[i], fields)), Type: "order.timeout"})
	}
	closer := shop.Run("closer", "relay", "notifier")[0]
	shop.AwaitSettled()
	shop.AwaitMails(3)
	shop.AwaitQuiet(len(newer))
	if n := closer.Handled("closer", "retry"); n != 0 {
		t.Errorf("%d retries", n)
	}
	for range newer {
		parked := take(t, shop, shop.Topology.ParkingQueue())
		reason := fmt.Sprint(parked.Headers[rabbitmq.MetaError])
		if !newer[string(parked.Body)] || parked.Headers[rabbitmq.MetaAttempts] != "1" ||
			parked.Headers[rabbitmq.MetaErrorClass] != "unsupported_event" || !strings.Contains(reason, "version") {
			t.Errorf("parked %s with %v", parked.Body, parked.Headers)
		}
	}
	shop.CheckMails(3)
	shop.CheckInvariants(map[string]int64{"tea": 10})
}

// One database connection for everything, and many who want it: whoever held one and
// asked for a second would wait for itself for ever.
func TestOneDatabaseConnection(t *testing.T) {
	t.Parallel()
	const orders, clients = 120, 12
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("DATABASE_MAX_CONNS", "1")
	shop.Run("all")
	shop.SetStock("tea", units(orders))
	work := make(chan int)
	var crowd sync.WaitGroup
	for range clients {
		crowd.Go(func() {
			for i := range work {
				order, status, err := shop.TryPlace([]string{"300ms", "3s"}[i%2], harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
				if err != nil || status != http.StatusCreated {
					t.Errorf("order %d: %d, %v", i, status, err)
					continue
				}
				if i%3 != 0 {
					continue
				}
				if _, status, err := shop.Pay(order, "pay-"+order.ID); err != nil || status != http.StatusOK {
					t.Errorf("payment of order %d: %d, %v", i, status, err)
				}
			}
		})
	}
	for i := range orders {
		work <- i
	}
	close(work)
	crowd.Wait()
	shop.AwaitSettled()
	refunds := shop.Count(`SELECT count(*) FROM payments WHERE refund_reason IS NOT NULL`)
	shop.AwaitMails(orders + int(refunds))
	shop.AwaitQuiet(0)
	shop.CheckMails(orders + int(refunds))
	shop.CheckInvariants(map[string]int64{"tea": orders})
}
