package httpapi_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/ordertimeout/infra/httpapi"
)

func TestRequestIsLoggedWithItsNotesAndCountedByItsPattern(t *testing.T) {
	t.Parallel()
	s := open(t, func(ctx context.Context) error {
		httpapi.Note(ctx, "thing_id", "t-0")
		httpapi.Note(ctx, "thing_id", "t-1")
		return errors.New("broken")
	})
	s.add("X-Request-ID", "r-1").want(t, 500)
	s.call("GET", "/some/raw/path", "").wantProblem(t, 404, "")
	if n := strings.Count(s.log.text(), "t-0"); n != 0 {
		t.Errorf("a note that was replaced is logged %d times", n)
	}
	entries := append(s.log.entries("request"), s.log.entries("request failed")...)
	if len(entries) != 3 {
		t.Fatalf("%d log lines", len(entries))
	}
	for key, want := range map[string]any{"method": "POST", "route": "POST /v1/things", "status": 500.0, "request_id": "r-1", "thing_id": "t-1"} {
		if got := entries[0][key]; got != want {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	if failed := entries[2]; failed["request_id"] != "r-1" || failed["thing_id"] != "t-1" || failed["error"] != "broken" {
		t.Errorf("failure: %v", failed)
	}
	want := `
# HELP ordertimeout_http_requests_total Answered requests by route pattern and status.
# TYPE ordertimeout_http_requests_total counter
ordertimeout_http_requests_total{route="POST /v1/things",status="500"} 1
ordertimeout_http_requests_total{route="none",status="404"} 1
`
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), "ordertimeout_http_requests_total"); err != nil {
		t.Error(err)
	}
}

func TestTwoServicesShareARegistryByALabel(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	labelled := func(service string) func(*httpapi.Config) {
		return func(c *httpapi.Config) {
			c.Metrics = prometheus.WrapRegistererWith(prometheus.Labels{"service": service}, registry)
		}
	}
	a, b := open(t, done, labelled("a")), open(t, done, labelled("b"))
	a.add().want(t, 200)
	b.add().want(t, 200)
	b.add().want(t, 200)
	want := `
# HELP ordertimeout_http_requests_total Answered requests by route pattern and status.
# TYPE ordertimeout_http_requests_total counter
ordertimeout_http_requests_total{route="POST /v1/things",service="a",status="200"} 1
ordertimeout_http_requests_total{route="POST /v1/things",service="b",status="200"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "ordertimeout_http_requests_total"); err != nil {
		t.Error(err)
	}
}

// Two services without a label are a mistake of the caller, not a panic.
func TestMetricsThatAreTakenAreAnError(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	_, err := httpapi.New(httpapi.Config{Metrics: s.registry, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "metrics") {
		t.Errorf("got %v", err)
	}
}

func TestRequestIDOfAStrangerIsReplaced(t *testing.T) {
	t.Parallel()
	uuidV7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	s := open(t, done)
	for _, id := range []string{"", "a b", strings.Repeat("x", 65), `"};drop`} {
		if got := s.add("X-Request-ID", id).header.Get("X-Request-ID"); !uuidV7.MatchString(got) {
			t.Errorf("%q became %q", id, got)
		}
	}
	if got := s.add("X-Request-ID", "from-the-proxy").header.Get("X-Request-ID"); got != "from-the-proxy" {
		t.Errorf("got %q", got)
	}
}

func TestHandlersBesideAreServedButNotCounted(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	s.api.Handle("GET /healthz", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, limited := r.Context().Deadline(); limited {
			t.Error("a page that streams would end")
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	s.api.Handle("GET /broken", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") }))
	if a := s.call("GET", "/healthz", ""); a.status != 503 || a.body != "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.call("GET", "/broken", "").wantProblem(t, 500, "")
	if n := len(s.log.entries("request")); n != 0 {
		t.Errorf("%d log lines", n)
	}
	if n, err := testutil.GatherAndCount(s.registry, "ordertimeout_http_requests_total"); err != nil || n != 0 {
		t.Errorf("%d counted, %v", n, err)
	}
}
