package order

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

type listStockInput struct {
	httpapi.Page
}

type stockListJSON struct {
	Items      []stockJSON `json:"items" nullable:"false"`
	NextCursor *string     `json:"next_cursor" nullable:"true" doc:"Opaque; null on the last page."`
}

type listStockOutput struct {
	Body stockListJSON
}

func (h *Handler) addListStock(api *httpapi.API) {
	httpapi.Add(api, httpapi.Call[listStockInput, listStockOutput]{
		Op: huma.Operation{
			OperationID: "listStock", Method: http.MethodGet, Path: "/v1/stock", Tags: []string{tagStock},
			Summary:     "List stock",
			Description: "Every SKU with what is available, held by pending orders and sold, ordered by SKU.",
		},
		Operator: true,
		Do:       h.listStock,
		Response: stockListJSON{Items: []stockJSON{exampleStock}},
		Refusals: []httpapi.Refusal{
			{When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")},
		},
	})
}

func (h *Handler) listStock(ctx context.Context, in *listStockInput) (*listStockOutput, error) {
	after, err := decodeStockCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	levels, err := h.stock.List(ctx, after, in.Fetch())
	if err != nil {
		return nil, err
	}
	levels, next := httpapi.Cut(in.Page, levels, func(l postgres.StockLevel) *string { return encodeStockCursor(l.SKU) })
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

func (h *Handler) addSetStock(api *httpapi.API) {
	httpapi.Add(api, httpapi.Call[setStockInput, stockOutput]{
		Op: huma.Operation{
			OperationID: "setStock", Method: http.MethodPut, Path: "/v1/stock/{sku}", Tags: []string{tagStock},
			Summary: "Set what is available of a SKU",
			Description: "Creates the SKU if it is new. `available` is what can be promised from now on; what pending orders hold is not part of it " +
				"and comes on top when they close unpaid.\n\n" +
				"Between limited and unlimited: units that are held stay held until their orders are paid or closed. When such an order closes, " +
				"its units come back to a limited SKU and vanish in an unlimited one. An order placed while the SKU was unlimited holds nothing and gives nothing back.",
		},
		Operator: true,
		Do:       h.setStock,
		Request:  setStockJSON{Available: exampleStock.Available},
		Response: exampleStock,
		Refusals: []httpapi.Refusal{
			{When: badValue, Err: &domain.FieldError{Field: "available", Got: -1, Allowed: "0 to 1000000000000 units, or null for unlimited"}},
		},
	})
}

func (h *Handler) setStock(ctx context.Context, in *setStockInput) (*stockOutput, error) {
	if err := domain.ValidateSKU("sku", in.SKU); err != nil {
		return nil, err
	}
	ctx, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	level, err := h.stock.Set(ctx, in.SKU, in.Body.Available)
	if err != nil {
		return nil, err
	}
	return &stockOutput{Body: showStock(level)}, nil
}
