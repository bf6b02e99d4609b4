package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/ordertimeout/e2e/harness"
)

// The well-known bug is an ack that goes out before the commit. Here the closer is
// killed at the two instants that would show it: after its writes and before the
// commit, and after the commit and before the ack. A proxy stops the world there; the
// program has no hook for it. Every order closes once, whatever happens.
func TestCloserKilledAroundTheCommit(t *testing.T) {
	for name, at := range map[string]struct {
		variable string
		pattern  []byte
		closed   bool // what the database knows at that instant
	}{
		"between its writes and the commit": {"DATABASE_URL", harness.CommitRequest, false},
		"between the commit and the ack":    {"AMQP_URL", harness.AckRequest, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const kills = 20
			shop := harness.New(t, harness.DefaultWindows, "", "")
			shop.Command("migrate")
			shop.Run("order", "relay", "notifier")
			shop.SetStock("tea", units(1000))
			for i := range kills {
				proxy := harness.NewProxy(t, shop.Addr(at.variable))
				closer := shop.Start("closer", shop.Via(at.variable, proxy.Addr))
				closer.AwaitReady()
				held := proxy.HoldAt(at.pattern)
				order := shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 7, UnitPrice: 1})
				select {
				case <-held:
				case <-time.After(harness.Patience):
					t.Fatalf("round %d: the closer never came there", i)
				}
				closer.Kill()
				proxy.Cut()
				if closed := shop.Get(order.ID).Status == "closed"; closed != at.closed {
					t.Fatalf("round %d: closed is %v at the kill", i, closed)
				}
				closer = shop.Run("closer")[0]
				shop.AwaitSettled()
				shop.AwaitQuiet(0)
				if code := closer.Terminate(); code != 0 {
					t.Fatalf("round %d: exit status %d", i, code)
				}
			}
			shop.AwaitMails(kills)
			if n := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed'`); n != kills {
				t.Errorf("%d orders closed, want %d", n, kills)
			}
			shop.CheckMails(kills)
			shop.CheckInvariants(map[string]int64{"tea": 1000})
		})
	}
}

// The order service is killed the moment Postgres says that a placement committed,
// before the service itself knows. The timer is in the outbox all the same.
func TestOrderServiceKilledAfterTheCommit(t *testing.T) {
	t.Parallel()
	const kills = 50
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("relay", "closer", "notifier")
	setup := shop.Run("order")[0]
	shop.SetStock("tea", units(1000))
	setup.Terminate()
	for i := range kills {
		proxy := harness.NewProxy(t, shop.Addr("DATABASE_URL"))
		service := shop.Start("order", shop.Via("DATABASE_URL", proxy.Addr))
		service.AwaitReady()
		held := proxy.HoldAt(harness.CommitAnswer)
		answered := make(chan int, 1)
		go func() {
			_, status, _ := shop.TryPlace("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1}) // the error is the kill
			answered <- status
		}()
		select {
		case <-held:
		case <-time.After(harness.Patience):
			t.Fatalf("round %d: no commit", i)
		}
		service.Kill()
		proxy.Cut()
		if status := <-answered; status == http.StatusCreated {
			t.Fatalf("round %d: the client was answered", i)
		}
	}
	shop.AwaitCount(kills, `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_by = 'timer'`)
	shop.AwaitSettled()
	shop.AwaitQuiet(0)
	shop.AwaitMails(kills)
	shop.CheckMails(kills)
	shop.CheckInvariants(map[string]int64{"tea": 1000})
}

// Rolling deploys send no healthy message down the ladder: closers come and go while
// orders close, and no attempt is counted.
func TestRollingRestartsOfTheCloser(t *testing.T) {
	t.Parallel()
	const orders = 300
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay")
	shop.SetStock("tea", units(orders))
	stop := make(chan struct{})
	restarts := make(chan int)
	go func() {
		n := 0
		defer func() { restarts <- n }()
		a, b := shop.Start("closer"), shop.Start("closer")
		for ; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
			next := shop.Start("closer")
			if n%3 == 2 {
				a.Kill()
			} else if code := a.Terminate(); code != 0 {
				t.Errorf("restart %d: exit status %d", n, code)
			}
			a, b = b, next
		}
	}()
	for range orders {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1})
	}
	shop.AwaitCount(orders, `SELECT count(*) FROM orders WHERE status = 'closed'`)
	close(stop)
	if n := <-restarts; n < 3 {
		t.Errorf("only %d restarts", n)
	}
	shop.Run("notifier")
	shop.AwaitSettled()
	shop.AwaitQuiet(0) // nothing on the ladder, nothing parked
	shop.AwaitMails(orders)
	shop.CheckMails(orders)
	shop.CheckInvariants(map[string]int64{"tea": orders})
}

// Pay and close meet at the deadline of a thousand orders, with three closers: each
// order is paid or closed, never both, and whoever lost its money gets it back.
func TestPayAndCloseCollide(t *testing.T) {
	t.Parallel()
	const orders = 1000
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Run("order", "relay", "closer", "closer", "closer")
	shop.SetStock("tea", units(orders))
	placed := make(chan harness.Order, orders)
	go func() {
		defer close(placed)
		for range orders {
			placed <- shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 5})
		}
	}()
	type result struct {
		id      string
		outcome string
		err     error
	}
	results := make(chan result, orders)
	i := 0
	for order := range placed {
		i++
		// Around the deadline, some milliseconds before and after.
		wait := time.Until(order.DueAt) + time.Duration(i%40-10)*time.Millisecond
		time.AfterFunc(wait, func() {
			answer, status, err := shop.Pay(order, "pay-"+order.ID)
			if status != http.StatusOK {
				err = fmt.Errorf("status %d, %w", status, err)
			}
			results <- result{order.ID, answer.Outcome, err}
		})
	}
	outcomes := map[string]int{}
	for range orders {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		outcomes[r.outcome]++
	}
	shop.AwaitCount(0, `SELECT count(*) FROM orders WHERE status = 'pending'`)
	paid := shop.Count(`SELECT count(*) FROM orders WHERE status = 'paid'`)
	closed := shop.Count(`SELECT count(*) FROM orders WHERE status = 'closed'`)
	refunds := shop.Count(`SELECT count(*) FROM payments WHERE refund_reason = 'order_closed'`)
	t.Logf("paid %d, closed %d", paid, closed)
	if paid == 0 || closed == 0 {
		t.Error("they did not collide")
	}
	if paid+closed != orders || refunds != closed || outcomes["accepted"] != int(paid) || outcomes["refund_due"] != int(closed) {
		t.Errorf("paid %d, closed %d, refunds %d, answers %v", paid, closed, refunds, outcomes)
	}
	shop.CheckInvariants(map[string]int64{"tea": orders})
	shop.Run("notifier")
	shop.AwaitMails(int(paid + 2*closed)) // a receipt, or the close and the refund
	shop.AwaitQuiet(0)
	shop.CheckMails(int(paid + 2*closed))
}
