package order

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/infra/httpapi"
)

const (
	tagOrders   = "Orders"
	tagPayments = "Payments"
	tagStock    = "Stock"

	badValue = "A value cannot be accepted." // why a call is refused, where nothing else needs saying
)

const apiDescription = `Places orders, takes their payments, and closes those that are not paid in time.

**Conventions.** Money is an integer in minor units with an ISO 4217 code. Times are RFC 3339 in UTC and come from the database's clock. Durations are Go's (` + "`30m`" + `). Ids are UUIDv7. Lists are ` + "`{\"items\": [...], \"next_cursor\": ...}`" + `.

` + httpapi.AboutErrors + `

**Access.** Calls with a lock need ` + "`Authorization: Bearer`" + ` with the operator's token; the payment webhook needs the provider's signature. Placing and looking up orders need neither: they are for the shop's own back end, which knows its buyers.`

// webhookSecurity describes the scheme that a call names in its Security.
var webhookSecurity = map[string]*huma.SecurityScheme{
	"webhookSignature": {Type: "apiKey", In: "header", Name: "webhook-signature", Description: "Standard Webhooks signature over id, timestamp and body."},
}

// The examples of the document.
const (
	exampleSKU      = "tea-black"
	exampleCurrency = "EUR"
)

var (
	exampleCreated = time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)

	examplePlacement = placeOrderJSON{
		Customer:      customerJSON{ID: "c-42", Email: "ada@example.com"},
		Currency:      exampleCurrency,
		Lines:         []lineJSON{{SKU: exampleSKU, Quantity: 2, UnitPrice: 500}, {SKU: "mug-blue", Quantity: 1, UnitPrice: 750}},
		PaymentWindow: "30m",
	}

	exampleOrder = orderJSON{
		ID:            "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d",
		Status:        "pending",
		Customer:      examplePlacement.Customer,
		Lines:         examplePlacement.Lines,
		TotalAmount:   1750,
		Currency:      exampleCurrency,
		PaymentWindow: "30m",
		DueAt:         exampleCreated.Add(30 * time.Minute),
		CreatedAt:     exampleCreated,
	}

	examplePayment = paymentJSON{PaymentID: "pay_1", OrderID: exampleOrder.ID, Amount: 1750, Currency: exampleCurrency}

	exampleAvailable = int64(98)
	exampleStock     = stockJSON{SKU: exampleSKU, Available: &exampleAvailable, Held: 2}
)
