package domain

import (
	"fmt"
	"regexp"
)

// Stock is what may still be promised of one SKU.
type Stock struct {
	SKU       string
	Available int64 // meaningless when Unlimited
	Unlimited bool  // never counted, so nothing is held and nothing comes back
}

// StockMove is one change to the counters of a SKU, in units.
type StockMove struct {
	SKU                   string
	Available, Held, Sold int64
}

// MaxAvailable is the most units of one SKU that can be offered.
const MaxAvailable = 1_000_000_000_000

var skuForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ValidateSKU returns a FieldError for field unless sku is well-formed.
func ValidateSKU(field, sku string) error {
	if !skuForm.MatchString(sku) {
		return &FieldError{Field: field, Got: clip(sku, 64), Allowed: "1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"}
	}
	return nil
}

// hold takes the units of every line, or of none.
func hold(lines []Line, stock map[string]Stock) ([]Line, []StockMove, error) {
	held := make([]Line, len(lines))
	var moves []StockMove
	for i, l := range lines {
		s, known := stock[l.SKU]
		if !known {
			return nil, nil, &FieldError{Field: fmt.Sprintf("lines[%d].sku", i), Got: l.SKU, Allowed: "a sku that the shop stocks"}
		}
		held[i] = l
		held[i].Held = 0
		if s.Unlimited {
			continue
		}
		if s.Available < l.Quantity {
			return nil, nil, &SoldOutError{SKU: l.SKU, Requested: l.Quantity, Available: s.Available}
		}
		held[i].Held = l.Quantity
		moves = append(moves, StockMove{SKU: l.SKU, Available: -l.Quantity, Held: l.Quantity})
	}
	return held, moves, nil
}

// release gives back exactly what the lines hold.
func release(lines []Line) []StockMove {
	return moveHeld(lines, func(n int64) StockMove { return StockMove{Available: n, Held: -n} })
}

// sell turns exactly what the lines hold into sold units.
func sell(lines []Line) []StockMove {
	return moveHeld(lines, func(n int64) StockMove { return StockMove{Held: -n, Sold: n} })
}

func moveHeld(lines []Line, move func(held int64) StockMove) []StockMove {
	var moves []StockMove
	for _, l := range lines {
		if l.Held == 0 {
			continue
		}
		m := move(l.Held)
		m.SKU = l.SKU
		moves = append(moves, m)
	}
	return moves
}
