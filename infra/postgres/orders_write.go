package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// lockOrder waits for the order's row and returns it with the transaction's time.
func lockOrder(ctx context.Context, tx pgx.Tx, id domain.OrderID) (*domain.Order, time.Time, error) {
	// The lines never change, so reading them beside the lock is safe.
	rows, err := tx.Query(ctx, `SELECT `+orderColumns+`, now() FROM orders o WHERE o.id = $1 FOR NO KEY UPDATE OF o`, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	var now time.Time
	order, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*domain.Order, error) {
		return scanOrderAnd(row, &now)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, time.Time{}, domain.ErrOrderNotFound
	}
	return order, now, err
}

// lockStock locks the stock of lines in the order of their SKUs and returns it with
// the transaction's time. Unknown SKUs are left out.
func lockStock(ctx context.Context, tx pgx.Tx, lines []domain.Line) (map[string]domain.Stock, time.Time, error) {
	skus := make([]string, len(lines))
	for i, l := range lines {
		skus[i] = l.SKU
	}
	rows, err := tx.Query(ctx, `
		SELECT sku, coalesce(available, 0), available IS NULL, now()
		FROM stock WHERE sku = ANY($1) ORDER BY sku FOR NO KEY UPDATE`, skus)
	if err != nil {
		return nil, time.Time{}, err
	}
	stock := make(map[string]domain.Stock, len(lines))
	var s domain.Stock
	var now time.Time
	_, err = pgx.ForEachRow(rows, []any{&s.SKU, &s.Available, &s.Unlimited, &now}, func() error {
		stock[s.SKU] = s
		return nil
	})
	return stock, now, err
}

func insertOrder(ctx context.Context, tx pgx.Tx, order *domain.Order, key IdempotencyKey) error {
	s := order.Snapshot()
	var batch pgx.Batch
	batch.Queue(`
		INSERT INTO orders (id, status, customer_id, customer_email, currency, payment_window_ms, due_at, created_at, idempotency_key, request_hash)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), $10)`,
		s.ID, s.Status.String(), s.Customer.ID, s.Customer.Email, s.Currency, s.Window.Milliseconds(), s.DueAt, s.CreatedAt, key.Key, key.Hash)
	n := len(s.Lines)
	skus, quantities, prices, held := make([]string, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i, l := range s.Lines {
		skus[i], quantities[i], prices[i], held[i] = l.SKU, l.Quantity, l.UnitPrice, l.Held
	}
	batch.Queue(`
		INSERT INTO order_lines (order_id, position, sku, quantity, unit_price, held)
		SELECT $1, position, sku, quantity, unit_price, held
		FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY AS l (sku, quantity, unit_price, held, position)`,
		s.ID, skus, quantities, prices, held)
	queueStock(&batch, order.Changes().Stock) // locked already
	if err := queueEvents(&batch, order.Changes().Events); err != nil {
		return err
	}
	return sendBatch(ctx, tx, &batch)
}

// writeChanges stores what decisions recorded about a locked order.
func writeChanges(ctx context.Context, tx pgx.Tx, order *domain.Order) error {
	changes := order.Changes()
	var batch pgx.Batch
	if changes.Order {
		s := order.Snapshot()
		batch.Queue(`
			UPDATE orders SET status = $2, due_at = $3, paid_at = $4, closed_at = $5, closed_by = nullif($6, '')
			WHERE id = $1`,
			s.ID, s.Status.String(), s.DueAt, orNull(s.PaidAt), orNull(s.ClosedAt), s.ClosedBy.String())
	}
	if len(changes.Stock) > 1 { // one row is locked by its own update
		queueStockLocks(&batch, changes.Stock)
	}
	queueStock(&batch, changes.Stock)
	if err := queueEvents(&batch, changes.Events); err != nil {
		return err
	}
	return sendBatch(ctx, tx, &batch)
}

// queueStockLocks locks rows in the order of their SKUs. An UPDATE alone would lock
// them in whatever order it finds them, and two of those can block each other.
func queueStockLocks(batch *pgx.Batch, moves []domain.StockMove) {
	skus := make([]string, len(moves))
	for i, m := range moves {
		skus[i] = m.SKU
	}
	batch.Queue(`SELECT FROM stock WHERE sku = ANY($1) ORDER BY sku FOR NO KEY UPDATE`, skus)
}

func queueStock(batch *pgx.Batch, moves []domain.StockMove) {
	if len(moves) == 0 {
		return
	}
	n := len(moves)
	skus, available, held, sold := make([]string, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i, m := range moves {
		skus[i], available[i], held[i], sold[i] = m.SKU, m.Available, m.Held, m.Sold
	}
	// A SKU that became unlimited stays unlimited: null plus anything is null.
	batch.Queue(`
		UPDATE stock s SET available = s.available + m.available, held = s.held + m.held, sold = s.sold + m.sold, updated_at = now()
		FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS m (sku, available, held, sold)
		WHERE s.sku = m.sku`, skus, available, held, sold)
}

func queueEvents(batch *pgx.Batch, events []domain.Event) error {
	for _, e := range events {
		payload, err := domain.EncodeEvent(e)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", e.Type(), err)
		}
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		var dueAt *time.Time
		if timer, ok := e.(domain.OrderTimeout); ok {
			dueAt = &timer.DueAt
		}
		batch.Queue(`INSERT INTO outbox (message_id, order_id, type, payload, due_at) VALUES ($1, $2, $3, $4, $5)`,
			id.String(), e.Order(), e.Type(), string(payload), dueAt)
	}
	return nil
}

func insertPayment(ctx context.Context, tx pgx.Tx, p domain.Payment, refund domain.RefundReason) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO payments (id, order_id, amount, currency, received_at, refund_reason)
		VALUES ($1, $2, $3, $4, now(), nullif($5, ''))`,
		p.ID, p.OrderID, p.Amount, p.Currency, string(refund))
	return err
}

// sendBatch sends every statement in one round trip.
func sendBatch(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) (err error) {
	if batch.Len() == 0 {
		return nil
	}
	results := tx.SendBatch(ctx, batch)
	defer func() {
		if closeErr := results.Close(); err == nil { // after an error it is that error once more
			err = closeErr
		}
	}()
	for range batch.Len() {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
