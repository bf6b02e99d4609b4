package order

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestPaymentPaysTheOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	o := s.place(wish("tea", 2))
	body := payment("p-1", o)
	body["provider_extra"] = map[string]any{"risk": 3} // providers add fields as they like
	var result paymentResultJSON
	s.report(body).into(t, 200, &result)
	if result != (paymentResultJSON{PaymentID: "p-1", OrderID: o.ID, OrderStatus: "paid", Outcome: "accepted"}) {
		t.Errorf("got %+v", result)
	}
	var paid orderJSON
	s.call("GET", "/v1/orders/"+o.ID, nil).into(t, 200, &paid)
	if paid.Status != "paid" || paid.PaidAt == nil || paid.PaidAt.Location() != time.UTC {
		t.Errorf("order: %+v", paid)
	}
	if level := s.stockOf("tea"); *level.Available != 8 || level.Held != 0 || level.Sold != 2 {
		t.Errorf("stock: %+v", level)
	}
}

func TestFiveEqualWebhooksAtOncePayOnce(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	o := s.place(wish("tea", 2))
	content := encode(payment("p-1", o))
	answers := make([]answer, 5)
	inParallel(5, func(i int) {
		a, err := s.try("POST", "/v1/payments", content, signature(t, content, time.Now())...)
		if err != nil {
			t.Error(err)
		}
		answers[i] = a
	})
	fresh := 0
	for _, a := range answers {
		if a.status != 200 || !bytes.Equal(a.body, answers[0].body) {
			t.Errorf("%d %s next to %s", a.status, a.body, answers[0].body)
		}
		if a.header.Get("Idempotent-Replayed") == "" {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers say that they were the first", fresh)
	}
	if n := s.count("SELECT count(*) FROM outbox WHERE type = 'order.paid'"); n != 1 {
		t.Errorf("%d receipts", n)
	}
	if level := s.stockOf("tea"); level.Sold != 2 {
		t.Errorf("stock: %+v", level)
	}
}

func TestMoneyForAClosedOrderIsRefundedOnce(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.closed()
	s.place(wish("tea", 1)) // the freed unit is promised to somebody else
	var first []byte
	for range 3 {
		a := s.report(payment("p-late", o))
		var result paymentResultJSON
		a.into(t, 200, &result)
		if result.Outcome != "refund_due" || result.RefundReason == nil || *result.RefundReason != "order_closed" || result.OrderStatus != "closed" {
			t.Errorf("got %s", a.body)
		}
		if first == nil {
			first = a.body
		}
		if !bytes.Equal(a.body, first) {
			t.Errorf("the repetition got %s, the first %s", a.body, first)
		}
	}
	if n := s.count("SELECT count(*) FROM outbox WHERE type = 'payment.refund_due'"); n != 1 {
		t.Errorf("%d refunds", n)
	}
	if level := s.stockOf("tea"); *level.Available != 0 || level.Held != 1 || level.Sold != 0 {
		t.Errorf("stock: %+v", level)
	}
}

func TestSecondPaymentOfAPaidOrderIsRefunded(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	s.report(payment("p-1", o)).want(t, 200)
	var result paymentResultJSON
	s.report(payment("p-2", o)).into(t, 200, &result)
	if result.Outcome != "refund_due" || *result.RefundReason != "already_paid" || result.OrderStatus != "paid" {
		t.Errorf("got %+v", result)
	}
	// The first is still the one that paid.
	s.report(payment("p-1", o)).into(t, 200, &result)
	if result.Outcome != "accepted" || result.RefundReason != nil {
		t.Errorf("got %+v", result)
	}
}

func TestWrongAmountOrCurrencyRecordsNothing(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	amount, currency, both := payment("p-1", o), payment("p-1", o), payment("p-1", o)
	amount["amount"], both["amount"] = 499, 499
	currency["currency"], both["currency"] = "USD", "USD"

	p := s.report(amount).wantProblem(t, 422, "amount-mismatch", "amount")
	if len(p.Errors) != 1 || p.Errors[0].Value != float64(499) || !strings.Contains(p.Errors[0].Message, "500") {
		t.Errorf("problem: %+v", p)
	}
	p = s.report(currency).wantProblem(t, 422, "amount-mismatch", "currency")
	if len(p.Errors) != 1 || p.Errors[0].Value != "USD" || !strings.Contains(p.Errors[0].Message, "EUR") {
		t.Errorf("problem: %+v", p)
	}
	if p = s.report(both).wantProblem(t, 422, "amount-mismatch", "currency"); len(p.Errors) != 2 {
		t.Errorf("problem: %+v", p)
	}
	if n := s.count("SELECT count(*) FROM payments"); n != 0 {
		t.Errorf("%d payments", n)
	}
	s.report(payment("p-1", o)).want(t, 200) // nothing stands in its way
}

func TestSamePaymentWithOtherDataIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 2)
	o, other := s.place(wish("tea", 1)), s.place(wish("tea", 1))
	s.report(payment("p-1", o)).want(t, 200)
	amount := payment("p-1", o)
	amount["amount"] = 1
	s.report(amount).wantProblem(t, 422, "invalid", "payment_id")
	s.report(payment("p-1", other)).wantProblem(t, 422, "invalid", "payment_id")
}

