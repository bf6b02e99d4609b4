package notifier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/smtp"
	"example.com/ordertimeout/infra/smtp/smtptest"
)

// shop is a notifier on a real database and a real mail server.
type shop struct {
	t        *testing.T
	db       *postgres.DB
	orders   *postgres.Orders
	mails    *smtptest.Server
	notifier *Notifier
	log      *bytes.Buffer
}

func newShop(t *testing.T, change func(*Deps)) *shop {
	t.Helper()
	db := postgrestest.New(t)
	s := &shop{t: t, db: db, orders: postgres.NewOrders(db), mails: smtptest.New(t), log: &bytes.Buffer{}}
	mailer, err := smtp.New(smtp.Config{URL: s.mails.URL(), From: "Shop <orders@shop.example>"})
	if err != nil {
		t.Fatal(err)
	}
	deps := Deps{
		Orders:        s.orders,
		Notifications: postgres.NewNotifications(db),
		Mailer:        mailer,
		Logger:        slog.New(slog.NewJSONHandler(s.log, nil)),
		Registerer:    prometheus.NewRegistry(),
	}
	if change != nil {
		change(&deps)
	}
	s.notifier = New(deps)
	if _, err := postgres.NewStock(db).Set(t.Context(), "tea-1", nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// place returns a pending order of EUR 25.00.
func (s *shop) place() *domain.Order {
	s.t.Helper()
	order, _, err := s.orders.Place(s.t.Context(), domain.Placement{
		ID:       domain.OrderID(uuid.Must(uuid.NewV7()).String()),
		Customer: domain.Customer{ID: "ada", Email: "ada@buyer.example"},
		Currency: "EUR",
		Lines:    []domain.Line{{SKU: "tea-1", Quantity: 2, UnitPrice: 1250}},
		Window:   time.Hour,
	}, postgres.IdempotencyKey{})
	if err != nil {
		s.t.Fatal(err)
	}
	return order
}

func (s *shop) pay(order *domain.Order, payment string) {
	s.t.Helper()
	p := domain.Payment{ID: payment, OrderID: order.ID(), Amount: 2500, Currency: "EUR"}
	if _, err := s.orders.Pay(s.t.Context(), p); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) close(order *domain.Order) {
	s.t.Helper()
	_, err := s.orders.Update(s.t.Context(), order.ID(), func(o *domain.Order, _ time.Time) error {
		_, err := o.Close(domain.ByTimer, o.DueAt())
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) handle(e domain.Event) error {
	s.t.Helper()
	return s.notifier.Handle(messageOf(s.t, e))
}

func (s *shop) mustHandle(e domain.Event) {
	s.t.Helper()
	if err := s.handle(e); err != nil {
		s.t.Fatalf("Handle %s: %v", e.Type(), err)
	}
}

func (s *shop) wantMails(n int) []smtptest.Mail {
	s.t.Helper()
	taken := s.mails.Taken()
	if len(taken) != n {
		s.t.Fatalf("mails: %d, want %d", len(taken), n)
	}
	return taken
}

func (s *shop) wantCount(kind kind, result result, want float64) {
	s.t.Helper()
	if got := testutil.ToFloat64(s.notifier.count.WithLabelValues(string(kind), string(result))); got != want {
		s.t.Errorf("ordertimeout_notifications_total{%s,%s} = %v, want %v", kind, result, got, want)
	}
}

func messageOf(t *testing.T, e domain.Event) *message.Message {
	t.Helper()
	body, err := domain.EncodeEvent(e)
	if err != nil {
		t.Fatal(err)
	}
	return message.NewMessage(uuid.NewString(), body)
}

func TestBuyerGetsEachMailOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	paid, closedOrder := s.place(), s.place()
	s.pay(paid, "pay_1")
	s.close(closedOrder)
	events := []domain.Event{
		domain.OrderPaid{OrderID: paid.ID(), PaymentID: "pay_1"},
		domain.RefundDue{OrderID: paid.ID(), PaymentID: "pay_2", Amount: 2500, Currency: "EUR"},
		domain.OrderClosed{OrderID: closedOrder.ID()},
		domain.RefundDue{OrderID: closedOrder.ID(), PaymentID: "pay_3", Amount: 2500, Currency: "EUR"},
		domain.RefundDue{OrderID: closedOrder.ID(), PaymentID: "pay_4", Amount: 700, Currency: "JPY"},
	}
	for range 3 {
		for _, e := range events {
			s.mustHandle(e)
		}
	}
	ids := map[string]bool{}
	for i, mail := range s.wantMails(len(events)) {
		ids[mail.Header.Get("Message-ID")] = true
		if mail.To != "ada@buyer.example" || !strings.Contains(mail.Text, string(events[i].Order())) {
			t.Errorf("mail for %v to %s:\n%s", events[i], mail.To, mail.Text)
		}
	}
	if len(ids) != len(events) {
		t.Errorf("Message-IDs: %d, want %d", len(ids), len(events))
	}
	s.wantCount(receipt, sent, 1)
	s.wantCount(receipt, alreadySent, 2)
	s.wantCount(closed, sent, 1)
	s.wantCount(refund, sent, 3)
	s.wantCount(refund, alreadySent, 6)
	if log := s.log.String(); strings.Contains(log, "@") || strings.Count(log, "\n") != 3*len(events) {
		t.Errorf("log should have one line for each decision and no mail address:\n%s", log)
	}
}

func TestNoMailForAnOrderInAnotherState(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	pending, paid, closedOrder := s.place(), s.place(), s.place()
	s.pay(paid, "pay_1")
	s.close(closedOrder)
	for _, e := range []domain.Event{
		domain.OrderClosed{OrderID: pending.ID()},
		domain.OrderPaid{OrderID: pending.ID(), PaymentID: "pay_1"},
		domain.OrderClosed{OrderID: paid.ID()},
		domain.OrderPaid{OrderID: closedOrder.ID(), PaymentID: "pay_1"},
	} {
		s.mustHandle(e)
	}
	s.wantMails(0)
	s.wantCount(closed, skipped, 2)
	s.wantCount(receipt, skipped, 2)

	s.close(pending)
	s.mustHandle(domain.OrderClosed{OrderID: pending.ID()})
	s.wantMails(1)
}

func TestDeliveriesAtTheSameTimeMakeOneMail(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	order := s.place()
	s.close(order)
	event := domain.OrderClosed{OrderID: order.ID()}
	sending, goOn := make(chan struct{}), make(chan struct{})
	s.mails.Refuse(func(stage smtptest.Stage, _ string) *smtptest.Reply {
		if stage == smtptest.Data {
			sending <- struct{}{}
			<-goOn
		}
		return nil
	})
	first := make(chan error)
	go func() { first <- s.notifier.Handle(messageOf(t, event)) }()
	<-sending

	var others sync.WaitGroup
	for range 5 {
		others.Go(func() {
			err := s.notifier.Handle(messageOf(t, event))
			if d := domain.Decide(err, 0, nil); d.Outcome != domain.Hold {
				t.Errorf("while another one sends: %v, outcome %s, want hold", err, d.Outcome)
			}
		})
	}
	others.Wait()
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	s.mustHandle(event)
	s.wantMails(1)
	s.wantCount(closed, claimed, 5)
}

// forgetful loses the mark, as a process does that dies after the mail is out.
type forgetful struct {
	Notifications
	fail func() error
}

func (f forgetful) MarkSent(ctx context.Context, key postgres.NotificationKey) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Notifications.MarkSent(ctx, key)
}

func TestCrashAfterTheMailSendsItAgainUnderTheSameMessageID(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	s := newShop(t, func(d *Deps) {
		d.Notifications = forgetful{d.Notifications, func() error { err := crash; crash = nil; return err }}
	})
	order := s.place()
	s.close(order)
	event := domain.OrderClosed{OrderID: order.ID()}
	if err := s.handle(event); err == nil {
		t.Fatal("a mail that is not marked was reported as done")
	}
	s.wantCount(closed, unmarked, 1)
	if err := s.handle(event); !errors.Is(err, postgres.ErrClaimed) {
		t.Fatalf("before the claim ran out: %v", err)
	}
	s.exec("UPDATE notifications SET claimed_until = now() - interval '1 second'")
	s.mustHandle(event)
	s.mustHandle(event)
	mails := s.wantMails(2)
	first, second := mails[0].Header.Get("Message-ID"), mails[1].Header.Get("Message-ID")
	if want := "<closed." + string(order.ID()) + "@shop.example>"; first != want || second != want {
		t.Errorf("Message-IDs %s and %s, want twice %s", first, second, want)
	}
}

func (s *shop) exec(sql string) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), sql); err != nil {
		s.t.Fatal(err)
	}
}

