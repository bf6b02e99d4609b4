package order

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
)

type listStockInput struct {
	Page
}

type stockListJSON struct {
	Items      []stockJSON `json:"items" nullable:"false"`
	NextCursor *string     `json:"next_cursor" nullable:"true" doc:"Opaque; null on the last page."`
}

type listStockOutput struct {
	Body stockListJSON
}

func (h *Handler) addListStock(api huma.API) {
	add(h, api, call[listStockInput, listStockOutput]{
		op: huma.Operation{
			OperationID: "listStock", Method: http.MethodGet, Path: "/v1/stock", Tags: []string{tagStock},
			Summary:     "List stock",
			Description: "Every SKU with what is available, held by pending orders and sold, ordered by SKU.",
		},
		operator: true,
		do:       h.listStock,
		response: stockListJSON{Items: []stockJSON{exampleStock}},
		refusals: []refusal{
			{"A parameter cannot be accepted.", badCursor("abc")},
		},
	})
}

func (h *Handler) listStock(ctx context.Context, in *listStockInput) (*listStockOutput, error) {
	after, err := decodeStockCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	levels, err := h.stock.List(ctx, after, in.Limit+1) // one more tells whether there is a next page
	if err != nil {
		return nil, err
	}
	var next *string
	if len(levels) > in.Limit {
		levels = levels[:in.Limit]
		next = encodeStockCursor(levels[in.Limit-1].SKU)
	}
	items := make([]stockJSON, len(levels))
	for i, l := range levels {
		items[i] = showStock(l)
	}
	return &listStockOutput{Body: stockListJSON{Items: items, NextCursor: next}}, nil
}

type setStockInput struct {
	SKU  string `path:"sku" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit" example:"tea-black"`
	Body setStockJSON
}

type setStockJSON struct {
	Available *int64 `json:"available" nullable:"true" minimum:"0" maximum:"1000000000000" doc:"Units that can be promised from now on; null is unlimited."`
}

type stockOutput struct {
	Body stockJSON
}

func (h *Handler) addSetStock(api huma.API) {
	add(h, api, call[setStockInput, stockOutput]{
		op: huma.Operation{
			OperationID: "setStock", Method: http.MethodPut, Path: "/v1/stock/{sku}", Tags: []string{tagStock},
			Summary: "Set what is available of a SKU",
			Description: "Creates the SKU if it is new. `available` is what can be promised from now on; what pending orders hold is not part of it " +
				"and comes on top when they close unpaid.\n\n" +
				"Between limited and unlimited: units that are held stay held until their orders are paid or closed. When such an order closes, " +
				"its units come back to a limited SKU and vanish in an unlimited one. An order placed while the SKU was unlimited holds nothing and gives nothing back.",
		},
		operator: true,
		do:       h.setStock,
		request:  setStockJSON{Available: exampleStock.Available},
		response: exampleStock,
		refusals: []refusal{
			{badValue, &domain.FieldError{Field: "available", Got: -1, Allowed: "0 to 1000000000000 units, or null for unlimited"}},
		},
	})
}

func (h *Handler) setStock(ctx context.Context, in *setStockInput) (*stockOutput, error) {
	if err := domain.ValidateSKU("sku", in.SKU); err != nil {
		return nil, err
	}
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	level, err := h.stock.Set(ctx, in.SKU, in.Body.Available)
	if err != nil {
		return nil, err
	}
	return &stockOutput{Body: showStock(level)}, nil
}