func TestBadPaymentNamesTheField(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	unknown := orderJSON{ID: uuid.NewString(), TotalAmount: 1, Currency: "EUR"}
	s.report(payment("p-1", unknown)).wantProblem(t, 404, "unknown-order", "")
	for name, c := range map[string]struct {
		field string
		value any
	}{
		"no payment id":         {"payment_id", ""},
		"long payment id":       {"payment_id", strings.Repeat("p", 201)},
		"NUL in payment id":     {"payment_id", "p\x00"},
		"order id is no UUID":   {"order_id", "12"},
		"order id is a number":  {"order_id", 12},
		"negative amount":       {"amount", -1},
		"amount is a fraction":  {"amount", 1.5},
		"amount beyond 64 bits": {"amount", 1e30},
		"amount is text":        {"amount", "1"},
		"currency is too short": {"currency", "EU"},
	} {
		t.Run(name, func(t *testing.T) {
			body := payment("p-1", unknown)
			body[c.field] = c.value
			s.report(body).wantProblem(t, 422, "invalid", c.field)
		})
	}
}

func TestUnprovenWebhookIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	content := encode(payment("p-1", o))
	now := time.Now()
	good := signature(t, content, now)
	without := func(name string) []string {
		var headers []string
		for i := 0; i < len(good); i += 2 {
			if good[i] != name {
				headers = append(headers, good[i], good[i+1])
			}
		}
		return headers
	}
	with := func(name, value string) []string { return append(without(name), name, value) }
	for name, c := range map[string]struct {
		body    any
		headers []string
		detail  string
	}{
		"no headers":           {content, nil, "required"},
		"no id":                {content, without("webhook-id"), "required"},
		"no timestamp":         {content, without("webhook-timestamp"), "required"},
		"no signature":         {content, without("webhook-signature"), "required"},
		"wrong signature":      {content, with("webhook-signature", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="), "no signature"},
		"other version":        {content, with("webhook-signature", strings.Replace(good[5], "v1,", "v2,", 1)), "no signature"},
		"empty signature":      {content, with("webhook-signature", "v1,"), "no signature"},
		"timestamp is text":    {content, with("webhook-timestamp", "yesterday"), "Unix seconds"},
		"timestamp is stale":   {content, signature(t, content, now.Add(-6*time.Minute)), "five minutes"},
		"timestamp is ahead":   {content, signature(t, content, now.Add(6*time.Minute)), "five minutes"},
		"timestamp changed":    {content, with("webhook-timestamp", "1"), "five minutes"},
		"other id":             {content, with("webhook-id", "msg_other"), "no signature"},
		"replayed, changed":    {bytes.Replace(content, []byte(`"p-1"`), []byte(`"p-2"`), 1), good, "no signature"},
		"replayed, with space": {append([]byte(" "), content...), good, "no signature"},
		"not even JSON":        {"{", good, "no signature"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.call("POST", "/v1/payments", c.body, c.headers...)
			p := a.wantProblem(t, 401, "", "")
			if a.header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
			if !strings.Contains(p.Detail, c.detail) {
				t.Errorf("detail %q does not tell %q", p.Detail, c.detail)
			}
		})
	}
	if n := s.count("SELECT count(*) FROM payments"); n != 0 {
		t.Errorf("%d payments", n)
	}
	s.call("POST", "/v1/payments", content, with("webhook-signature", "v1,AAAA "+good[5])...).want(t, 200) // a rotated secret: one of several
}
