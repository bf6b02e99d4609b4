package order

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

var uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestPlaceHoldsStockAndShowsTheOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	s.stocked("gift-card", -1)
	body := wish("tea", 3)
	body["lines"] = append(body["lines"].([]any), map[string]any{"sku": "gift-card", "quantity": 2, "unit_price": 100})
	body["payment_window"] = "600s"

	a := s.call("POST", "/v1/orders", body)
	var o orderJSON
	a.into(t, 201, &o)
	if !uuidV7.MatchString(o.ID) {
		t.Errorf("id %q is not a UUIDv7", o.ID)
	}
	if got := a.header.Get("Location"); got != "/v1/orders/"+o.ID {
		t.Errorf("Location: %q", got)
	}
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Error("a new order is marked as replayed")
	}
	if o.Status != "pending" || o.TotalAmount != 1700 || o.Currency != "EUR" || o.PaymentWindow != "10m" || o.Customer.Email != "ada@example.com" {
		t.Errorf("order: %s", a.body)
	}
	if got := o.DueAt.Sub(o.CreatedAt); got != 10*time.Minute {
		t.Errorf("due %s after creation", got)
	}
	for _, part := range []string{`"paid_at":null`, `"closed_at":null`, `"closed_by":null`, `Z","created_at":"`} {
		if !strings.Contains(string(a.body), part) {
			t.Errorf("%s is missing in %s", part, a.body)
		}
	}
	if level := s.stockOf("tea"); *level.Available != 7 || level.Held != 3 || level.Sold != 0 {
		t.Errorf("stock: %+v", level)
	}
	if level := s.stockOf("gift-card"); level.Available != nil || level.Held != 0 {
		t.Errorf("unlimited stock: %+v", level)
	}

	var again orderJSON
	s.call("GET", a.header.Get("Location"), nil).into(t, 200, &again)
	if fmt.Sprint(again) != fmt.Sprint(o) {
		t.Errorf("looked up %+v, placed %+v", again, o)
	}
}

func TestDefaultWindowIsTheFirst(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	if o := s.place(wish("tea", 1)); o.PaymentWindow != "30m" {
		t.Errorf("window: %s", o.PaymentWindow)
	}
}

func TestSoldOutNamesSKURequestedAndAvailable(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	s.stocked("mug", 2)
	body := wish("tea", 1)
	body["lines"] = append(body["lines"].([]any), map[string]any{"sku": "mug", "quantity": 3, "unit_price": 100})
	p := s.call("POST", "/v1/orders", body).wantProblem(t, 409, "sold-out", "")
	if p.SKU != "mug" || p.Requested != 3 || p.Available != 2 {
		t.Errorf("problem: %+v", p)
	}
	if level := s.stockOf("tea"); *level.Available != 10 || level.Held != 0 {
		t.Errorf("the other line was held: %+v", level)
	}
	// Zero is a number too.
	s.stocked("mug", 0)
	a := s.call("POST", "/v1/orders", wish("mug", 1))
	a.wantProblem(t, 409, "sold-out", "")
	if !strings.Contains(string(a.body), `"available":0`) {
		t.Errorf("available is missing in %s", a.body)
	}
}

