package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const webhookSecret = "whsec_ZW5kLXRvLWVuZC10ZXN0cy1vbmx5LXNlY3JldA=="

// client gives every request a connection that may be reused, and an end.
var client = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// Order is the part of the representation that tests look at.
type Order struct {
	ID       string     `json:"id"`
	Status   string     `json:"status"`
	DueAt    time.Time  `json:"due_at"`
	ClosedAt *time.Time `json:"closed_at"`
	ClosedBy *string    `json:"closed_by"`
	Total    int64      `json:"total_amount"`
}

// Line of a placement.
type Line struct {
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity"`
	UnitPrice int64  `json:"unit_price"`
}

// Call sends a request to the order service; a nil out ignores the body. Any answer is
// no error: its status is returned.
func (s *Shop) Call(method, path string, body, out any, headers ...string) (int, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(context.Background(), method, "http://"+s.API+path, bytes.NewReader(encoded))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+OperatorToken)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err
	}
	if out != nil && response.StatusCode < 300 {
		err = json.Unmarshal(content, out)
	}
	return response.StatusCode, err
}

// SetStock makes units of a SKU available; nil is unlimited.
func (s *Shop) SetStock(sku string, available *int64) {
	s.t.Helper()
	s.must(s.Call(http.MethodPut, "/v1/stock/"+sku, map[string]any{"available": available}, nil))(http.StatusOK)
}

// Place places an order and fails the test unless it is taken.
func (s *Shop) Place(window string, lines ...Line) Order {
	s.t.Helper()
	order, status, err := s.TryPlace(window, lines...)
	s.must(status, err)(http.StatusCreated)
	return order
}

// TryPlace places an order.
func (s *Shop) TryPlace(window string, lines ...Line) (Order, int, error) {
	var order Order
	status, err := s.Call(http.MethodPost, "/v1/orders", map[string]any{
		"customer": map[string]string{"id": "c-1", "email": "buyer@example.com"},
		"currency": "EUR", "lines": lines, "payment_window": window,
	}, &order)
	return order, status, err
}

// Get looks an order up.
func (s *Shop) Get(id string) Order {
	s.t.Helper()
	var order Order
	s.must(s.Call(http.MethodGet, "/v1/orders/"+id, nil, &order))(http.StatusOK)
	return order
}

// PaymentAnswer is what the webhook answers.
type PaymentAnswer struct {
	Outcome      string `json:"outcome"`
	RefundReason string `json:"refund_reason"`
}

// Pay reports a captured payment of an order's total, signed as the provider does.
func (s *Shop) Pay(order Order, paymentID string) (PaymentAnswer, int, error) {
	var answer PaymentAnswer
	body := map[string]any{"payment_id": paymentID, "order_id": order.ID, "amount": order.Total, "currency": "EUR"}
	encoded, err := json.Marshal(body)
	if err != nil {
		return answer, 0, err
	}
	hook, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		return answer, 0, err
	}
	id, now := "msg_"+uuid.NewString(), time.Now()
	signature, err := hook.Sign(id, now, encoded)
	if err != nil {
		return answer, 0, err
	}
	status, err := s.Call(http.MethodPost, "/v1/payments", body, &answer,
		"webhook-id", id, "webhook-timestamp", fmt.Sprint(now.Unix()), "webhook-signature", signature)
	return answer, status, err
}

func (s *Shop) must(status int, err error) func(want int) {
	return func(want int) {
		s.t.Helper()
		if err != nil || status != want {
			s.t.Fatalf("status %d, %v; want %d", status, err, want)
		}
	}
}

func get(url string) error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return errors.New(string(body))
	}
	return err
}

// MetricsText returns the text of a service's metrics.
func (p *Process) MetricsText() string {
	p.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+p.Metrics+"/metrics", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(body)
}