func TestDatabaseThatComesBackInTimeCostsNoSecondMail(t *testing.T) {
	t.Parallel()
	failures := 3
	s := newShop(t, func(d *Deps) {
		d.Notifications = forgetful{d.Notifications, func() error {
			if failures == 0 {
				return nil
			}
			failures--
			return fmt.Errorf("restarting: %w", domain.ErrUnavailable)
		}}
	})
	order := s.place()
	s.close(order)
	s.mustHandle(domain.OrderClosed{OrderID: order.ID()})
	s.mustHandle(domain.OrderClosed{OrderID: order.ID()})
	s.wantMails(1)
}

func TestFailedSendKeepsItsMeaningAndItsTurn(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]struct {
		outcome domain.Outcome
		result  result
	}{421: {domain.Hold, unavailable}, 450: {domain.Retry, failed}, 550: {domain.Park, rejected}} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, nil)
			order := s.place()
			s.close(order)
			event := domain.OrderClosed{OrderID: order.ID()}
			s.mails.Refuse(func(stage smtptest.Stage, to string) *smtptest.Reply {
				if stage != smtptest.RcptTo {
					return nil
				}
				return &smtptest.Reply{Code: code, Text: "not " + to}
			})
			err := s.handle(event)
			if d := domain.Decide(err, 0, domain.Ladder{time.Second}); d.Outcome != want.outcome {
				t.Errorf("Handle: %v, outcome %s, want %s", err, d.Outcome, want.outcome)
			}
			s.wantCount(closed, want.result, 1)
			s.mails.Refuse(nil)
			s.mustHandle(event) // at once: the claim was given back
			s.wantMails(1)
		})
	}
}

