package postgres_test

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// With stock for all of them it is the key alone that keeps equal requests apart, and
// those that lost give back what they had taken.
func TestIdempotencyKeyHoldsWithPlentyOfStock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	for round := range 5 {
		key := postgres.IdempotencyKey{Key: strconv.Itoa(round), Hash: []byte("request")}
		var fresh atomic.Int64
		together(10, func(int) {
			_, replayed, err := w.orders.Place(ctx, placement(time.Hour, line("a", 2)), key)
			if err != nil {
				t.Error(err)
			} else if !replayed {
				fresh.Add(1)
			}
		})
		if fresh.Load() != 1 {
			t.Errorf("%d orders are the first", fresh.Load())
		}
	}
	if orders, held := w.count(`SELECT count(*) FROM orders`), w.count(`SELECT held FROM stock`); orders != 5 || held != 10 {
		t.Errorf("%d orders hold %d units, want 5 and 10", orders, held)
	}
	if n := w.count(`SELECT count(*) FROM outbox`); n != 5 {
		t.Errorf("%d timers, want 5", n)
	}
	w.conserved(map[string]int64{"a": 100})
}

// Different requests with one key at the same time, on SKUs that share no lock: one is
// placed and all others are told.
func TestKeyForDifferentRequestsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const racers = 8
	initial := map[string]int64{}
	for i := range racers {
		initial["sku-"+strconv.Itoa(i)] = 10
		w.setStock("sku-"+strconv.Itoa(i), 10)
	}
	var placed, told atomic.Int64
	together(racers, func(i int) {
		key := postgres.IdempotencyKey{Key: "k", Hash: []byte{byte(i)}}
		_, replayed, err := w.orders.Place(ctx, placement(time.Hour, line("sku-"+strconv.Itoa(i), 1)), key)
		switch {
		case errors.Is(err, postgres.ErrKeyReused):
			told.Add(1)
		case err != nil || replayed:
			t.Errorf("replayed %v, %v", replayed, err)
		default:
			placed.Add(1)
		}
	})
	if placed.Load() != 1 || told.Load() != racers-1 {
		t.Errorf("%d placed, %d told", placed.Load(), told.Load())
	}
	if n := w.count(`SELECT sum(held)::bigint FROM stock`); n != 1 {
		t.Errorf("%d units held, want 1", n)
	}
	w.conserved(initial)
}

// One payment id for two orders at the same moment pays one of them; the other is told
// which field is wrong and stays pending.
func TestPaymentIDForTwoOrdersAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	for round := range 10 {
		orders := []*domain.Order{w.place(time.Hour, line("a", 1)), w.place(time.Hour, line("a", 1))}
		var paid, refused atomic.Int64
		together(2, func(i int) {
			_, err := w.orders.Pay(ctx, pay(orders[i], "p"+strconv.Itoa(round)))
			field, ok := errors.AsType[*domain.FieldError](err)
			switch {
			case err == nil:
				paid.Add(1)
			case ok && field.Field == "payment_id":
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
		if paid.Load() != 1 || refused.Load() != 1 {
			t.Errorf("%d paid, %d refused", paid.Load(), refused.Load())
		}
	}
	if n := w.count(`SELECT count(*) FROM orders WHERE status = 'paid'`); n != 10 {
		t.Errorf("%d orders are paid, want 10", n)
	}
	if n := w.count(`SELECT count(*) FROM outbox WHERE type = 'order.paid'`); n != 10 {
		t.Errorf("%d receipts, want 10", n)
	}
	w.conserved(map[string]int64{"a": 100})
}

// A second payment of a paid order is captured money too: it goes back, once.
func TestSecondPaymentGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1)
	order := w.place(time.Hour, line("a", 1))
	var accepted atomic.Int64
	together(5, func(i int) {
		result, err := w.orders.Pay(ctx, pay(order, "p"+strconv.Itoa(i)))
		switch {
		case err != nil:
			t.Error(err)
		case result.Refund == domain.NoRefund:
			accepted.Add(1)
		case result.Refund != domain.RefundAlreadyPaid:
			t.Errorf("refund %q", result.Refund)
		}
	})
	if accepted.Load() != 1 {
		t.Errorf("%d payments accepted", accepted.Load())
	}
	refunds := w.count(`SELECT count(*) FROM outbox WHERE type = 'payment.refund_due'`)
	if rows := w.count(`SELECT count(*) FROM payments WHERE refund_reason = 'already_paid'`); rows != 4 || refunds != 4 {
		t.Errorf("%d payments to refund and %d messages, want 4 of each", rows, refunds)
	}
}
