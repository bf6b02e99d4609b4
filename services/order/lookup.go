package order

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

type getInput struct {
	ID string `path:"id" format:"uuid" doc:"The order's id." example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"`
}

type orderOutput struct {
	Body orderJSON
}

func (h *Handler) addGet(api *httpapi.API) {
	httpapi.Add(api, httpapi.Call[getInput, orderOutput]{
		Op: huma.Operation{
			OperationID: "getOrder", Method: http.MethodGet, Path: "/v1/orders/{id}", Tags: []string{tagOrders},
			Summary:     "Look up an order",
			Description: "Shows the order as it stands. Who knows the id can see it: ids are not secret, so keep this call behind the shop's own front end.",
		},
		Do:       h.get,
		Response: exampleOrder,
		Refusals: []httpapi.Refusal{
			{When: "No order has this id.", Err: domain.ErrOrderNotFound},
			{When: "The id is not a UUID.", Err: &domain.FieldError{Field: "id", Got: "1234", Allowed: "a UUID"}},
		},
	})
}

func (h *Handler) get(ctx context.Context, in *getInput) (*orderOutput, error) {
	id, err := parsePathID(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	order, err := h.orders.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &orderOutput{Body: showOrder(order)}, nil
}

func parsePathID(ctx context.Context, text string) (domain.OrderID, error) {
	id, err := domain.ParseOrderID(text)
	if err != nil {
		return "", &domain.FieldError{Field: "id", Got: text, Allowed: "a UUID"}
	}
	noteOrder(ctx, id)
	return id, nil
}

func noteOrder(ctx context.Context, id domain.OrderID) { httpapi.Note(ctx, "order_id", string(id)) }

type listInput struct {
	httpapi.Page

	Status string `query:"status" enum:"pending,paid,closed" doc:"Only orders that stand so."`
}

type orderListJSON struct {
	Items      []orderJSON `json:"items" nullable:"false"`
	NextCursor *string     `json:"next_cursor" nullable:"true" doc:"Opaque; null on the last page."`
}

type listOutput struct {
	Body orderListJSON
}

func (h *Handler) addList(api *httpapi.API) {
	next := *encodeOrderCursor(domain.OrderID(exampleOrder.ID))
	httpapi.Add(api, httpapi.Call[listInput, listOutput]{
		Op: huma.Operation{
			OperationID: "listOrders", Method: http.MethodGet, Path: "/v1/orders", Tags: []string{tagOrders},
			Summary: "List orders",
			Description: "Newest first. Following `next_cursor` to its end shows every order that was there at the start exactly once, " +
				"while others are placed; new ones are found by starting again.\n\n" +
				"The list shows buyers' addresses and needs no token: like looking up one order it is meant for the shop's own back end, " +
				"so do not expose it to the internet.",
		},
		Do:       h.list,
		Response: orderListJSON{Items: []orderJSON{exampleOrder}, NextCursor: &next},
		Refusals: []httpapi.Refusal{
			{When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")},
		},
	})
}

func (h *Handler) list(ctx context.Context, in *listInput) (*listOutput, error) {
	before, err := decodeOrderCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	query := postgres.ListQuery{Limit: in.Fetch(), Before: before}
	if in.Status != "" {
		if query.Status, err = domain.ParseStatus(in.Status); err != nil {
			return nil, err
		}
	}
	orders, err := h.orders.List(ctx, query)
	if err != nil {
		return nil, err
	}
	orders, next := httpapi.Cut(in.Page, orders, func(o *domain.Order) *string { return encodeOrderCursor(o.ID()) })
	items := make([]orderJSON, len(orders))
	for i, o := range orders {
		items[i] = showOrder(o)
	}
	return &listOutput{Body: orderListJSON{Items: items, NextCursor: next}}, nil
}
