package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

func TestEveryErrorIsAProblem(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return domain.ErrOrderNotFound })
	operator := []string{"Authorization", "Bearer " + testToken}
	id := uuid.NewString()
	for name, c := range map[string]struct {
		method, path string
		body         any
		headers      []string
		status       int
		kind         string
		header       string // name: value that the answer must have
	}{
		"unknown path":              {"GET", "/v2/orders", nil, nil, 404, "", ""},
		"unknown path with slash":   {"GET", "/v1/orders/", nil, nil, 404, "", ""},
		"unknown asset":             {"GET", "/docs/missing.js", nil, nil, 404, "", ""},
		"method on orders":          {"DELETE", "/v1/orders", nil, nil, 405, "", "Allow: GET, HEAD, POST"},
		"method on an order":        {"PUT", "/v1/orders/" + id, wish("tea", 1), nil, 405, "", "Allow: GET, HEAD"},
		"method on payments":        {"GET", "/v1/payments", nil, nil, 405, "", "Allow: POST"},
		"method on docs":            {"POST", "/docs", "{}", nil, 405, "", "Allow: GET, HEAD"},
		"method on root":            {"POST", "/", "{}", nil, 405, "", "Allow: GET, HEAD"},
		"unknown order":             {"GET", "/v1/orders/" + id, nil, nil, 404, "unknown-order", ""},
		"body is not JSON":          {"POST", "/v1/orders", "{", nil, 400, "", ""},
		"body is empty":             {"POST", "/v1/orders", "", nil, 400, "", ""},
		"body is null":              {"POST", "/v1/orders", "null", nil, 422, "invalid", ""},
		"body is a list":            {"POST", "/v1/orders", "[]", nil, 422, "invalid", ""},
		"body is nested deeply":     {"POST", "/v1/orders", strings.Repeat("[", 20000), nil, 400, "", ""},
		"body is too long":          {"POST", "/v1/orders", strings.Repeat(" ", httpapi.DefaultMaxBody+1), nil, 413, "", ""},
		"webhook is too long":       {"POST", "/v1/payments", strings.Repeat(" ", httpapi.DefaultMaxBody+1), nil, 413, "", ""},
		"body is a form":            {"POST", "/v1/orders", "a=1", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "", ""},
		"body is XML":               {"POST", "/v1/orders", "<a/>", []string{"Content-Type", "application/xml"}, 415, "", ""},
		"no token":                  {"GET", "/v1/stock", nil, nil, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"wrong token":               {"GET", "/v1/stock", nil, []string{"Authorization", "Bearer x" + testToken}, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"token as password":         {"GET", "/v1/stock", nil, []string{"Authorization", "Basic " + testToken}, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"token without scheme":      {"GET", "/v1/stock", nil, []string{"Authorization", testToken}, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"no token for an extension": {"POST", "/v1/orders/" + id + "/extension", map[string]any{"by": "1m"}, nil, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"token before body":         {"PUT", "/v1/stock/tea", "{", nil, 401, "", `Www-Authenticate: Bearer realm="operator"`},
		"no signature":              {"POST", "/v1/payments", "{}", nil, 401, "", "Www-Authenticate: StandardWebhooks"},
		"invalid parameter":         {"GET", "/v1/orders?limit=0", nil, nil, 422, "invalid", ""},
		"invalid field":             {"PUT", "/v1/stock/tea", map[string]any{"available": -1}, operator, 422, "invalid", ""},
		"asks for XML":              {"GET", "/v1/orders/" + id, nil, []string{"Accept", "application/xml"}, 404, "unknown-order", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.call(c.method, c.path, c.body, c.headers...)
			a.wantProblem(t, c.status, c.kind, "")
			if c.header == "" {
				return
			}
			header, value, _ := strings.Cut(c.header, ": ")
			if got := a.header.Get(header); got != value {
				t.Errorf("%s: got %q, want %q", header, got, value)
			}
		})
	}
}

// What the table of errors knows, whatever the call.
func TestTableOfErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"unknown":             {errors.New("pq: password is hunter2"), 500},
		"not found":           {fmt.Errorf("get: %w", domain.ErrOrderNotFound), 404},
		"not pending":         {fmt.Errorf("update: %w", domain.ErrNotPending), 409},
		"sold out":            {fmt.Errorf("place: %w", &domain.SoldOutError{SKU: "tea"}), 409},
		"field":               {fmt.Errorf("place: %w", &domain.FieldError{Field: "lines", Allowed: "some"}), 422},
		"amount":              {fmt.Errorf("pay: %w", &domain.AmountMismatchError{Got: 1}), 422},
		"unavailable":         {fmt.Errorf("%w: dial tcp", domain.ErrUnavailable), 503},
		"deadline":            {fmt.Errorf("query: %w", context.DeadlineExceeded), 503},
		"client went away":    {fmt.Errorf("query: %w", context.Canceled), httpapi.StatusClientGone},
		"permanent and alien": {domain.ErrMalformed, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := broken(t, 0, func(context.Context) error { return c.err }).call("GET", "/v1/orders", nil)
			var p problemError
			if err := json.Unmarshal(a.body, &p); err != nil {
				t.Fatal(err)
			}
			if a.status != c.status || p.Status != c.status || p.Title == "" || p.Detail == "" {
				t.Errorf("got %d %+v", a.status, p)
			}
			if c.status >= 500 && strings.Contains(p.Detail, c.err.Error()) {
				t.Errorf("the answer tells the inside: %s", p.Detail)
			}
		})
	}
}

