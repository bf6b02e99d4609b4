package httpapi

import (
	"encoding/base64"

	"example.com/ordertimeout/domain"
)

// Page is what every list takes.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many items an answer has at most."`
	Cursor string `query:"cursor" maxLength:"200" doc:"next_cursor of the answer before; absent for the first page."`
}

// Fetch is how many items to ask the store for: one more than are shown tells whether
// there is a next page.
func (p Page) Fetch() int { return p.Limit + 1 }

// Cut returns what is shown of up to Fetch items, and the cursor of the last of them;
// nil on the last page.
func Cut[T any](p Page, items []T, cursor func(T) *string) (shown []T, next *string) {
	if len(items) <= p.Limit {
		return items, nil
	}
	return items[:p.Limit], cursor(items[p.Limit-1])
}

// EncodeCursor says where the next page of a list begins. A cursor is opaque to callers,
// so a list may order by something else one day. list tells the lists of one interface
// apart. The cursor must not be longer than Page takes: position has 149 bytes at most.
func EncodeCursor(list byte, position []byte) *string {
	c := base64.RawURLEncoding.EncodeToString(append([]byte{list}, position...))
	return &c
}

// DecodeCursor returns the position in a cursor of this list, which is never empty, or
// nil for an empty cursor. Any other cursor is BadCursor.
func DecodeCursor(list byte, cursor string) ([]byte, error) {
	if cursor == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) < 2 || raw[0] != list {
		return nil, BadCursor(cursor)
	}
	return raw[1:], nil
}

// BadCursor refuses a cursor that no earlier answer had.
func BadCursor(cursor string) error {
	return &domain.FieldError{Field: "cursor", Got: cursor, Allowed: "next_cursor of an earlier answer of this list"}
}
