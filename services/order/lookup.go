package order

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

type getInput struct {
	ID string `path:"id" format:"uuid" doc:"The order's id." example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"`
}

type orderOutput struct {
	Body orderJSON
}

func (h *Handler) addGet(api huma.API) {
	add(h, api, call[getInput, orderOutput]{
		op: huma.Operation{
			OperationID: "getOrder", Method: http.MethodGet, Path: "/v1/orders/{id}", Tags: []string{tagOrders},
			Summary:     "Look up an order",
			Description: "Shows the order as it stands. Who knows the id can see it: ids are not secret, so keep this call behind the shop's own front end.",
		},
		do:       h.get,
		response: exampleOrder,
		refusals: []refusal{
			{"No order has this id.", domain.ErrOrderNotFound},
			{"The id is not a UUID.", &domain.FieldError{Field: "id", Got: "1234", Allowed: "a UUID"}},
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
	requestInfo(ctx).orderID = id
	return id, nil
}

// Page is what every list takes.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many items an answer has at most."`
	Cursor string `query:"cursor" maxLength:"200" doc:"next_cursor of the answer before; absent for the first page."`
}

type listInput struct {
	Page

	Status string `query:"status" enum:"pending,paid,closed" doc:"Only orders that stand so."`
}

type orderListJSON struct {
	Items      []orderJSON `json:"items" nullable:"false"`
	NextCursor *string     `json:"next_cursor" nullable:"true" doc:"Opaque; null on the last page."`
}

type listOutput struct {
	Body orderListJSON
}

func (h *Handler) addList(api huma.API) {
	next := *encodeOrderCursor(domain.OrderID(exampleOrder.ID))
	add(h, api, call[listInput, listOutput]{
		op: huma.Operation{
			OperationID: "listOrders", Method: http.MethodGet, Path: "/v1/orders", Tags: []string{tagOrders},
			Summary: "List orders",
			Description: "Newest first. Following `next_cursor` to its end shows every order that was there at the start exactly once, " +
				"while others are placed; new ones are found by starting again.\n\n" +
				"The list shows buyers' addresses and needs no token: like looking up one order it is meant for the shop's own back end, " +
				"so do not expose it to the internet.",
		},
		do:       h.list,
		response: orderListJSON{Items: []orderJSON{exampleOrder}, NextCursor: &next},
		refusals: []refusal{
			{"A parameter cannot be accepted.", badCursor("abc")},
		},
	})
}

func (h *Handler) list(ctx context.Context, in *listInput) (*listOutput, error) {
	before, err := decodeOrderCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	query := postgres.ListQuery{Limit: in.Limit + 1, Before: before} // one more tells whether there is a next page
	if in.Status != "" {
		if query.Status, err = domain.ParseStatus(in.Status); err != nil {
			return nil, err
		}
	}
	orders, err := h.orders.List(ctx, query)
	if err != nil {
		return nil, err
	}
	var next *string
	if len(orders) > in.Limit {
		orders = orders[:in.Limit]
		next = encodeOrderCursor(orders[in.Limit-1].ID())
	}
	items := make([]orderJSON, len(orders))
	for i, o := range orders {
		items[i] = showOrder(o)
	}
	return &listOutput{Body: orderListJSON{Items: items, NextCursor: next}}, nil
}
