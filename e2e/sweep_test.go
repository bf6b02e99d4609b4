package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/e2e/servers"
	"example.com/ordertimeout/infra/rabbitmq"
)

// drift is what the reconciler says of orders and timers.
type drift struct {
	Pending int `json:"pending_orders"`
	Missing int `json:"missing_timers"`
	Surplus int `json:"surplus_timers"`

	Findings []struct {
		Queue   string `json:"queue"`
		Problem string `json:"problem"`
		Cure    string `json:"cure"`
	} `json:"findings"`
}

func readDrift(shop *harness.Shop) (d drift, err error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+shop.Console+"/v1/drift", nil)
	if err != nil {
		return d, err
	}
	request.Header.Set("Authorization", "Bearer "+harness.OperatorToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return d, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return d, fmt.Errorf("status %d", response.StatusCode)
	}
	return d, json.NewDecoder(response.Body).Decode(&d)
}

func awaitDrift(t *testing.T, shop *harness.Shop, what string, is func(drift) bool) {
	t.Helper()
	harness.Eventually(t, func() error {
		d, err := readDrift(shop)
		if err == nil && !is(d) {
			err = fmt.Errorf("%s: %+v", what, d)
		}
		return err
	})
}

// sweptShop sweeps soon and often.
func sweptShop(t *testing.T, windows, database, broker string) *harness.Shop {
	t.Helper()
	shop := harness.New(t, windows, database, broker)
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1s")
	shop.Setenv("SWEEP_INTERVAL", "200ms")
	return shop
}

func place(shop *harness.Shop, n int, window string) {
	for range n {
		shop.Place(window, harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
}

// checkClosed verifies that n orders were closed, each once, and everybody was told once.
func checkClosed(t *testing.T, shop *harness.Shop, n, stock int) {
	t.Helper()
	shop.AwaitSettled()
	shop.AwaitMails(n)
	shop.CheckMails(n)
	shop.CheckInvariants(map[string]int64{"tea": int64(stock)})
	if got := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed'`); got != int64(n) {
		t.Errorf("%d orders are closed, want %d", got, n)
	}
}

// Somebody purges a delay queue. The drift tells how many timers are missing, the sweep
// closes their orders and counts them as lost, and then the drift is none. Two
// reconcilers do no harm.
func TestTimersThatWerePurged(t *testing.T) {
	t.Parallel()
	shop := sweptShop(t, "5s,300ms", "", "")
	console := shop.Console
	services := shop.Run("order", "relay", "closer", "notifier", "reconciler")
	second := shop.Start("reconciler", "CONSOLE_ADDR=127.0.0.1:0")
	second.AwaitReady()
	shop.Console = console
	shop.SetStock("tea", units(1000))
	place(shop, 3, "5s")
	shop.AwaitCount(0, `SELECT count(*) FROM outbox`)
	awaitDrift(t, shop, "every order has its timer", func(d drift) bool { return d.Pending == 3 && d.Missing == 0 })
	purge(t, shop, shop.Topology.DelayQueue(5*time.Second), 3)
	awaitDrift(t, shop, "three timers are missing", func(d drift) bool { return d.Missing == 3 })
	shop.AwaitCount(3, `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_by = 'sweep'`)
	awaitDrift(t, shop, "nothing is missing any more", func(d drift) bool { return d.Pending == 0 && d.Missing == 0 && d.Surplus == 0 })
	place(shop, 2, "300ms")
	checkClosed(t, shop, 5, 1000)
	lost := services[4].Gauge("ordertimeout_sweep_lost_timers_total") + second.Gauge("ordertimeout_sweep_lost_timers_total")
	if lost != 3 {
		t.Errorf("%g timers are counted as lost, want 3", lost)
	}
}

func purge(t *testing.T, shop *harness.Shop, queue string, want int) {
	t.Helper()
	conn, err := amqp.Dial(shop.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	purged := 0
	harness.Eventually(t, func() error {
		n, err := ch.QueuePurge(queue, false)
		if purged += n; err == nil && purged < want {
			err = fmt.Errorf("%d messages purged, want %d", purged, want)
		}
		return err
	})
}

// awaitTimers places orders, one after the other, until one is closed by its timer: what
// vanished comes back within ten seconds, and the broker sends again what stuck within
// fifteen.
func awaitTimers(t *testing.T, shop *harness.Shop) {
	t.Helper()
	harness.Eventually(t, func() error {
		order := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
		shop.AwaitCount(0, `SELECT count(*) FROM orders WHERE status = 'pending'`)
		if by := shop.Text(`SELECT closed_by FROM orders WHERE id = $1`, order.ID); by != "timer" {
			return fmt.Errorf("order %s was closed by %s", order.ID, by)
		}
		return nil
	})
}

func unbind(t *testing.T, shop *harness.Shop) {
	t.Helper()
	conn, err := amqp.Dial(shop.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	due := shop.Topology.TimerRoute(0)
	if err := ch.QueueUnbind(shop.Topology.Queue(rabbitmq.Closer), due.Key, due.Exchange, nil); err != nil {
		t.Fatal(err)
	}
}

// A broker that loses timers in three ways: the timeout queue's binding is gone, and with
// it the target of every dead letter; a policy lets a delay queue vanish with the timers
// in it; its disk is lost. Every order is closed once by the sweep, nobody is restarted,
// and timers work again.
func TestBrokersThatForget(t *testing.T) {
	db, mq := privateServers(t)
	migrate(t, db.URL())
	shop := sweptShop(t, "15s,2s,300ms", db.URL(), mq.URL())
	shop.Run("order", "relay", "closer", "notifier", "reconciler")
	shop.SetStock("tea", units(1000))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	lose := func(n int, window string, steps ...func() error) {
		t.Helper()
		swept := shop.Count(`SELECT count(*) FROM orders WHERE closed_by = 'sweep'`)
		place(shop, n, window)
		shop.AwaitCount(0, `SELECT count(*) FROM outbox`)
		for _, step := range steps {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		shop.AwaitCount(swept+int64(n), `SELECT count(*) FROM orders WHERE closed_by = 'sweep'`)
		awaitTimers(t, shop)
	}
	control := func(args ...string) func() error { return func() error { return mq.Control(ctx, args...) } }

	awaitTimers(t, shop)
	lose(5, "2s", func() error {
		unbind(t, shop)
		return nil
	})
	lose(10, "15s", control("set_policy", "vanish", `.*\.delay\.15s\.queue`, `{"expires":500}`, "--apply-to", "queues"))
	lose(10, "15s",
		control("clear_policy", "vanish"),
		func() error { return mq.Kill(ctx) },
		func() error { return wipe(mq) },
		func() error { return mq.Start(ctx) })

	shop.AwaitSettled()
	shop.AwaitQuiet(0)
	checkClosed(t, shop, int(shop.Count(`SELECT count(*) FROM orders`)), 1000)
	if d, err := readDrift(shop); err != nil || d.Pending != 0 {
		t.Errorf("in the end: %+v, %v", d, err)
	}
}

// wipe takes the disk from a broker that was killed, or makes it forget everything where
// the disk is not ours.
func wipe(mq *servers.RabbitMQ) error {
	if mq.Dir != "" {
		return os.RemoveAll(filepath.Join(mq.Dir, "data"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return errors.Join(mq.Start(ctx), mq.Control(ctx, "stop_app"), mq.Control(ctx, "reset"), mq.Control(ctx, "start_app"))
}
