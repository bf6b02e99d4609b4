package order

import (
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// orderJSON is how an order is shown.
type orderJSON struct {
	ID            string       `json:"id" format:"uuid" doc:"UUIDv7."`
	Status        string       `json:"status" enum:"pending,paid,closed" doc:"Paid and closed are final."`
	Customer      customerJSON `json:"customer"`
	Lines         []lineJSON   `json:"lines" nullable:"false"`
	TotalAmount   int64        `json:"total_amount" doc:"Sum of all lines in minor units of the currency."`
	Currency      string       `json:"currency" doc:"ISO 4217."`
	PaymentWindow string       `json:"payment_window" doc:"The window chosen when the order was placed, as a Go duration."`
	DueAt         time.Time    `json:"due_at" doc:"The order is closed at this time, or shortly after it, unless it is paid."`
	CreatedAt     time.Time    `json:"created_at"`
	PaidAt        *time.Time   `json:"paid_at" nullable:"true" doc:"Null unless paid."`
	ClosedAt      *time.Time   `json:"closed_at" nullable:"true" doc:"Null unless closed."`
	ClosedBy      *string      `json:"closed_by" nullable:"true" doc:"What closed it, one of timer, sweep and replay; null unless closed."`
}

type customerJSON struct {
	ID    string `json:"id" minLength:"1" maxLength:"200" pattern:"^[^\\x00-\\x1f\\x7f]+$" patternDescription:"text without control characters" doc:"The shop's own id of the buyer."`
	Email string `json:"email" format:"email" maxLength:"254" doc:"Where the buyer is told: one address without a name."`
}

type lineJSON struct {
	SKU       string `json:"sku" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit" doc:"Each SKU once in an order."`
	Quantity  int64  `json:"quantity" minimum:"1" maximum:"1000000"`
	UnitPrice int64  `json:"unit_price" minimum:"0" maximum:"1000000000000" doc:"In minor units of the order's currency, such as cents."`
}

func showOrder(o *domain.Order) orderJSON {
	s := o.Snapshot()
	v := orderJSON{
		ID:            string(s.ID),
		Status:        s.Status.String(),
		Customer:      customerJSON{ID: s.Customer.ID, Email: s.Customer.Email},
		Lines:         make([]lineJSON, len(s.Lines)),
		TotalAmount:   s.TotalAmount(),
		Currency:      string(s.Currency),
		PaymentWindow: domain.DelayName(s.Window),
		DueAt:         s.DueAt.UTC(),
		CreatedAt:     s.CreatedAt.UTC(),
		PaidAt:        showTime(s.PaidAt),
		ClosedAt:      showTime(s.ClosedAt),
	}
	for i, l := range s.Lines {
		v.Lines[i] = lineJSON{SKU: l.SKU, Quantity: l.Quantity, UnitPrice: l.UnitPrice}
	}
	if by := s.ClosedBy.String(); by != "" {
		v.ClosedBy = &by
	}
	return v
}

func showTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// stockJSON is how the stock of a SKU is shown.
type stockJSON struct {
	SKU       string `json:"sku"`
	Available *int64 `json:"available" nullable:"true" doc:"Units that can still be promised; null is unlimited."`
	Held      int64  `json:"held" doc:"Units that pending orders hold. They are not in available."`
	Sold      int64  `json:"sold" doc:"Units that paid orders took."`
}

func showStock(l postgres.StockLevel) stockJSON {
	return stockJSON{SKU: l.SKU, Available: l.Available, Held: l.Held, Sold: l.Sold}
}
