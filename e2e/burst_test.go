package e2e

import (
	"context"
	"fmt"
	"testing"

	"example.com/ordertimeout/e2e/harness"
)

// The wall of expiries after a flash sale: thousands of timers wait for a closer, and
// Postgres stops answering while it works them off. The closer keeps within its memory, the
// outage costs nobody an attempt, and every order is closed.
func TestBurstOfExpiries(t *testing.T) {
	t.Parallel()
	const (
		orders = 8000
		skus   = 100
		memory = 128 << 20 // bytes
	)
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	relay := shop.Start("relay")
	relay.AwaitReady()
	placeMany(t, shop, orders, skus)
	shop.AwaitCount(0, `SELECT count(*) FROM outbox`)
	shop.AwaitCount(orders, `SELECT count(*) FROM orders WHERE due_at < now()`)
	relay.Terminate() // what is sent to buyers stays in the outbox, to be counted

	proxy := harness.NewProxy(t, shop.Addr("DATABASE_URL"))
	closer := shop.Start("closer", shop.Via("DATABASE_URL", proxy.Addr))
	closer.AwaitReady()
	const closed = `SELECT count(*) FROM orders WHERE status = 'closed'`
	harness.Eventually(t, func() error {
		if n := shop.Count(closed); n < 100 {
			return fmt.Errorf("%d orders are closed", n)
		}
		return nil
	})
	proxy.Freeze()
	harness.Eventually(t, func() error {
		if n := closer.Handled("closer", "hold"); n == 0 {
			return fmt.Errorf("the closer holds nothing yet")
		}
		return nil
	})
	if n := shop.Count(closed); n == orders {
		t.Fatal("the burst was over before the outage")
	}
	proxy.Cut()

	var peak float64
	harness.Eventually(t, func() error {
		peak = max(peak, closer.Gauge("process_resident_memory_bytes"))
		if n := shop.Count(closed); n != orders {
			return fmt.Errorf("%d orders are closed", n)
		}
		return nil
	})
	if peak > memory {
		t.Errorf("the closer took %.0f MiB, want %d at most", peak/(1<<20), memory>>20)
	}
	for _, outcome := range []string{"retry", "park"} {
		if n := closer.Handled("closer", outcome); n != 0 {
			t.Errorf("%d messages ended in %s", n, outcome)
		}
	}
	if n := shop.Count(`SELECT count(DISTINCT order_id) FROM outbox WHERE type = 'order.closed'`); n != orders {
		t.Errorf("%d buyers are told, want %d", n, orders)
	}
	if n := shop.Count(`SELECT count(*) FROM outbox`); n != orders {
		t.Errorf("%d messages wait, want one for each order", n)
	}
	units := map[string]int64{}
	for i := range skus {
		units[fmt.Sprint("sku-", i)] = orders
	}
	shop.CheckInvariants(units)
	shop.AwaitQuiet(0)
}

// placeMany stores what placing so many orders of one unit leaves in the database.
func placeMany(t *testing.T, shop *harness.Shop, orders, skus int) {
	t.Helper()
	_, err := shop.DB.Exec(context.Background(), `
		WITH ids AS (
			SELECT gen_random_uuid() AS id, gen_random_uuid() AS message_id, 'sku-' || i % $2 AS sku FROM generate_series(1, $1) AS i
		), stocked AS (
			INSERT INTO stock (sku, available, held) SELECT sku, $1 - count(*), count(*) FROM ids GROUP BY sku
		), placed AS (
			INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
			SELECT id, 'c', 'c@example.com', 'EUR', 3000, now() + interval '3 seconds', now() FROM ids
		), lines AS (
			INSERT INTO order_lines (order_id, position, sku, quantity, unit_price, held) SELECT id, 0, sku, 1, 100, 1 FROM ids
		)
		INSERT INTO outbox (message_id, order_id, type, payload, due_at)
		SELECT message_id, id, 'order.timeout', json_build_object('type', 'order.timeout', 'version', 1, 'order_id', id), now() + interval '3 seconds' FROM ids`,
		orders, skus)
	if err != nil {
		t.Fatal(err)
	}
}
