package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// Orders stores orders. Every change goes through a decision of the domain on the
// locked row, and is written with its stock and its messages in one transaction.
type Orders struct{ db *DB }

// NewOrders returns the store of orders.
func NewOrders(db *DB) *Orders { return &Orders{db: db} }

// IdempotencyKey makes a placement safe to repeat. The zero value is none.
type IdempotencyKey struct {
	Key  string
	Hash []byte // of the request: the same key must come with the same request
}

// ErrKeyReused says: the idempotency key was used for a different request.
var ErrKeyReused = errors.New("idempotency key was used for a different request")

// Place decides and stores a new order. With a key that placed an order before it
// returns that order and true: any number of equal requests, also at the same time,
// make one order and one hold.
//
// It returns what domain.Place returns, ErrKeyReused, or domain.ErrUnavailable.
func (s *Orders) Place(ctx context.Context, p domain.Placement, key IdempotencyKey) (*domain.Order, bool, error) {
	if err := p.Validate(); err != nil {
		return nil, false, err
	}
	if earlier, err := s.byKey(ctx, key); earlier != nil || err != nil {
		return earlier, earlier != nil, err
	}
	var order *domain.Order
	err := s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		stock, now, err := lockStock(ctx, tx, p.Lines)
		if err != nil {
			return err
		}
		if order, err = domain.Place(p, stock, now); err != nil {
			return err
		}
		return insertOrder(ctx, tx, order, key)
	})
	var soldOut *domain.SoldOutError
	if violates(err, "orders_idempotency_key") || errors.As(err, &soldOut) {
		// A twin of this request was faster: it has the key, or the last units.
		if earlier, keyErr := s.byKey(ctx, key); earlier != nil || keyErr != nil {
			return earlier, earlier != nil, keyErr
		}
	}
	if err != nil {
		return nil, false, err
	}
	return order.Settled(), false, nil
}

// Get returns domain.ErrOrderNotFound when there is no such order.
func (s *Orders) Get(ctx context.Context, id domain.OrderID) (*domain.Order, error) {
	orders, err := collect(ctx, s.db, scanOrder, `SELECT `+orderColumns+` FROM orders o WHERE o.id = $1`, id)
	if err != nil {
		return nil, err
	}
	if len(orders) == 0 {
		return nil, domain.ErrOrderNotFound
	}
	return orders[0], nil
}

// ListQuery says which orders to list.
type ListQuery struct {
	Status domain.Status  // zero: all
	Limit  int            // at most this many
	Before domain.OrderID // exclusive; empty: from the newest
}

// List returns orders by descending id, which is from the newest: ids are UUIDv7.
func (s *Orders) List(ctx context.Context, q ListQuery) ([]*domain.Order, error) {
	return collect(ctx, s.db, scanOrder, `
		SELECT `+orderColumns+` FROM orders o
		WHERE ($1 = '' OR o.status = $1) AND ($2 = '' OR o.id < nullif($2, '')::uuid)
		ORDER BY o.id DESC LIMIT $3`, q.Status.String(), string(q.Before), q.Limit)
}

// Update locks one order, lets decide change it and commits what it recorded, all or
// nothing. now is the database's time. decide must not do I/O and may run again on
// fresh state. When it returns an error nothing is written and the error is returned
// unchanged; when it records nothing, nothing is written.
//
// It returns the order as it is after the commit, domain.ErrOrderNotFound, or
// domain.ErrUnavailable, after which the change may have happened all the same.
func (s *Orders) Update(ctx context.Context, id domain.OrderID, decide func(order *domain.Order, now time.Time) error) (*domain.Order, error) {
	var order *domain.Order
	err := s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		var now time.Time
		if order, now, err = lockOrder(ctx, tx, id); err != nil {
			return err
		}
		if err := decide(order, now); err != nil {
			return err
		}
		return writeChanges(ctx, tx, order)
	})
	if err != nil {
		return nil, err
	}
	return order.Settled(), nil
}

// PaymentResult is what became of a payment.
type PaymentResult struct {
	Order    *domain.Order
	Refund   domain.RefundReason
	Replayed bool // this payment had been reported before
}