func TestUnknownOrderClimbsTheLadder(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	err := s.handle(domain.OrderClosed{OrderID: someOrder})
	if d := domain.Decide(err, 0, domain.Ladder{time.Second}); !errors.Is(err, domain.ErrOrderNotFound) || d.Outcome != domain.Retry {
		t.Errorf("Handle: %v, outcome %s", err, d.Outcome)
	}
	s.wantCount(closed, failed, 1)
	s.wantMails(0)
}

func TestEventThatNobodyCanTellABuyerIsParked(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	order := s.place()
	s.close(order)
	bodies := map[string]string{
		"nothing":             "",
		"text":                "order closed",
		"no id":               `{"type":"order.closed","version":1}`,
		"bad id":              `{"type":"order.closed","version":1,"order_id":"7"}`,
		"newer version":       `{"type":"order.closed","version":2,"order_id":"` + string(order.ID()) + `"}`,
		"other type":          `{"type":"order.shipped","version":1,"order_id":"` + string(order.ID()) + `"}`,
		"timer":               `{"type":"order.timeout","version":1,"order_id":"` + string(order.ID()) + `"}`,
		"refund, no currency": `{"type":"payment.refund_due","version":1,"order_id":"` + string(order.ID()) + `","payment_id":"p","amount":1}`,
		"refund, negative":    `{"type":"payment.refund_due","version":1,"order_id":"` + string(order.ID()) + `","payment_id":"p","amount":-1,"currency":"EUR"}`,
		"refund, no payment":  `{"type":"payment.refund_due","version":1,"order_id":"` + string(order.ID()) + `","amount":1,"currency":"EUR"}`,
	}
	for name, body := range bodies {
		err := s.notifier.Handle(message.NewMessage(uuid.NewString(), []byte(body)))
		if d := domain.Decide(err, 0, domain.Ladder{time.Second}); d.Outcome != domain.Park {
			t.Errorf("%s: %v, outcome %s, want park", name, err, d.Outcome)
		}
	}
	s.wantCount("unknown", rejected, float64(len(bodies)))
	s.wantMails(0)
}

func TestPaymentIDCannotAddHeaders(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	order := s.place()
	s.close(order)
	s.mustHandle(domain.RefundDue{OrderID: order.ID(), PaymentID: "p>\r\nBcc: eve@evil.example\r\n\r\n<b>", Amount: 1, Currency: "EUR"})
	mail := s.wantMails(1)[0]
	for _, key := range []string{"Bcc", "Cc"} {
		if mail.Header.Get(key) != "" {
			t.Errorf("the mail has a %s:\n%s", key, mail.Raw)
		}
	}
	if len(mail.Header["Message-Id"]) != 1 || len(mail.Header["To"]) != 1 || strings.Contains(mail.HTML, "<b>") {
		t.Errorf("mail:\n%s", mail.Raw)
	}
}

func TestShutdownDoesNotBreakOffAMail(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	order := s.place()
	s.close(order)
	msg := messageOf(t, domain.OrderClosed{OrderID: order.ID()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg.SetContext(ctx)
	if err := s.notifier.Handle(msg); err != nil {
		t.Fatal(err)
	}
	s.wantMails(1)
}
