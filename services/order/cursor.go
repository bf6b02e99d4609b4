package order

import (
	"encoding/base64"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
)

// A cursor says where the next page of a list begins. It is opaque to callers, so a
// list may order by something else one day. Its first byte says which list it is of.
const (
	orderCursor = 'o'
	stockCursor = 's'
)

func encodeCursor(list byte, position []byte) *string {
	c := base64.RawURLEncoding.EncodeToString(append([]byte{list}, position...))
	return &c
}

func decodeCursor(list byte, cursor string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) < 2 || raw[0] != list {
		return nil, badCursor(cursor)
	}
	return raw[1:], nil
}

func badCursor(cursor string) error {
	return &domain.FieldError{Field: "cursor", Got: cursor, Allowed: "next_cursor of an earlier answer of this list"}
}

func encodeOrderCursor(id domain.OrderID) *string {
	raw := uuid.MustParse(string(id)) // an OrderID is a UUID
	return encodeCursor(orderCursor, raw[:])
}

// decodeOrderCursor returns an empty id for an empty cursor.
func decodeOrderCursor(cursor string) (domain.OrderID, error) {
	if cursor == "" {
		return "", nil
	}
	raw, err := decodeCursor(orderCursor, cursor)
	if err != nil {
		return "", err
	}
	id, err := uuid.FromBytes(raw)
	if err != nil {
		return "", badCursor(cursor)
	}
	return domain.OrderID(id.String()), nil
}

func encodeStockCursor(sku string) *string { return encodeCursor(stockCursor, []byte(sku)) }

// decodeStockCursor returns an empty SKU for an empty cursor.
func decodeStockCursor(cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	raw, err := decodeCursor(stockCursor, cursor)
	if err != nil {
		return "", err
	}
	if domain.ValidateSKU("cursor", string(raw)) != nil {
		return "", badCursor(cursor)
	}
	return string(raw), nil
}
