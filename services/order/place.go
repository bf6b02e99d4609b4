package order

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"golang.org/x/text/currency"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

type placeInput struct {
	IdempotencyKey string `header:"Idempotency-Key" pattern:"^[!-~]{1,255}$" patternDescription:"1 to 255 visible ASCII characters" doc:"Makes the call safe to repeat: a new value, such as a UUID, for each order that the buyer wants." example:"5f0c7a4e-6d0e-4d5b-9c55-0a4f2f6b1d11"`
	Body           placeOrderJSON
}

// placeOrderJSON is also what an idempotency key stands for: its JSON is hashed and
// the hash is stored. A field that is added must be omitted when empty, or the
// repetition of a call made before the update would be refused.
type placeOrderJSON struct {
	Customer      customerJSON `json:"customer"`
	Currency      string       `json:"currency" pattern:"^[A-Z]{3}$" patternDescription:"an ISO 4217 code of three upper-case letters" doc:"ISO 4217."`
	Lines         []lineJSON   `json:"lines" minItems:"1" maxItems:"100" nullable:"false"`
	PaymentWindow string       `json:"payment_window,omitempty" minLength:"1" maxLength:"32" doc:"How long the buyer has to pay: one of the windows that the shop offers, as a Go duration. Absent means the first."`
}

type placeOutput struct {
	Location string `header:"Location" doc:"Where the order can be looked up."`
	Replayed string `header:"Idempotent-Replayed" doc:"\"true\" when an earlier call with this key had placed the order." example:"true"`
	Body     orderJSON
}

// replayed is the value of the header Idempotent-Replayed.
const replayed = "true"

// Resolve refuses an Idempotency-Key that is there but empty, or there twice: taking it
// for none would place the order again at every repetition.
func (in *placeInput) Resolve(ctx huma.Context) []error {
	var values []string
	ctx.EachHeader(func(name, value string) {
		if strings.EqualFold(name, "Idempotency-Key") {
			values = append(values, value)
		}
	})
	if len(values) == 0 || (len(values) == 1 && values[0] != "") {
		return nil
	}
	return []error{&huma.ErrorDetail{
		Location: "header.Idempotency-Key", Value: strings.Join(values, ", "),
		Message: "expected one value of 1 to 255 visible ASCII characters, or no such header",
	}}
}

func (h *Handler) addPlace(api *httpapi.API) {
	httpapi.Add(api, httpapi.Call[placeInput, placeOutput]{
		Op: huma.Operation{
			OperationID: "placeOrder", Method: http.MethodPost, Path: "/v1/orders", Tags: []string{tagOrders},
			DefaultStatus: http.StatusCreated,
			Summary:       "Place an order",
			Description: fmt.Sprintf("Holds the stock of all lines, or of none, and starts the time that the buyer has to pay. "+
				"Payment windows: %s; the first is the default.\n\n"+
				"Send an `Idempotency-Key` with every order. The same key and an equal body give the same order, as it stands now, "+
				"however often and however concurrently the call is made; equal means equal values, not equal bytes. "+
				"**Without a key, two equal requests place two orders**, each with its own hold on the stock.", h.windows),
		},
		Do:       h.place,
		Request:  examplePlacement,
		Response: exampleOrder,
		Refusals: []httpapi.Refusal{
			{When: "A line asks for more than is available. Nothing was held.", Err: &domain.SoldOutError{SKU: exampleSKU, Requested: 3, Available: 1}},
			{When: badValue, Err: &domain.FieldError{Field: "lines[0].sku", Got: "tea-blue", Allowed: "a sku that the shop stocks"}},
			{When: "The idempotency key was used with another body.", Err: postgres.ErrKeyReused},
		},
	})
}

func (h *Handler) place(ctx context.Context, in *placeInput) (*placeOutput, error) {
	placement, asked, err := h.placement(in.Body)
	if err != nil {
		return nil, err
	}
	key, err := idempotencyKey(in.IdempotencyKey, in.Body, asked)
	if err != nil {
		return nil, err
	}
	ctx, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	order, again, err := h.orders.Place(ctx, placement, key)
	if err != nil {
		return nil, err
	}
	noteOrder(ctx, order.ID())
	out := &placeOutput{Location: "/v1/orders/" + string(order.ID()), Body: showOrder(order)}
	if again {
		out.Replayed = replayed
	}
	return out, nil
}

// placement returns the domain's view of a request. asked is the window that it names,
// 0 where it leaves the choice to the shop.
func (h *Handler) placement(body placeOrderJSON) (p domain.Placement, asked time.Duration, err error) {
	code, err := parseCurrency(body.Currency)
	if err != nil {
		return p, 0, err
	}
	window, err := h.windows.Parse(body.PaymentWindow)
	if err != nil {
		return p, 0, err
	}
	if body.PaymentWindow != "" {
		asked = window
	}
	id, err := uuid.NewV7()
	if err != nil {
		return p, 0, fmt.Errorf("new order id: %w", err)
	}
	lines := make([]domain.Line, len(body.Lines))
	for i, l := range body.Lines {
		lines[i] = domain.Line{SKU: l.SKU, Quantity: l.Quantity, UnitPrice: l.UnitPrice}
	}
	p = domain.Placement{
		ID:       domain.OrderID(id.String()),
		Customer: domain.Customer{ID: body.Customer.ID, Email: body.Customer.Email},
		Currency: code,
		Lines:    lines,
		Window:   window,
	}
	return p, asked, p.Validate()
}

// parseCurrency returns a FieldError unless text is a code that ISO 4217 knows.
func parseCurrency(text string) (domain.Currency, error) {
	code, err := domain.ParseCurrency(text)
	if err != nil {
		return "", err
	}
	if _, err := currency.ParseISO(text); err != nil {
		return "", &domain.FieldError{Field: "currency", Got: text, Allowed: "a code that ISO 4217 knows, such as EUR"}
	}
	return code, nil
}

// idempotencyKey hashes what the buyer asked for: the parsed request, so that spelling
// does not count, and not the window that was chosen for him, so that a repetition
// after the shop changed its default is still the same request.
func idempotencyKey(key string, body placeOrderJSON, asked time.Duration) (postgres.IdempotencyKey, error) {
	if key == "" {
		return postgres.IdempotencyKey{}, nil
	}
	if asked != 0 {
		body.PaymentWindow = domain.DelayName(asked)
	}
	canonical, err := json.Marshal(body)
	if err != nil {
		return postgres.IdempotencyKey{}, fmt.Errorf("hash request: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return postgres.IdempotencyKey{Key: key, Hash: sum[:]}, nil
}
