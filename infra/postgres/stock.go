package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// Stock stores what may be promised of each SKU.
type Stock struct{ db *DB }

// NewStock returns the store of stock.
func NewStock(db *DB) *Stock { return &Stock{db: db} }

// StockLevel is one SKU's counters, in units.
type StockLevel struct {
	SKU       string
	Available *int64 // nil: unlimited, never counted
	Held      int64  // by pending orders
	Sold      int64  // by paid orders
}

// List returns levels by ascending SKU, those after the given one.
func (s *Stock) List(ctx context.Context, after string, limit int) ([]StockLevel, error) {
	return collect(ctx, s.db, scanStock, `
		SELECT sku, available, held, sold FROM stock WHERE sku > $1 ORDER BY sku LIMIT $2`, after, limit)
}

// Set makes available what can still be promised of a SKU, and creates the SKU if it
// is new. nil makes it unlimited. What pending and paid orders took stays counted, and
// what they give back later is added only while the SKU is limited.
//
// It returns a domain.FieldError for a bad SKU or number.
func (s *Stock) Set(ctx context.Context, sku string, available *int64) (StockLevel, error) {
	if err := domain.ValidateSKU("sku", sku); err != nil {
		return StockLevel{}, err
	}
	if available != nil && (*available < 0 || *available > domain.MaxAvailable) {
		return StockLevel{}, &domain.FieldError{Field: "available", Got: *available, Allowed: "0 to 1000000000000, or null for unlimited"}
	}
	var level StockLevel
	err := s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			INSERT INTO stock AS s (sku, available) VALUES ($1, $2)
			ON CONFLICT (sku) DO UPDATE SET available = excluded.available, updated_at = now()
			RETURNING sku, available, held, sold`, sku, available)
		if err != nil {
			return err
		}
		level, err = pgx.CollectExactlyOneRow(rows, scanStock)
		return err
	})
	return level, err
}

func scanStock(row pgx.CollectableRow) (l StockLevel, err error) {
	err = row.Scan(&l.SKU, &l.Available, &l.Held, &l.Sold)
	return l, err
}
