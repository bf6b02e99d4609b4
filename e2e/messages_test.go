package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

// Whatever lands on the timeout queue, nothing spins and nothing is swallowed: what
// breaks the contract is parked on its first attempt with its bytes and the reason, an
// unknown order after its ladder, and a valid timer behind each is handled.
func TestStrangeMessagesAreParked(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay", "closer", "notifier") // no reconciler, which would take what is parked
	shop.SetStock("tea", units(1000))
	timer := fmt.Sprintf
	id := uuid.NewString()
	bodies := map[string]string{ // body -> class
		"":                                       "malformed",
		"{":                                      "malformed",
		"null":                                   "malformed",
		"[]":                                     "malformed",
		"\xff\xfe{\"type\":\"order.timeout\"}":   "malformed",
		strings.Repeat(`{"a":`, 10_000):          "malformed",
		timer(`{"type":"order.timeout"}`):        "malformed",
		timer(`{"version":1,"order_id":%q}`, id): "malformed",
		`{"type":"order.timeout","version":1}`:   "malformed",
		timer(`{"type":"order.timeout","version":"2","order_id":%q}`, id):                        "malformed",
		`{"type":"order.timeout","version":1,"order_id":17}`:                                     "malformed",
		`{"type":"order.timeout","version":1,"order_id":""}`:                                     "malformed",
		timer(`{"type":"order.timeout","version":1,"order_id":%q,"order_id":"x"}`, id):           "malformed",
		timer(`{"type":"order.closed","version":1,"order_id":%q}`, id):                           "malformed", // no timer
		timer(`{"type":"order.timeout","version":2,"order_id":%q}`, id):                          "unsupported_event",
		timer(`{"type":"order.timeout","version":99,"order_id":%q}`, id):                         "unsupported_event",
		timer(`{"type":"order.paused","version":1,"order_id":%q}`, id):                           "unsupported_event",
		timer(`{"type":"order.timeout","version":1,"order_id":%q,"new":[1]}`, id):                "unknown_order",
		timer(`{"type":"order.timeout","version":1,"order_id":%q}`, uuid.NewString()):            "unknown_order",
		`{"type":"order.timeout","version":1,"order_id":"` + strings.Repeat("x", 900_000) + `"}`: "malformed",
	}
	ch := rabbitmqtest.Channel(t)
	for body := range bodies {
		err := ch.PublishWithContext(context.Background(), "", shop.Topology.Queue(rabbitmq.Closer), true, false,
			amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"x-death": "nonsense", "tries": int32(3)}})
		if err != nil {
			t.Fatal(err)
		}
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	shop.AwaitSettled()
	shop.AwaitQuiet(len(bodies))
	for range bodies {
		parked, found, err := ch.Get(shop.Topology.ParkingQueue(), true)
		if err != nil || !found {
			t.Fatalf("parking: %v, %v", found, err)
		}
		class, known := bodies[string(parked.Body)]
		if !known {
			t.Errorf("the body %.60q was changed", parked.Body)
		}
		attempts := "1"
		if class == "unknown_order" {
			attempts = "4" // three rungs and one more
		}
		if parked.Headers[rabbitmq.MetaErrorClass] != class || parked.Headers[rabbitmq.MetaAttempts] != attempts {
			t.Errorf("%.60q: class %v after %v attempts, want %s after %s (%v)", parked.Body,
				parked.Headers[rabbitmq.MetaErrorClass], parked.Headers[rabbitmq.MetaAttempts], class, attempts, parked.Headers[rabbitmq.MetaError])
		}
	}
	shop.CheckInvariants(map[string]int64{"tea": 1000})
}

// One close event, delivered twenty times to three closers at once and again later,
// closes once, releases once and mails once.
func TestRepeatedTimersCloseOnce(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay", "closer", "closer", "closer", "notifier")
	shop.SetStock("tea", units(10))
	order := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 3, UnitPrice: 1})
	ch := rabbitmqtest.Channel(t)
	deliver := func() {
		for range 20 {
			body := fmt.Sprintf(`{"type":"order.timeout","version":1,"order_id":%q}`, order.ID)
			err := ch.PublishWithContext(context.Background(), "", shop.Topology.Queue(rabbitmq.Closer), true, false, amqp.Publishing{Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	deliver() // early: each goes round until the deadline
	<-time.After(time.Until(order.DueAt))
	deliver()
	shop.AwaitSettled()
	deliver()
	shop.AwaitMails(1)
	shop.AwaitQuiet(0)
	shop.CheckMails(1)
	shop.CheckInvariants(map[string]int64{"tea": 10})
	if n := shop.Count(`SELECT available FROM stock WHERE sku = 'tea'`); n != 10 {
		t.Errorf("%d units available, want 10", n)
	}
}

// A queue that somebody deleted comes back without a restart, a timer that found no
// queue stays in the outbox meanwhile, and a row that can never be sent holds up
// nobody and is listed with its error.
func TestDeletedQueueAndUnsendableRow(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	services := shop.Run("order", "relay", "closer", "notifier")
	shop.SetStock("tea", units(100))
	_, err := shop.DB.Exec(context.Background(), `
		INSERT INTO outbox (message_id, order_id, type, payload) VALUES
			(gen_random_uuid(), gen_random_uuid(), 'order.unheard_of', '{}'),
			(gen_random_uuid(), gen_random_uuid(), 'order.closed', to_json(repeat('x', 2000000)))`)
	if err != nil {
		t.Fatal(err)
	}
	ch := rabbitmqtest.Channel(t)
	if _, err := ch.QueueDelete(shop.Topology.DelayQueue(300*time.Millisecond), false, false, false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	shop.AwaitCount(10, `SELECT count(*) FROM orders WHERE status = 'closed'`)
	shop.AwaitCount(2, `SELECT count(*) FROM outbox WHERE attempts > 0 AND next_attempt_at > now()`)
	out, code := shop.Command("outbox")
	if code != 0 || !strings.Contains(out, "order.unheard_of") || !strings.Contains(out, "too large") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	harness.Eventually(t, func() error {
		if n := services[1].Gauge("ordertimeout_outbox_failing_rows"); n != 2 {
			return fmt.Errorf("%g failing rows in the metrics", n)
		}
		return nil
	})
	shop.AwaitMails(10)
	shop.CheckInvariants(map[string]int64{"tea": 100})
}
