package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// lockOrders locks the orders of ids that nobody else has locked, in the order of their
// ids, and returns them with the transaction's time.
func lockOrders(ctx context.Context, tx pgx.Tx, ids []string) (map[domain.OrderID]*domain.Order, time.Time, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+orderColumns+`, now() FROM orders o WHERE o.id = ANY($1::text[]::uuid[]) ORDER BY o.id
		FOR NO KEY UPDATE OF o SKIP LOCKED`, ids)
	if err != nil {
		return nil, time.Time{}, err
	}
	var now time.Time
	orders := make(map[domain.OrderID]*domain.Order, len(ids))
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*domain.Order, error) {
		return scanOrderAnd(row, &now)
	})
	for _, order := range all {
		orders[order.ID()] = order
	}
	return orders, now, err
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

// writeChanges stores what decisions recorded about locked orders, each of them once in
// orders. It is one statement for each table, however many orders there are.
func writeChanges(ctx context.Context, tx pgx.Tx, orders ...*domain.Order) error {
	var changed []domain.Snapshot
	var moves []domain.StockMove
	var events []domain.Event
	for _, order := range orders {
		changes := order.Changes()
		if changes.Order {
			changed = append(changed, order.Snapshot())
		}
		moves = append(moves, changes.Stock...)
		events = append(events, changes.Events...)
	}
	var batch pgx.Batch
	queueOrders(&batch, changed)
	moves = sumMoves(moves)
	if len(moves) > 1 { // one row is locked by its own update
		queueStockLocks(&batch, moves)
	}
	queueStock(&batch, moves)
	if err := queueEvents(&batch, events); err != nil {
		return err
	}
	return sendBatch(ctx, tx, &batch)
}

func queueOrders(batch *pgx.Batch, orders []domain.Snapshot) {
	n := len(orders)
	if n == 0 {
		return
	}
	ids, statuses, closedBy := make([]string, n), make([]string, n), make([]string, n)
	dueAt, paidAt, closedAt := make([]time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
	for i, s := range orders {
		ids[i], statuses[i], closedBy[i] = string(s.ID), s.Status.String(), s.ClosedBy.String()
		dueAt[i], paidAt[i], closedAt[i] = s.DueAt, orNull(s.PaidAt), orNull(s.ClosedAt)
	}
	batch.Queue(`
		UPDATE orders o SET status = c.status, due_at = c.due_at, paid_at = c.paid_at, closed_at = c.closed_at, closed_by = nullif(c.closed_by, '')
		FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::text[])
			AS c (id, status, due_at, paid_at, closed_at, closed_by)
		WHERE o.id = c.id::uuid`, ids, statuses, dueAt, paidAt, closedAt, closedBy)
}

// sumMoves returns one move for each SKU: an UPDATE that met a row twice would change
// it once.
func sumMoves(moves []domain.StockMove) []domain.StockMove {
	sums := make(map[string]domain.StockMove, len(moves))
	for _, m := range moves {
		sum := sums[m.SKU]
		sums[m.SKU] = domain.StockMove{SKU: m.SKU, Available: sum.Available + m.Available, Held: sum.Held + m.Held, Sold: sum.Sold + m.Sold}
	}
	return slices.Collect(maps.Values(sums))
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
	n := len(events)
	if n == 0 {
		return nil
	}
	ids, orders, types, payloads, dueAt := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]*time.Time, n)
	for i, e := range events {
		payload, err := domain.EncodeEvent(e)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", e.Type(), err)
		}
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		ids[i], orders[i], types[i], payloads[i] = id.String(), string(e.Order()), string(e.Type()), string(payload)
		if timer, ok := e.(domain.OrderTimeout); ok {
			dueAt[i] = &timer.DueAt
		}
	}
	batch.Queue(`
		INSERT INTO outbox (message_id, order_id, type, payload, due_at)
		SELECT message_id::uuid, order_id::uuid, type, payload::json, due_at
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) AS e (message_id, order_id, type, payload, due_at)`,
		ids, orders, types, payloads, dueAt)
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
