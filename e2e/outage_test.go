package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"example.com/ordertimeout/e2e/harness"
	"example.com/ordertimeout/e2e/servers"
	"example.com/ordertimeout/infra/postgres"
)

// privateServers are a database and a broker that a test may kill.
func privateServers(t *testing.T) (*servers.Postgres, *servers.RabbitMQ) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("/var/tmp", "ordertimeout-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	advanced, err := servers.AdvancedConfig("..")
	if err != nil {
		t.Fatal(err)
	}
	db, err := servers.StartPostgres(ctx, dir+"/postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Kill(context.Background()) })
	mq, err := servers.StartRabbitMQ(ctx, dir+"/rabbitmq", advanced)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := mq.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return db, mq
}

// migrate brings a private database to the schema.
func migrate(t *testing.T, url string) {
	t.Helper()
	db, err := postgres.Open(context.Background(), postgres.Config{URL: url, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, _, err := db.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Broker and database are stopped and killed under load. The services turn unready,
// recover without a restart, lose nothing, do nothing twice, and leave no goroutine.
func TestOutagesUnderLoad(t *testing.T) {
	db, mq := privateServers(t)
	migrate(t, db.URL())
	shop := harness.New(t, harness.DefaultWindows, db.URL(), mq.URL())
	services := shop.Run("order", "relay", "closer", "notifier")
	shop.SetStock("tea", units(1_000_000))
	// A broker that is killed within seconds of a quorum queue's making forgets it.
	restart := func(what string, steps ...func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		for _, step := range steps {
			if err := step(ctx); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		for _, s := range services {
			s.AwaitReady()
		}
	}
	restart("settling the broker", mq.Stop, mq.Start)
	before := goroutines(services)

	var accepted atomic.Int64
	load := startLoad(shop, &accepted)
	awaitProgress := func() {
		t.Helper()
		target := accepted.Load() + 20
		harness.Eventually(t, func() error {
			if n := accepted.Load(); n < target {
				return fmt.Errorf("%d orders accepted, want %d", n, target)
			}
			return nil
		})
	}
	unready := func(want string, p *harness.Process) {
		t.Helper()
		harness.Eventually(t, func() error {
			if p.Ready() == nil {
				return fmt.Errorf("%s is ready without %s", p.Name, want)
			}
			return nil
		})
	}
	for range 2 {
		awaitProgress()
		restart("broker killed", mq.Kill, func(context.Context) error {
			unready("the broker", services[2])
			awaitProgress() // orders are taken all the same
			return nil
		}, mq.Start)
		awaitProgress()
		restart("database stopped", db.Stop, func(context.Context) error {
			unready("the database", services[0])
			return nil
		}, db.Start)
		awaitProgress()
		restart("database killed", db.Kill, db.Start)
	}
	awaitProgress()
	// A broker that is short of memory takes nothing: rows wait, and nobody hangs.
	restart("memory alarm", func(ctx context.Context) error {
		return mq.Control(ctx, "set_vm_memory_high_watermark", "0.00001")
	}, func(ctx context.Context) error {
		unready("a broker that takes messages", services[1])
		awaitProgress()
		if code := services[1].Terminate(); code != 0 {
			t.Errorf("the relay drained with exit status %d during the alarm", code)
		}
		services[1] = shop.Start("relay")
		return mq.Control(ctx, "set_vm_memory_high_watermark", "0.4")
	})
	load()
	shop.AwaitSettled()
	shop.AwaitQuiet(0)
	t.Logf("%d orders accepted", accepted.Load())
	orders := int(shop.Count(`SELECT count(*) FROM orders`))
	if int64(orders) < accepted.Load() {
		t.Errorf("%d orders stored, %d accepted", orders, accepted.Load())
	}
	shop.AwaitMails(orders)
	shop.CheckMails(orders)
	shop.CheckInvariants(map[string]int64{"tea": 1_000_000})
	for _, s := range services {
		harness.Eventually(t, func() error {
			if now := s.Gauge("go_goroutines"); now > before[s.Name]+10 {
				return fmt.Errorf("%s: %g goroutines, %g before", s.Name, now, before[s.Name])
			}
			return nil
		})
	}
}

// The network to the broker becomes a black hole: nobody is told that the connection is
// gone. It is noticed, and everything goes on.
func TestBlackHoleToTheBroker(t *testing.T) {
	t.Parallel()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	proxy := harness.NewProxy(t, shop.Addr("AMQP_URL"))
	via := shop.Via("AMQP_URL", proxy.Addr)
	shop.Run("order", "notifier")
	for _, service := range []string{"relay", "closer"} {
		shop.Start(service, via).AwaitReady()
	}
	shop.SetStock("tea", units(100))
	place := func() { shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1}) }
	place()
	shop.AwaitSettled()
	proxy.Freeze()
	place() // the relay publishes into the void, and keeps the row
	shop.AwaitCount(1, `SELECT count(*) FROM outbox`)
	<-time.After(2 * time.Second)
	if n := shop.Count(`SELECT count(*) FROM outbox`); n != 1 {
		t.Fatalf("%d rows in the outbox: the timer is gone", n)
	}
	proxy.Cut()
	place()
	shop.AwaitSettled()
	shop.AwaitMails(3)
	shop.AwaitQuiet(0)
	shop.CheckMails(3)
	shop.CheckInvariants(map[string]int64{"tea": 100})
}

// startLoad places orders until the returned function is called; failures are retried
// with the same idempotency key, as a good client does.
func startLoad(shop *harness.Shop, accepted *atomic.Int64) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			for {
				status, err := shop.Call(http.MethodPost, "/v1/orders", map[string]any{
					"customer": map[string]string{"id": "c", "email": "buyer@example.com"}, "currency": "EUR",
					"lines": []harness.Line{{SKU: "tea", Quantity: 1, UnitPrice: 1}}, "payment_window": "300ms",
				}, nil, "Idempotency-Key", fmt.Sprintf("load-%d", i))
				if err == nil && status == http.StatusCreated {
					accepted.Add(1)
					break
				}
				select {
				case <-end:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

func goroutines(services []*harness.Process) map[string]float64 {
	counts := map[string]float64{}
	for _, s := range services {
		counts[s.Name] = s.Gauge("go_goroutines")
	}
	return counts
}
