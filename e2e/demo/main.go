// Command demo starts the whole application and plays the story of four orders on a live
// timeline: three that go well, and one that a bug catches. It needs DATABASE_URL and
// AMQP_URL; make demo finds or starts both.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"example.com/ordertimeout/e2e/harness"
)

const (
	window   = "5s"
	patience = 20 * time.Second // for each thing that must happen
)

func main() {
	began := time.Now()
	stage := &stage{}
	err := stage.play(func() { story(stage, began) })
	stage.cleanUp()
	harness.RemoveBinary()
	if err != nil {
		fmt.Println("\nfailed:", err)
		os.Exit(1)
	}
}

// order of the story, with the name it goes by.
type order struct {
	harness.Order
	name string
}

func story(s *stage, began time.Time) {
	shop := harness.New(s, window, "", "")
	t := &timeline{began: began, names: map[string]string{}}
	if out, code := shop.Command("migrate"); code != 0 {
		s.Fatalf("migrate: %s", out)
	}
	shop.Setenv("LOG_FORMAT", "json")
	shop.Setenv("LOG_LEVEL", "debug")
	shop.Setenv("SWEEP_GRACE", "10m") // or it would close what act two breaks, sooner than anybody can look
	fmt.Println("An order that nobody pays is closed after its payment window, here", window+".")
	fmt.Printf("Its stock comes back and its buyer is told. Three orders:\n\n")
	services := shop.Run("order", "relay", "closer", "notifier", "reconciler")
	for _, p := range services {
		p.OnLine(t.follow)
	}
	t.sayf("demo", "order, relay, closer, notifier and reconciler are up")
	ten := int64(10)
	shop.SetStock("tea", &ten)
	t.sayf("order", "10 units of tea in stock")
	mails := actOne(s, shop, t)
	actTwo(s, shop, t, services[2], mails)
}

func place(shop *harness.Shop, t *timeline, name string) order {
	placed := order{shop.Place(window, harness.Line{SKU: "tea", Quantity: 2, UnitPrice: 450}), name}
	t.name(placed)
	t.sayf("order", "%s placed: 2 tea, 9.00 EUR, to be paid by %s", name, placed.DueAt.Format("15:04:05.000"))
	return placed
}

// actOne plays three orders: paid, left, and paid the instant it is closed. It returns
// how many mails they made.
func actOne(s *stage, shop *harness.Shop, t *timeline) (mails int) {
	paid, left, raced := place(shop, t, "order 1"), place(shop, t, "order 2"), place(shop, t, "order 3")
	t.sayf("order", "%d units of tea are left while 6 are held", available(shop))

	pay(s, shop, t, paid)
	time.Sleep(time.Until(raced.DueAt)) // the instant at which its timer fires
	answer := pay(s, shop, t, raced)

	await(s, "order 2 to be closed", func() bool { return shop.Get(left.ID).Status == "closed" })
	await(s, "order 3 to be settled", func() bool { return shop.Get(raced.ID).Status != "pending" })
	lost := answer.Outcome == "refund_due"
	mails = 3
	if lost {
		mails = 4 // the close and the refund
	}
	shop.AwaitMails(mails)
	shop.AwaitSettled()
	shop.AwaitQuiet(0)
	t.sayf("demo", "all queues and the outbox are empty")
	verify(s, shop, paid, left, raced, lost)
	shop.CheckInvariants(map[string]int64{"tea": 10})
	shop.CheckMails(mails)
	s.check()

	end := "paid, its close found nothing to do"
	if lost {
		end = "closed, its money is being refunded"
	}
	fmt.Printf("\nverified in %.0f s: order 1 is paid; order 2 was closed, not before its deadline, its 2 units are back and its mail arrived; "+
		"order 3 is exactly one of the two (%s); no unit of stock was made or lost (%d of 10 available); %d mails, none twice\n",
		time.Since(t.began).Seconds(), end, available(shop), mails)
	return mails
}

func pay(s *stage, shop *harness.Shop, t *timeline, o order) harness.PaymentAnswer {
	answer, status, err := shop.Pay(o.Order, "payment-of-"+o.ID)
	if err != nil || status != http.StatusOK {
		s.Fatalf("paying %s: status %d, %v", o.name, status, err)
	}
	if answer.Outcome == "refund_due" {
		t.sayf("order", "%s: the money came when it was closed already, a refund is asked for", o.name)
	} else {
		t.sayf("order", "%s: paid, %s", o.name, relative(time.Until(o.DueAt)))
	}
	return answer
}

func relative(left time.Duration) string {
	if left < 0 {
		return (-left).Round(time.Millisecond).String() + " past its deadline, and still in time"
	}
	return left.Round(time.Millisecond).String() + " before its deadline"
}

func verify(s *stage, shop *harness.Shop, paid, left, raced order, lost bool) {
	expect := func(o order, want string) {
		if got := shop.Get(o.ID); got.Status != want {
			s.Errorf("%s is %s, want %s", o.name, got.Status, want)
		} else if want == "closed" && got.ClosedAt.Before(got.DueAt) {
			s.Errorf("%s was closed before its deadline", o.name)
		}
	}
	expect(paid, "paid")
	expect(left, "closed")
	if lost {
		expect(raced, "closed")
	} else {
		expect(raced, "paid")
	}
	want := int64(8) // order 1 took two
	if !lost {
		want = 6
	}
	if got := available(shop); got != want {
		s.Errorf("%d units of tea available, want %d", got, want)
	}
}

func available(shop *harness.Shop) int64 {
	return shop.Count(`SELECT available FROM stock WHERE sku = 'tea'`)
}

func await(s *stage, what string, done func() bool) {
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("waited %s for %s", patience, what)
		}
	}
}
