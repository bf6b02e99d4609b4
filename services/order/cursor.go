package order

import (
	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

// The lists that a cursor can be of.
const (
	orderCursor = 'o'
	stockCursor = 's'
)

func encodeOrderCursor(id domain.OrderID) *string {
	raw := uuid.MustParse(string(id)) // an OrderID is a UUID
	return httpapi.EncodeCursor(orderCursor, raw[:])
}

// decodeOrderCursor returns an empty id for an empty cursor.
func decodeOrderCursor(cursor string) (domain.OrderID, error) {
	raw, err := httpapi.DecodeCursor(orderCursor, cursor)
	if raw == nil || err != nil {
		return "", err
	}
	id, err := uuid.FromBytes(raw)
	if err != nil {
		return "", httpapi.BadCursor(cursor)
	}
	return domain.OrderID(id.String()), nil
}

func encodeStockCursor(sku string) *string { return httpapi.EncodeCursor(stockCursor, []byte(sku)) }

// decodeStockCursor returns an empty SKU for an empty cursor.
func decodeStockCursor(cursor string) (string, error) {
	raw, err := httpapi.DecodeCursor(stockCursor, cursor)
	if raw == nil || err != nil {
		return "", err
	}
	if domain.ValidateSKU("cursor", string(raw)) != nil {
		return "", httpapi.BadCursor(cursor)
	}
	return string(raw), nil
}
