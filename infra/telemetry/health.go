package telemetry

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one thing that a service needs to do its work.
type Check struct {
	Name  string
	Ready func(ctx context.Context) error
}

// checkTimeout bounds one readiness request: a dependency that does not answer by then
// is away.
const checkTimeout = 2 * time.Second

// Healthz answers 200 as long as the process serves requests, so that an orchestrator
// does not restart it over a dependency.
func Healthz() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, http.StatusOK, map[string]string{"status": "ok"})
	})
}

// Readyz answers 503 and names the cause while any check fails, and 200 again by itself.
func Readyz(checks []Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		status, body := http.StatusOK, make(map[string]string, len(checks))
		for _, check := range checks {
			body[check.Name] = "ok"
			if err := check.Ready(ctx); err != nil {
				status, body[check.Name] = http.StatusServiceUnavailable, err.Error()
			}
		}
		writeStatus(w, status, body)
	})
}

// Handler serves /healthz, /readyz and /metrics.
func Handler(gatherer prometheus.Gatherer, checks []Check) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", Healthz())
	mux.Handle("GET /readyz", Readyz(checks))
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	return mux
}

func writeStatus(w http.ResponseWriter, status int, body map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}
