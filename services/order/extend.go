package order

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

type extendInput struct {
	ID   string `path:"id" format:"uuid" doc:"The order's id." example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"`
	Body extensionJSON
}

type extensionJSON struct {
	DueAt *time.Time `json:"due_at,omitempty" doc:"The new deadline, RFC 3339."`
	By    string     `json:"by,omitempty" minLength:"1" maxLength:"64" example:"15m" doc:"How far to move the present deadline, as a Go duration; negative moves it back."`
}

func (h *Handler) addExtend(api *httpapi.API) {
	httpapi.Add(api, httpapi.Call[extendInput, orderOutput]{
		Op: huma.Operation{
			OperationID: "extendOrder", Method: http.MethodPost, Path: "/v1/orders/{id}/extension", Tags: []string{tagOrders},
			Summary: "Move an order's deadline",
			Description: "Exactly one of `due_at` and `by`. The new deadline must be in the future and at most 90 days away. " +
				"Repeating a call with `by` moves the deadline again; with `due_at` it does not.",
		},
		Operator: true,
		Do:       h.extend,
		Request:  extensionJSON{By: "15m"},
		Response: exampleOrder,
		Refusals: []httpapi.Refusal{
			{When: "No order has this id.", Err: domain.ErrOrderNotFound},
			{When: "The order is paid or closed.", Err: domain.ErrNotPending},
			{When: badValue, Err: &domain.FieldError{Field: "by", Got: "-2h", Allowed: "a new deadline after 2026-01-01T12:00:00Z and within 2160h0m0s"}},
		},
	})
}

func (h *Handler) extend(ctx context.Context, in *extendInput) (*orderOutput, error) {
	id, err := parsePathID(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	deadline, err := parseExtension(in.Body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	order, err := h.orders.Update(ctx, id, func(order *domain.Order, now time.Time) error {
		err := order.Extend(deadline(order.DueAt()), now)
		var field *domain.FieldError
		if errors.As(err, &field) && in.Body.By != "" {
			return &domain.FieldError{Field: "by", Got: in.Body.By, Allowed: "a new deadline " + field.Allowed}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &orderOutput{Body: showOrder(order)}, nil
}

// parseExtension returns how the new deadline follows from the present one.
func parseExtension(body extensionJSON) (func(present time.Time) time.Time, error) {
	switch {
	case body.DueAt != nil && body.By != "":
		return nil, &domain.FieldError{Field: "by", Got: "due_at and by", Allowed: "exactly one of due_at and by"}
	case body.DueAt != nil:
		dueAt := body.DueAt.UTC().Truncate(time.Microsecond) // as precise as the database
		return func(time.Time) time.Time { return dueAt }, nil
	case body.By != "":
		by, err := time.ParseDuration(body.By)
		if err != nil {
			return nil, &domain.FieldError{Field: "by", Got: body.By, Allowed: "a Go duration with its unit, such as 15m or -1h30m"}
		}
		return func(present time.Time) time.Time { return present.Add(by).Truncate(time.Microsecond) }, nil
	default:
		return nil, &domain.FieldError{Field: "due_at", Got: "neither due_at nor by", Allowed: "exactly one of due_at and by"}
	}
}