// Pay decides and records a payment. A payment ID that was recorded before returns
// what was decided then, and changes nothing.
//
// It returns what Order.Pay returns, a domain.FieldError for a payment ID that came
// with other data before, domain.ErrOrderNotFound, or domain.ErrUnavailable.
func (s *Orders) Pay(ctx context.Context, p domain.Payment) (PaymentResult, error) {
	if err := p.Validate(); err != nil {
		return PaymentResult{}, err
	}
	var result PaymentResult
	err := s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		order, now, err := lockOrder(ctx, tx, p.OrderID) // equal payments queue up here
		if err != nil {
			return err
		}
		result = PaymentResult{Order: order}
		if result.Refund, result.Replayed, err = recordedPayment(ctx, tx, p); err != nil || result.Replayed {
			return err
		}
		if result.Refund, err = order.Pay(p, now); err != nil {
			return err
		}
		if err := insertPayment(ctx, tx, p, result.Refund); err != nil {
			return err
		}
		return writeChanges(ctx, tx, order)
	})
	if violates(err, "payments_pkey") { // the same ID came for another order at this moment
		return PaymentResult{}, paymentReused(p)
	}
	if err != nil {
		return PaymentResult{}, err
	}
	result.Order = result.Order.Settled()
	return result, nil
}

func (s *Orders) byKey(ctx context.Context, key IdempotencyKey) (*domain.Order, error) {
	if key.Key == "" {
		return nil, nil
	}
	type keyed struct {
		id   domain.OrderID
		hash []byte
	}
	found, err := collect(ctx, s.db, func(row pgx.CollectableRow) (k keyed, err error) {
		err = row.Scan(&k.id, &k.hash)
		return k, err
	}, `SELECT id::text, request_hash FROM orders WHERE idempotency_key = $1`, key.Key)
	switch {
	case err != nil || len(found) == 0:
		return nil, err
	case !bytes.Equal(found[0].hash, key.Hash):
		return nil, ErrKeyReused
	}
	return s.Get(ctx, found[0].id)
}

const orderColumns = `
	o.id::text, o.status, o.customer_id, o.customer_email, o.currency, o.payment_window_ms,
	o.due_at, o.created_at, o.paid_at, o.closed_at, coalesce(o.closed_by, ''),
	array(SELECT l.sku FROM order_lines l WHERE l.order_id = o.id ORDER BY l.position),
	array(SELECT l.quantity FROM order_lines l WHERE l.order_id = o.id ORDER BY l.position),
	array(SELECT l.unit_price FROM order_lines l WHERE l.order_id = o.id ORDER BY l.position),
	array(SELECT l.held FROM order_lines l WHERE l.order_id = o.id ORDER BY l.position)`

func scanOrder(row pgx.CollectableRow) (*domain.Order, error) { return scanOrderAnd(row) }

// scanOrderAnd scans orderColumns, and into more whatever columns follow them.
func scanOrderAnd(row pgx.CollectableRow, more ...any) (*domain.Order, error) {
	var (
		s                           domain.Snapshot
		status, closedBy            string
		windowMS                    int64
		paidAt, closedAt            *time.Time
		skus                        []string
		quantities, prices, holding []int64
	)
	err := row.Scan(append([]any{
		&s.ID, &status, &s.Customer.ID, &s.Customer.Email, &s.Currency, &windowMS,
		&s.DueAt, &s.CreatedAt, &paidAt, &closedAt, &closedBy,
		&skus, &quantities, &prices, &holding,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	if s.Status, err = domain.ParseStatus(status); err != nil {
		return nil, err
	}
	if closedBy != "" {
		if s.ClosedBy, err = domain.ParseClosedBy(closedBy); err != nil {
			return nil, err
		}
	}
	s.Window = time.Duration(windowMS) * time.Millisecond
	s.PaidAt, s.ClosedAt = orZero(paidAt), orZero(closedAt)
	for i, sku := range skus {
		s.Lines = append(s.Lines, domain.Line{SKU: sku, Quantity: quantities[i], UnitPrice: prices[i], Held: holding[i]})
	}
	return domain.Rehydrate(s)
}

// recordedPayment returns what was decided when this payment was first reported.
func recordedPayment(ctx context.Context, tx pgx.Tx, p domain.Payment) (domain.RefundReason, bool, error) {
	seen := p
	var refund domain.RefundReason
	err := tx.QueryRow(ctx, `
		SELECT order_id::text, amount, currency, coalesce(refund_reason, '')
		FROM payments WHERE id = $1`, p.ID).Scan(&seen.OrderID, &seen.Amount, &seen.Currency, &refund)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return domain.NoRefund, false, nil
	case err != nil:
		return domain.NoRefund, false, err
	case seen != p:
		return domain.NoRefund, false, paymentReused(p)
	}
	return refund, true, nil
}

func paymentReused(p domain.Payment) error {
	return &domain.FieldError{Field: "payment_id", Got: p.ID, Allowed: "an id that was not used for another order, amount or currency"}
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
