package order

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/ordertimeout/domain"
)

func TestRequestIsLoggedAndCountedByItsPattern(t *testing.T) {
	t.Parallel()
	s := broken(t, 0, func(context.Context) error { return domain.ErrOrderNotFound })
	id := uuid.NewString()
	for range 2 {
		s.call("GET", "/v1/orders/"+id, nil, "X-Request-ID", "r-1").want(t, 404)
	}
	s.call("GET", "/some/raw/path", nil).want(t, 404)
	s.call("PUT", "/v1/stock/tea", "{}").want(t, 401)

	entries := s.log.entries("request")
	if len(entries) != 4 {
		t.Fatalf("%d log lines", len(entries))
	}
	first := entries[0]
	for key, want := range map[string]any{
		"method": "GET", "route": "GET /v1/orders/{id}", "status": 404.0, "request_id": "r-1", "order_id": id,
	} {
		if first[key] != want {
			t.Errorf("%s: got %v, want %v", key, first[key], want)
		}
	}
	if first["duration"].(float64) <= 0 {
		t.Errorf("duration: %v", first["duration"])
	}
	want := `
# HELP ordertimeout_http_requests_total Answered requests by route pattern and status.
# TYPE ordertimeout_http_requests_total counter
ordertimeout_http_requests_total{route="GET /v1/orders/{id}",status="404"} 2
ordertimeout_http_requests_total{route="PUT /v1/stock/{sku}",status="401"} 1
ordertimeout_http_requests_total{route="none",status="404"} 1
`
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), "ordertimeout_http_requests_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(s.registry, "ordertimeout_http_request_duration_seconds"); err != nil || n != 3 {
		t.Errorf("%d histograms, %v", n, err)
	}
}
