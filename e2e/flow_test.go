package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"example.com/ordertimeout/e2e/harness"
)

// A hundred orders, half of them paid: every unpaid one is closed, none early, the
// stock is what it was less what was paid, everybody got one mail, nothing is left over.
func TestHundredOrdersHalfPaid(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	_, code := shop.Command("migrate")
	if code != 0 {
		t.Fatal("migrate failed")
	}
	services := shop.Run("order", "relay", "closer", "notifier")
	shop.SetStock("tea", units(1000))
	shop.SetStock("pot", units(200))

	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			order, status, err := shop.TryPlace("3s", harness.Line{SKU: "tea", Quantity: 3, UnitPrice: 450}, harness.Line{SKU: "pot", Quantity: 1, UnitPrice: 2500})
			if err != nil || status != http.StatusCreated {
				t.Errorf("order %d: status %d, %v", i, status, err)
				return
			}
			if i%2 == 0 {
				if _, status, err := shop.Pay(order, fmt.Sprintf("pay-%d", i)); err != nil || status != http.StatusOK {
					t.Errorf("payment %d: status %d, %v", i, status, err)
				}
			}
		})
	}
	wg.Wait()
	shop.AwaitSettled()
	shop.AwaitMails(100)
	shop.AwaitQuiet(0)
	if n := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed' AND closed_at >= due_at AND closed_by = 'timer'`); n != 50 {
		t.Errorf("%d orders closed by their timer, want 50", n)
	}
	if n := shop.Count(`SELECT available FROM stock WHERE sku = 'tea'`); n != 1000-3*50 {
		t.Errorf("%d units of tea available, want %d", n, 1000-3*50)
	}
	shop.CheckInvariants(map[string]int64{"tea": 1000, "pot": 200})
	shop.CheckMails(100)

	metrics := services[2].MetricsText()
	for _, want := range []string{`ordertimeout_orders_closed_total{by="timer"} 50`, "ordertimeout_close_lateness_seconds_count 50"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the closer's metrics lack %s", want)
		}
	}
	for _, service := range services {
		if code := service.Terminate(); code != 0 {
			t.Errorf("%s drained with exit status %d", service.Name, code)
		}
	}
}

// Money that comes after the close is taken note of, refunded once and changes nothing
// else, however often it is reported; the buyer is told once.
func TestLateMoneyIsRefundedOnce(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("all")
	shop.SetStock("seat", units(1))
	order := shop.Place("300ms", harness.Line{SKU: "seat", Quantity: 1, UnitPrice: 9900})
	shop.AwaitCount(1, `SELECT count(*) FROM orders WHERE status = 'closed'`)
	next := shop.Place("3s", harness.Line{SKU: "seat", Quantity: 1, UnitPrice: 9900}) // the freed seat is sold again
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			answer, status, err := shop.Pay(order, "late-1")
			if err != nil || status != http.StatusOK || answer.Outcome != "refund_due" {
				t.Errorf("late money: %+v, status %d, %v", answer, status, err)
			}
		})
	}
	wg.Wait()
	if _, status, err := shop.Pay(next, "in-time"); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	shop.AwaitMails(3) // closed, refund, receipt of the other order
	shop.AwaitQuiet(0)
	shop.CheckMails(3)
	shop.CheckInvariants(map[string]int64{"seat": 1})
	if got := shop.Get(order.ID).Status; got != "closed" {
		t.Errorf("the order became %s", got)
	}
	if n := shop.Count(`SELECT count(*) FROM payments WHERE refund_reason = 'order_closed'`); n != 1 {
		t.Errorf("%d refunds", n)
	}
}

// A deadline that moved is kept: the old timer does nothing, and a sooner one gets a
// timer of its own.
func TestMovedDeadlinesAreKept(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("all")
	shop.SetStock("tea", units(100))
	line := harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1}
	later, sooner := shop.Place("300ms", line), shop.Place("30m", line)
	extend := func(order harness.Order, by string) (harness.Order, int) {
		var moved harness.Order
		status, err := shop.Call(http.MethodPost, "/v1/orders/"+order.ID+"/extension", map[string]string{"by": by}, &moved)
		if err != nil {
			t.Fatal(err)
		}
		return moved, status
	}
	moved, status := extend(later, "4s")
	if status != http.StatusOK || !moved.DueAt.After(later.DueAt) {
		t.Fatalf("extension: status %d, due at %s", status, moved.DueAt)
	}
	if _, status := extend(sooner, "-1799s"); status != http.StatusOK {
		t.Fatalf("shortening: status %d", status)
	}
	shop.AwaitSettled()
	if n := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed' AND closed_at >= due_at`); n != 2 {
		t.Errorf("%d closed orders, want 2", n)
	}
	if got := shop.Get(later.ID); got.ClosedAt == nil || got.ClosedAt.Before(moved.DueAt) {
		t.Errorf("closed at %v, due at %s", got.ClosedAt, moved.DueAt)
	}
	if _, status := extend(later, "1h"); status != http.StatusConflict {
		t.Errorf("extending a closed order: status %d", status)
	}
	shop.CheckInvariants(map[string]int64{"tea": 100})
}

