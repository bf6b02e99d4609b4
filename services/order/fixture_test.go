package order

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

const (
	testToken  = "operator-token-for-tests"
	testSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
)

var testConfig = Config{
	Addr: ":0", OperatorToken: testToken, WebhookSecret: testSecret,
	Windows: domain.Windows{30 * time.Minute, 10 * time.Minute, time.Millisecond},
}

// shop is a running order service with its store.
type shop struct {
	t        *testing.T
	url      string
	handler  *Handler
	db       *postgres.DB
	orders   *postgres.Orders
	registry *prometheus.Registry
	log      *logBuffer
}

// openShop starts an order service over a database of its own.
func openShop(t *testing.T) *shop {
	t.Helper()
	db := postgrestest.New(t)
	orders := postgres.NewOrders(db)
	s := serve(t, Deps{Orders: orders, Stock: postgres.NewStock(db)})
	s.db, s.orders = db, orders
	return s
}

// serve starts an order service over the given stores.
func serve(t *testing.T, deps Deps) *shop {
	t.Helper()
	return serveAs(t, testConfig, deps)
}

func serveAs(t *testing.T, cfg Config, deps Deps) *shop {
	t.Helper()
	log, registry := &logBuffer{}, prometheus.NewRegistry()
	deps.Log = slog.New(slog.NewJSONHandler(log, nil))
	deps.Metrics = registry
	deps.Version = "test"
	handler, err := NewHandler(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return &shop{t: t, url: server.URL, handler: handler, registry: registry, log: log}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// call sends one request. body may be nil, text or bytes as they are, or anything
// that becomes JSON; headers are names and values in turn.
func (s *shop) call(method, path string, body any, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *shop) try(method, path string, body any, headers ...string) (answer, error) {
	req, err := http.NewRequest(method, s.url+path, bytes.NewReader(encode(body)))
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, content}, err
}

func encode(body any) []byte {
	switch b := body.(type) {
	case nil:
		return nil
	case string:
		return []byte(b)
	case []byte:
		return b
	}
	content, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return content
}

// asOperator calls with the operator's token.
func (s *shop) asOperator(method, path string, body any) answer {
	s.t.Helper()
	return s.call(method, path, body, "Authorization", "Bearer "+testToken)
}

// stocked sets what is available of a SKU; a negative number is unlimited.
func (s *shop) stocked(sku string, available int64) {
	s.t.Helper()
	body := map[string]any{"available": available}
	if available < 0 {
		body["available"] = nil
	}
	s.asOperator("PUT", "/v1/stock/"+sku, body).want(s.t, 200)
}

func (s *shop) stockOf(sku string) stockJSON {
	s.t.Helper()
	var list stockListJSON
	s.asOperator("GET", "/v1/stock?limit=200", nil).into(s.t, 200, &list)
	for _, level := range list.Items {
		if level.SKU == sku {
			return level
		}
	}
	s.t.Fatalf("sku %s is not in stock", sku)
	return stockJSON{}
}

func (s *shop) place(body any, headers ...string) orderJSON {
	s.t.Helper()
	var o orderJSON
	s.call("POST", "/v1/orders", body, headers...).into(s.t, 201, &o)
	return o
}

// closed places an order of one tea and closes it as its timer would.
func (s *shop) closed() orderJSON {
	s.t.Helper()
	body := wish("tea", 1)
	body["payment_window"] = "1ms"
	o := s.place(body)
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := s.orders.Update(context.Background(), domain.OrderID(o.ID), func(order *domain.Order, now time.Time) error {
			_, err := order.Close(domain.ByTimer, now)
			return err
		})
		var early *domain.NotDueError
		if err == nil {
			return o
		}
		if !errors.As(err, &early) || time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// wish is a body that places one line at 500 minor units each.
func wish(sku string, quantity int64) map[string]any {
	return map[string]any{
		"customer": map[string]any{"id": "c-1", "email": "ada@example.com"},
		"currency": "EUR",
		"lines":    []any{map[string]any{"sku": sku, "quantity": quantity, "unit_price": 500}},
	}
}

func payment(id string, o orderJSON) map[string]any {
	return map[string]any{"payment_id": id, "order_id": o.ID, "amount": o.TotalAmount, "currency": o.Currency}
}

// report sends a webhook as the provider would.
func (s *shop) report(body any) answer {
	s.t.Helper()
	content := encode(body)
	return s.call("POST", "/v1/payments", content, signature(s.t, content, time.Now())...)
}

func signature(t *testing.T, content []byte, at time.Time) []string {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	id := "msg_" + uuid.NewString()
	sign, err := hook.Sign(id, at, content)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"webhook-id", id, "webhook-timestamp", strconv.FormatInt(at.Unix(), 10), "webhook-signature", sign}
}

func (a answer) want(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status: got %d, want %d; body %s", a.status, status, a.body)
	}
}