func TestBadPlacementNamesTheField(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	set := func(path string, value any) map[string]any {
		body := wish("tea", 1)
		switch {
		case strings.HasPrefix(path, "customer."):
			body["customer"].(map[string]any)[strings.TrimPrefix(path, "customer.")] = value
		case strings.HasPrefix(path, "lines[0]."):
			body["lines"].([]any)[0].(map[string]any)[strings.TrimPrefix(path, "lines[0].")] = value
		default:
			body[path] = value
		}
		return body
	}
	line := map[string]any{"sku": "tea", "quantity": 1, "unit_price": 1}
	tooMany := make([]any, 101)
	for i := range tooMany {
		tooMany[i] = map[string]any{"sku": fmt.Sprintf("tea-%d", i), "quantity": 1, "unit_price": 1}
	}
	for name, c := range map[string]struct {
		body  any
		field string
	}{
		"unknown sku":              {set("lines[0].sku", "coffee"), "lines[0].sku"},
		"malformed sku":            {set("lines[0].sku", "a b"), "lines[0].sku"},
		"sku twice":                {set("lines", []any{line, line}), "lines[1].sku"},
		"no lines":                 {set("lines", []any{}), "lines"},
		"null lines":               {set("lines", nil), "lines"},
		"too many lines":           {set("lines", tooMany), "lines"},
		"quantity zero":            {set("lines[0].quantity", 0), "lines[0].quantity"},
		"quantity negative":        {set("lines[0].quantity", -1), "lines[0].quantity"},
		"quantity too large":       {set("lines[0].quantity", 1_000_001), "lines[0].quantity"},
		"quantity is text":         {set("lines[0].quantity", "1"), "lines[0].quantity"},
		"quantity is a fraction":   {set("lines[0].quantity", 1.5), "lines[0].quantity"},
		"price with a point":       {`{"customer":{"id":"c","email":"a@b.c"},"currency":"EUR","lines":[{"sku":"tea","quantity":1,"unit_price":1.0}]}`, "lines.unit_price"},
		"price negative":           {set("lines[0].unit_price", -1), "lines[0].unit_price"},
		"price too large":          {set("lines[0].unit_price", 1_000_000_000_001), "lines[0].unit_price"},
		"unknown currency":         {set("currency", "ZZZ"), "currency"},
		"currency in lower case":   {set("currency", "eur"), "currency"},
		"window not offered":       {set("payment_window", "31m"), "payment_window"},
		"window without unit":      {set("payment_window", "30"), "payment_window"},
		"window empty":             {set("payment_window", ""), "payment_window"},
		"no customer id":           {set("customer.id", ""), "customer.id"},
		"NUL in customer id":       {set("customer.id", "a\x00b"), "customer.id"},
		"customer id of 201":       {set("customer.id", strings.Repeat("x", 201)), "customer.id"},
		"customer id of 202 bytes": {set("customer.id", strings.Repeat("é", 101)), "customer.id"},
		"no address":               {set("customer.email", "ada"), "customer.email"},
		"address with name":        {set("customer.email", "Ada <ada@example.com>"), "customer.email"},
		"address with line break":  {set("customer.email", "ada@example.com\r\nBcc: eve@example.com"), "customer.email"},
		"misspelt field":           {set("payment_windows", "30m"), "payment_windows"},
	} {
		t.Run(name, func(t *testing.T) {
			s.call("POST", "/v1/orders", c.body).wantProblem(t, 422, "invalid", c.field)
		})
	}
	t.Run("missing fields", func(t *testing.T) {
		a := s.call("POST", "/v1/orders", map[string]any{})
		for _, field := range []string{"customer", "currency", "lines"} {
			a.wantProblem(t, 422, "invalid", field)
		}
		body := set("customer", map[string]any{"id": "c-1"})
		body["lines"] = []any{map[string]any{"sku": "tea", "quantity": 1}}
		a = s.call("POST", "/v1/orders", body)
		a.wantProblem(t, 422, "invalid", "customer.email")
		a.wantProblem(t, 422, "invalid", "lines[0].unit_price")
	})
	if n := s.count("SELECT count(*) FROM orders"); n != 0 {
		t.Errorf("%d orders were placed", n)
	}
}

func TestSameKeyGivesTheSameOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	first := s.place(wish("tea", 1), "Idempotency-Key", "k-1")

	// Equal values, other bytes: another order of fields and more space.
	spaced := fmt.Sprintf("{ \"lines\" : [ {\"unit_price\":500,\"quantity\":1,\"sku\":%q} ],\n \"currency\":\"EUR\", \"customer\":{\"email\":\"ada@example.com\",\"id\":\"c-1\"} }", "tea")
	a := s.call("POST", "/v1/orders", spaced, "Idempotency-Key", "k-1")
	var again orderJSON
	a.into(t, 201, &again)
	if again.ID != first.ID || a.header.Get("Idempotent-Replayed") != "true" || a.header.Get("Location") != "/v1/orders/"+first.ID {
		t.Errorf("got %s with %v, want %s", again.ID, a.header, first.ID)
	}
	if level := s.stockOf("tea"); level.Held != 1 {
		t.Errorf("stock: %+v", level)
	}

	other := s.place(wish("tea", 1), "Idempotency-Key", "k-2")
	if other.ID == first.ID {
		t.Error("another key gave the same order")
	}
}

func TestSameKeyGivesTheSameOrderHoweverTheWindowIsWritten(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	body := wish("tea", 1)
	body["payment_window"] = "10m"
	first := s.place(body, "Idempotency-Key", "k-1")
	body["payment_window"] = "600s"
	if again := s.place(body, "Idempotency-Key", "k-1"); again.ID != first.ID {
		t.Errorf("got %s, want %s", again.ID, first.ID)
	}
}

