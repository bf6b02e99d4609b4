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
	Alive func() error // nil where a restart cannot help
}

// checkTimeout bounds one readiness request: a dependency that does not answer by then
// is away.
const checkTimeout = 2 * time.Second

// Healthz answers 200 as long as the process serves requests and 503 where only a
// restart can help. A dependency that is away is no reason to restart.
func Healthz(checks []Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status, body := http.StatusOK, map[string]string{"process": "ok"}
		for _, check := range checks {
			if check.Alive == nil {
				continue
			}
			body[check.Name] = "ok"
			if err := check.Alive(); err != nil {
				status, body[check.Name] = http.StatusServiceUnavailable, err.Error()
			}
		}
		writeStatus(w, status, body)
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
	mux.Handle("GET /healthz", Healthz(checks))
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