func TestUnavailableStoreIsA503ThatCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return fmt.Errorf("%w: connection refused", domain.ErrUnavailable) })
	id := uuid.NewString()
	report := encode(payment("p-1", orderJSON{ID: id, Currency: "EUR"}))
	for _, a := range []answer{
		s.call("POST", "/v1/orders", wish("tea", 1)),
		s.call("GET", "/v1/orders/"+id, nil),
		s.call("GET", "/v1/orders", nil),
		s.report(report),
		s.asOperator("POST", "/v1/orders/"+id+"/extension", map[string]any{"by": "1m"}),
		s.asOperator("GET", "/v1/stock", nil),
		s.asOperator("PUT", "/v1/stock/tea", map[string]any{"available": 1}),
	} {
		p := a.wantProblem(t, 503, "", "")
		if a.header.Get("Retry-After") == "" || strings.Contains(p.Detail, "refused") {
			t.Errorf("header %v, problem %+v", a.header, p)
		}
	}
	if n := len(s.log.entries("request cannot be served now")); n != 7 {
		t.Errorf("%d warnings", n)
	}
}

func TestFailureTellsNothingButIsLogged(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return errors.New("column hunter2 does not exist") })
	a := s.call("GET", "/v1/orders", nil, "X-Request-ID", "from-the-proxy")
	a.wantProblem(t, 500, "", "")
	if strings.Contains(string(a.body), "hunter2") {
		t.Errorf("the answer tells the inside: %s", a.body)
	}
	entries := s.log.entries("request failed")
	if len(entries) != 1 || entries[0]["request_id"] != "from-the-proxy" || !strings.Contains(entries[0]["error"].(string), "hunter2") {
		t.Errorf("log: %v", entries)
	}
}

func TestSlowStoreIsA503(t *testing.T) {
	t.Parallel()
	s := broken(t, 20*time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("query: %w", ctx.Err())
	})
	for _, a := range []answer{s.call("GET", "/v1/orders", nil), s.call("POST", "/v1/orders", wish("tea", 1))} {
		a.wantProblem(t, 503, "", "")
		if a.header.Get("Retry-After") == "" {
			t.Errorf("header: %v", a.header)
		}
	}
}

// A client that goes away does not cut off what it asked for.
func TestClientThatLeavesDoesNotInterruptAPlacement(t *testing.T) {
	t.Parallel()
	begun, left, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s := broken(t, time.Minute, func(ctx context.Context) error {
		close(begun)
		<-left
		ended <- ctx.Err()
		return domain.ErrUnavailable
	})
	gone := make(chan struct{})
	front := httptest.NewServer(watched(s.handler, gone))
	defer front.Close()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/orders", strings.NewReader(string(encode(wish("tea", 1)))))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-begun
		cancel()
		<-gone
		close(left)
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Fatalf("got an answer: %d", resp.StatusCode)
	}
	if err := <-ended; err != nil {
		t.Errorf("the placement was interrupted: %v", err)
	}
}

// watched closes gone when the server sees that the client of a request has left.
func watched(next http.Handler, gone chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(gone) })
		next.ServeHTTP(w, r)
	})
}

func TestLongInputIsNotRepeatedInFull(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return nil })
	body := wish("tea", 1)
	body["currency"] = strings.Repeat("E", 10_000)
	a := s.call("POST", "/v1/orders", body)
	a.wantProblem(t, 422, "invalid", "currency")
	if len(a.body) > 1000 {
		t.Errorf("an answer of %d bytes", len(a.body))
	}
	if a = s.call("POST", "/v1/orders", strings.Repeat("x", 10_000)); a.status != 400 || len(a.body) > 1000 {
		t.Errorf("%d with %d bytes", a.status, len(a.body))
	}
}

func TestHeadHasNoBody(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return domain.ErrOrderNotFound })
	for path, status := range map[string]int{"/v1/orders/" + uuid.NewString(): 404, "/nothing": 404, "/docs": 200} {
		if a := s.call("HEAD", path, nil); a.status != status || len(a.body) != 0 {
			t.Errorf("%s: %d with %d bytes", path, a.status, len(a.body))
		}
	}
}
