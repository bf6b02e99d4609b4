package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

// errSignature: the webhook's sender is not proven. Errors that wrap it say why.
var errSignature = errors.New("the webhook's signature cannot be accepted")

type payInput struct {
	Body paymentJSON
}

// paymentJSON takes further fields without a word: providers add some as they like,
// and refusing a webhook for that would lose a payment.
type paymentJSON struct {
	_         struct{} `additionalProperties:"true"`
	PaymentID string   `json:"payment_id" minLength:"1" maxLength:"200" pattern:"^[^\\x00-\\x1f\\x7f]+$" patternDescription:"text without control characters" doc:"The provider's id of this payment."`
	OrderID   string   `json:"order_id" format:"uuid"`
	Amount    int64    `json:"amount" minimum:"0" doc:"Captured amount in minor units."`
	Currency  string   `json:"currency" pattern:"^[A-Z]{3}$" patternDescription:"an ISO 4217 code of three upper-case letters" doc:"ISO 4217."`
}

type payOutput struct {
	Replayed string `header:"Idempotent-Replayed" doc:"\"true\" when this payment had been reported before." example:"true"`
	Body     paymentResultJSON
}

type paymentResultJSON struct {
	PaymentID    string  `json:"payment_id"`
	OrderID      string  `json:"order_id" format:"uuid"`
	OrderStatus  string  `json:"order_status" enum:"pending,paid,closed"`
	Outcome      string  `json:"outcome" enum:"accepted,refund_due" doc:"accepted: this payment paid the order. refund_due: the money was recorded and must go back."`
	RefundReason *string `json:"refund_reason" nullable:"true" doc:"order_closed or already_paid; null unless outcome is refund_due."`
}

func (h *Handler) addPay(api *httpapi.API) {
	mismatch := &domain.AmountMismatchError{Got: 1700, Want: 1750, GotCurrency: exampleCurrency, WantCurrency: exampleCurrency}
	httpapi.Add(api, httpapi.Call[payInput, payOutput]{
		Op: huma.Operation{
			OperationID: "reportPayment", Method: http.MethodPost, Path: "/v1/payments", Tags: []string{tagPayments},
			Summary: "Report a captured payment (webhook)",
			Description: "Called by the payment provider, signed by the [Standard Webhooks](https://www.standardwebhooks.com) scheme: " +
				"`webhook-signature` is `v1,` and the base64 HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>` with the shared secret. " +
				"The timestamp may be five minutes off.\n\n" +
				"Idempotent by `payment_id`: the same payment, reported again, gets the same answer and changes nothing. " +
				"Money that comes for a closed order, or for one that another payment has paid, is recorded, answered with 200, and asked to be refunded once. " +
				"For a pending order, amount and currency must be the order's total; it is accepted even shortly after `due_at` as long as the order was not closed.",
			Security: []map[string][]string{{"webhookSignature": {}}},
			Parameters: []*huma.Param{
				webhookHeader(standardwebhooks.HeaderWebhookID, "Id of this message, part of what is signed.", "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"),
				webhookHeader(standardwebhooks.HeaderWebhookTimestamp, "When it was sent, in Unix seconds.", "1767225600"),
				webhookHeader(standardwebhooks.HeaderWebhookSignature, "One or more signatures, separated by spaces.", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
			},
		},
		Verify:   h.verifySignature,
		Do:       h.pay,
		Request:  examplePayment,
		Response: paymentResultJSON{PaymentID: examplePayment.PaymentID, OrderID: exampleOrder.ID, OrderStatus: "paid", Outcome: "accepted"},
		Refusals: []httpapi.Refusal{
			{When: "The signature is missing, wrong or too old.", Err: fmt.Errorf("%w: no signature matches", errSignature)},
			{When: "No order has this id. Nothing was recorded.", Err: domain.ErrOrderNotFound},
			{When: "Amount or currency are not the order's. Nothing was recorded.", Err: mismatch},
			{When: "The payment was reported before with other data, or a value cannot be accepted.",
				Err: &domain.FieldError{Field: "payment_id", Got: "pay_1", Allowed: "the data that this payment was reported with before"}},
		},
	})
}

func webhookHeader(name, doc, example string) *huma.Param {
	return &huma.Param{
		Name: name, In: "header", Required: true, Description: doc, Example: example,
		Schema: &huma.Schema{Type: huma.TypeString},
	}
}

// verifySignature says why it refuses: none of it helps who does not know the secret.
func (h *Handler) verifySignature(r *http.Request, body []byte) error {
	err := h.webhook.Verify(body, r.Header)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, standardwebhooks.ErrRequiredHeaders):
		return fmt.Errorf("%w: webhook-id, webhook-timestamp and webhook-signature are required", errSignature)
	case errors.Is(err, standardwebhooks.ErrInvalidHeaders):
		return fmt.Errorf("%w: webhook-timestamp must be in Unix seconds", errSignature)
	case errors.Is(err, standardwebhooks.ErrMessageTooOld), errors.Is(err, standardwebhooks.ErrMessageTooNew):
		return fmt.Errorf("%w: webhook-timestamp is more than five minutes off", errSignature)
	default:
		return fmt.Errorf("%w: no signature matches", errSignature)
	}
}

func (h *Handler) pay(ctx context.Context, in *payInput) (*payOutput, error) {
	payment, err := parsePayment(in.Body)
	if err != nil {
		return nil, err
	}
	noteOrder(ctx, payment.OrderID)
	ctx, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	result, err := h.orders.Pay(ctx, payment)
	if err != nil {
		return nil, err
	}
	out := &payOutput{Body: paymentResultJSON{
		PaymentID:   payment.ID,
		OrderID:     string(result.Order.ID()),
		OrderStatus: result.Order.Status().String(),
		Outcome:     "accepted",
	}}
	if reason := string(result.Refund); reason != "" {
		out.Body.Outcome, out.Body.RefundReason = "refund_due", &reason
	}
	if result.Replayed {
		out.Replayed = replayed
	}
	return out, nil
}

// parsePayment checks the form of the currency only: captured money must be recorded,
// and refunded if need be, even in a currency that this build does not know.
func parsePayment(body paymentJSON) (domain.Payment, error) {
	id, err := domain.ParseOrderID(body.OrderID)
	if err != nil {
		return domain.Payment{}, err
	}
	p := domain.Payment{ID: body.PaymentID, OrderID: id, Amount: body.Amount, Currency: domain.Currency(body.Currency)}
	return p, p.Validate()
}
