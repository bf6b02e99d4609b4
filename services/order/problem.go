package order

import (
	"errors"
	"fmt"
	"net/http"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

// soldOutJSON is what a sold-out problem has beside what every problem has.
type soldOutJSON struct {
	SKU       string `json:"sku" example:"tea-black" doc:"Sold out: which SKU."`
	Requested int64  `json:"requested" example:"3" doc:"Sold out: how many units were asked for."`
	Available int64  `json:"available" example:"1" doc:"Sold out: how many units there are."`
}

// problemFor is the table from errors to HTTP answers, as far as httpapi does not have
// it already; nil for what it does not know.
func problemFor(err error) *httpapi.Problem {
	var (
		soldOut  *domain.SoldOutError
		mismatch *domain.AmountMismatchError
	)
	switch {
	case errors.Is(err, errSignature):
		return httpapi.NewProblem(http.StatusUnauthorized, err.Error()).Header("WWW-Authenticate", "StandardWebhooks")
	case errors.As(err, &soldOut):
		p := httpapi.NewProblem(http.StatusConflict, soldOut.Error()).Kind("sold-out")
		p.Extra = soldOutJSON{SKU: soldOut.SKU, Requested: soldOut.Requested, Available: soldOut.Available}
		return p
	case errors.Is(err, domain.ErrNotPending):
		return httpapi.NewProblem(http.StatusConflict, err.Error()).Kind("not-pending")
	case errors.Is(err, postgres.ErrKeyReused):
		return httpapi.NewProblem(http.StatusUnprocessableEntity, "this idempotency key was used with another request").Kind("idempotency-key-reused").
			Field("Idempotency-Key", nil, "a new key for a new request, or the same request for the same key")
	case errors.As(err, &mismatch):
		return mismatchProblem(mismatch)
	default:
		return nil
	}
}

func mismatchProblem(e *domain.AmountMismatchError) *httpapi.Problem {
	p := httpapi.NewProblem(http.StatusUnprocessableEntity, e.Error()+"; nothing was recorded").Kind("amount-mismatch")
	if e.Got != e.Want {
		p = p.Field("amount", e.Got, fmt.Sprintf("allowed: %d, the order's total", e.Want))
	}
	if e.GotCurrency != e.WantCurrency {
		p = p.Field("currency", string(e.GotCurrency), fmt.Sprintf("allowed: %s, the order's currency", e.WantCurrency))
	}
	return p
}