func TestSameKeyGivesTheSameOrderAfterTheShopChangedItsDefaultWindow(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	first := s.place(wish("tea", 1), "Idempotency-Key", "k-1")
	cfg := testConfig
	cfg.Windows = domain.Windows{time.Hour}
	later := serveAs(t, cfg, Deps{Orders: s.orders, Stock: postgres.NewStock(s.db)})
	again := later.place(wish("tea", 1), "Idempotency-Key", "k-1")
	if again.ID != first.ID || !again.DueAt.Equal(first.DueAt) {
		t.Errorf("got %+v, want %+v", again, first)
	}
	if fresh := later.place(wish("tea", 1)); fresh.PaymentWindow != "1h" {
		t.Errorf("window: %s", fresh.PaymentWindow)
	}
}

func TestSameKeyWithAnotherBodyIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	s.place(wish("tea", 1), "Idempotency-Key", "k-1")
	windowed := wish("tea", 1)
	windowed["payment_window"] = "10m"
	for name, body := range map[string]any{"quantity": wish("tea", 2), "window": windowed} {
		t.Run(name, func(t *testing.T) {
			s.call("POST", "/v1/orders", body, "Idempotency-Key", "k-1").wantProblem(t, 422, "idempotency-key-reused", "Idempotency-Key")
		})
	}
	if level := s.stockOf("tea"); level.Held != 1 {
		t.Errorf("stock: %+v", level)
	}
}

func TestTenCreatesWithOneKeyAtOnceGiveOneOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1) // the last unit: the losers must not be told that it is sold out
	ids, replays := make([]string, 10), make([]string, 10)
	inParallel(10, func(i int) {
		a, err := s.try("POST", "/v1/orders", wish("tea", 1), "Idempotency-Key", "k-1")
		var o orderJSON
		if err != nil || a.status != 201 || json.Unmarshal(a.body, &o) != nil {
			t.Errorf("%v: %d %s", err, a.status, a.body)
			return
		}
		ids[i], replays[i] = o.ID, a.header.Get("Idempotent-Replayed")
	})
	fresh := 0
	for i := range ids {
		if ids[i] != ids[0] {
			t.Errorf("order %s next to %s", ids[i], ids[0])
		}
		if replays[i] != "true" {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers say that they placed the order", fresh)
	}
	if level := s.stockOf("tea"); level.Held != 1 || *level.Available != 0 {
		t.Errorf("stock: %+v", level)
	}
	if n := s.count("SELECT count(*) FROM outbox WHERE type = 'order.timeout'"); n != 1 {
		t.Errorf("%d timers", n)
	}
}

func TestWithoutKeyEqualRequestsPlaceTwoOrders(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	if a, b := s.place(wish("tea", 1)), s.place(wish("tea", 1)); a.ID == b.ID {
		t.Error("one order")
	}
	if level := s.stockOf("tea"); level.Held != 2 || *level.Available != 8 {
		t.Errorf("stock: %+v", level)
	}
}

func TestBadIdempotencyKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	for name, key := range map[string]string{
		"empty": "", "space inside": "a b", "not ASCII": "schlüssel", "too long": strings.Repeat("k", 256),
	} {
		t.Run(name, func(t *testing.T) {
			s.call("POST", "/v1/orders", wish("tea", 1), "Idempotency-Key", key).wantProblem(t, 422, "invalid", "Idempotency-Key")
		})
	}
	t.Run("twice", func(t *testing.T) {
		req, err := http.NewRequest(http.MethodPost, s.url+"/v1/orders", strings.NewReader(string(encode(wish("tea", 1)))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Idempotency-Key"] = []string{"k-1", "k-2"}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
	s.place(wish("tea", 1), "Idempotency-Key", strings.Repeat("k", 255))
	if level := s.stockOf("tea"); level.Held != 1 {
		t.Errorf("stock: %+v", level)
	}
}

func TestLargestOrderFits(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	body := wish("tea", 1)
	lines := make([]any, 100)
	for i := range lines {
		sku := fmt.Sprintf("%064d", i)
		s.stocked(sku, -1)
		lines[i] = map[string]any{"sku": sku, "quantity": 1_000_000, "unit_price": 90_000_000_000}
	}
	body["lines"] = lines
	if o := s.place(body); o.TotalAmount != 100*1_000_000*90_000_000_000 {
		t.Errorf("total: %d", o.TotalAmount)
	}
}

// inParallel runs do n times at once and waits for all.
func inParallel(n int, do func(i int)) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			ready.Wait()
			do(i)
		})
	}
	done.Wait()
}