// Services start in any order on a broker that knows nothing, the sending side first,
// and without the schema; they are ready once everything is there.
func TestServicesStartInAnyOrder(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	database := harness.NewProxy(t, shop.Addr("DATABASE_URL"))
	broker := harness.NewProxy(t, shop.Addr("AMQP_URL"))
	database.Freeze()
	broker.Freeze()
	var started []*harness.Process
	for _, service := range []string{"relay", "notifier", "order", "closer"} {
		started = append(started, shop.Start(service, shop.Via("DATABASE_URL", database.Addr), shop.Via("AMQP_URL", broker.Addr)))
	}
	for _, p := range started {
		harness.Eventually(t, func() error { // it answers, and says that it is not ready
			if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "postgres") {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			return nil
		})
	}
	database.Cut()
	broker.Cut()
	shop.Command("migrate")
	for _, p := range started {
		p.AwaitReady()
	}
	shop.SetStock("tea", nil)
	shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 5, UnitPrice: 1})
	shop.AwaitSettled()
	shop.AwaitMails(1)
	if n := shop.Count(`SELECT count(*) FROM stock WHERE available IS NULL AND held = 0`); n != 1 {
		t.Error("unlimited stock was counted")
	}
}

// Where a machine stands in the world changes nothing.
func TestTimeZonesChangeNothing(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	for service, zone := range map[string]string{"order": "Australia/Brisbane", "relay": "America/Los_Angeles", "closer": "Asia/Kolkata", "notifier": "Europe/Berlin"} {
		shop.Start(service, "TZ="+zone, "PGTZ=Pacific/Auckland").AwaitReady()
	}
	shop.SetStock("tea", units(10))
	shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	shop.Place("30m", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	shop.AwaitMails(1)
	shop.AwaitCount(1, `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_at BETWEEN due_at AND due_at + interval '1 minute' AND due_at = created_at + interval '300 ms'`)
	if n := shop.Count(`SELECT count(*) FROM orders WHERE status = 'pending' AND due_at = created_at + interval '30 min'`); n != 1 {
		t.Error("the long order is not pending")
	}
	if text := shop.Mail.Taken()[0].Text; !strings.Contains(text, "+00:00") {
		t.Errorf("the mail's times have no offset:\n%s", text)
	}
}

// The commands tell what is there.
func TestTopologyCommandPrunesDroppedWindows(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, "300ms,700ms", "", "")
	shop.Command("migrate")
	service := shop.Run("all")[0]
	shop.SetStock("tea", units(10))
	shop.Place("700ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	service.Terminate()
	shop.Setenv("PAYMENT_WINDOWS", "300ms")
	if out, code := shop.Command("topology", "--prune"); code != 0 || !strings.Contains(out, "dropped") || !strings.Contains(out, "kept") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	shop.Run("all")
	shop.AwaitSettled() // the timer of the dropped window fires
	if out, code := shop.Command("topology", "--prune"); code != 0 || !strings.Contains(out, "700ms.queue: removed") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if out, code := shop.Command("topology"); code != 0 || strings.Contains(out, "700ms") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// A bad value stops the start with the variable's name, what came and what is allowed.
func TestBadConfigurationNamesItself(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	for variable, values := range map[string][]string{
		"PAYMENT_WINDOWS":        {"1500us", "1200h", "20y", "0", "-1m", "1800000", "30"},
		"DELAY_TIERS":            {"fast", "1s,,2s"},
		"RETRY_LADDER":           {"0s"},
		"TOPOLOGY_NAMESPACE":     {"Not A Name"},
		"DATABASE_MAX_CONNS":     {"many", "0"},
		"OPERATOR_TOKEN":         {"short"},
		"PAYMENT_WEBHOOK_SECRET": {"whsec_AAAA"},
		"LOG_LEVEL":              {"loud"},
		"METRICS_ADDR":           {"9090"},
		"SMTP_URL":               {"http://mail"},
		"AMQP_URL":               {"redis://x"},
	} {
		for _, value := range values {
			broken := harness.Environment(shop, variable, value)
			out, code := broken.Command("all")
			if code != 1 || !strings.Contains(out, variable) || !strings.Contains(out, "llowed") {
				t.Errorf("%s=%s: exit %d: %s", variable, value, code, out)
			}
			if strings.Contains(variable, "TOKEN") && strings.Contains(out, value) {
				t.Errorf("%s was printed: %s", variable, out)
			}
		}
	}
	for _, value := range []string{"30m", "1.5s", "720h"} {
		if out, code := harness.Environment(shop, "PAYMENT_WINDOWS", value).Command("migrate"); code != 0 {
			t.Errorf("%s: exit %d: %s", value, code, out)
		}
	}
}