func (a answer) into(t *testing.T, status int, v any) {
	t.Helper()
	a.want(t, status)
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Fatalf("content type: got %q", got)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
}

// problemError is any problem as it came.
type problemError struct {
	httpapi.Problem
	soldOutJSON
}

// wantProblem checks that the answer is a whole problem, and names field unless that
// is empty.
func (a answer) wantProblem(t *testing.T, status int, kind, field string) problemError {
	t.Helper()
	a.want(t, status)
	if got := a.header.Get("Content-Type"); got != httpapi.ProblemContentType {
		t.Fatalf("content type: got %q, want %q; body %s", got, httpapi.ProblemContentType, a.body)
	}
	var p problemError
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	if p.Status != status || p.Title != http.StatusText(status) || p.Detail == "" {
		t.Fatalf("problem is not whole: %s", a.body)
	}
	if p.RequestID == "" || p.RequestID != a.header.Get("X-Request-ID") {
		t.Fatalf("request id: problem has %q, header has %q", p.RequestID, a.header.Get("X-Request-ID"))
	}
	if got := strings.TrimPrefix(p.Type, "urn:problem-type:"); got != kind {
		t.Fatalf("kind: got %q, want %q; body %s", got, kind, a.body)
	}
	if field == "" {
		return p
	}
	for _, e := range p.Errors {
		if e.Field == field && e.Message != "" {
			return p
		}
	}
	t.Fatalf("field %q is not named in %s", field, a.body)
	return p
}

func (s *shop) count(query string) int {
	s.t.Helper()
	var n int
	if err := s.db.Pool().QueryRow(context.Background(), query).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// logBuffer is a log that tests can read while it is written.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Write(p)
}

// entries returns the logged objects with this message.
func (b *logBuffer) entries(message string) []map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []map[string]any
	for line := range bytes.Lines(b.lines.Bytes()) {
		entry := map[string]any{}
		if err := json.Unmarshal(line, &entry); err != nil {
			panic(fmt.Sprintf("log line %q: %v", line, err))
		}
		if entry["msg"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// brokenStore is a store whose every call does the same.
type brokenStore struct {
	fail func(context.Context) error
}

func (b brokenStore) Place(ctx context.Context, _ domain.Placement, _ postgres.IdempotencyKey) (*domain.Order, bool, error) {
	return nil, false, b.fail(ctx)
}

func (b brokenStore) Get(ctx context.Context, _ domain.OrderID) (*domain.Order, error) {
	return nil, b.fail(ctx)
}

func (b brokenStore) List(ctx context.Context, _ postgres.ListQuery) ([]*domain.Order, error) {
	return nil, b.fail(ctx)
}

func (b brokenStore) Update(ctx context.Context, _ domain.OrderID, _ func(*domain.Order, time.Time) error) (*domain.Order, error) {
	return nil, b.fail(ctx)
}

func (b brokenStore) Pay(ctx context.Context, _ domain.Payment) (postgres.PaymentResult, error) {
	return postgres.PaymentResult{}, b.fail(ctx)
}

type brokenStock struct {
	fail func(context.Context) error
}

func (b brokenStock) List(ctx context.Context, _ string, _ int) ([]postgres.StockLevel, error) {
	return nil, b.fail(ctx)
}

func (b brokenStock) Set(ctx context.Context, _ string, _ *int64) (postgres.StockLevel, error) {
	return postgres.StockLevel{}, b.fail(ctx)
}

// broken serves an order service whose stores do nothing but fail.
func broken(t *testing.T, timeout time.Duration, fail func(context.Context) error) *shop {
	t.Helper()
	return serve(t, Deps{Orders: brokenStore{fail}, Stock: brokenStock{fail}, Timeout: timeout})
}
