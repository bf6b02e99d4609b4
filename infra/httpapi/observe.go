package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// info is what is known of a request while it is served.
type info struct {
	id    string
	notes []slog.Attr
}

type infoKey struct{}

// requestInfo never returns nil, so code that runs outside a request needs no check.
func requestInfo(ctx context.Context) *info {
	if i, ok := ctx.Value(infoKey{}).(*info); ok {
		return i
	}
	return &info{}
}

// RequestID returns the id that the request's log lines and problems have, "" outside
// a request.
func RequestID(ctx context.Context) string { return requestInfo(ctx).id }

// Note adds to the log lines of the request which thing it is about, such as an
// order_id. A later note replaces an earlier one of the same key. It is for the
// goroutine that serves the request.
func Note(ctx context.Context, key, value string) {
	i := requestInfo(ctx)
	for n := range i.notes {
		if i.notes[n].Key == key {
			i.notes[n].Value = slog.StringValue(value)
			return
		}
	}
	i.notes = append(i.notes, slog.String(key, value))
}

// requestIDForm is what is taken over from a proxy; it goes into logs and answers.
var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-ID"); requestIDForm.MatchString(id) {
		return id
	}
	return uuid.Must(uuid.NewV7()).String()
}

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (metrics, error) {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ordertimeout_http_requests_total",
			Help: "Answered requests by route pattern and status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ordertimeout_http_request_duration_seconds",
			Help:    "Time to answer a request by route pattern.",
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, // ends where requests time out
		}, []string{"route"}),
	}
	if err := errors.Join(reg.Register(m.requests), reg.Register(m.duration)); err != nil {
		return metrics{}, fmt.Errorf("register HTTP metrics: %w", err)
	}
	return m, nil
}

// observe gives every request an id, each call a deadline, a line in the log and its
// place in the metrics, and turns a panic into a 500.
func (a *API) observe(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	i := &info{id: requestID(r)}
	ctx := context.WithValue(r.Context(), infoKey{}, i)
	if _, pattern := a.mux.Handler(r); !a.beside[pattern] {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	rec := &recorder{ResponseWriter: w}
	rec.Header().Set("X-Request-ID", i.id)

	defer func() { a.report(r, i, rec.status, time.Since(start)) }()
	defer a.recovered(rec, r)
	a.route(rec, r)
}

func (a *API) report(r *http.Request, i *info, status int, took time.Duration) {
	if a.beside[r.Pattern] {
		return
	}
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	if status == 0 {
		status = http.StatusOK
	}
	a.metrics.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	a.metrics.duration.WithLabelValues(route).Observe(took.Seconds())
	attrs := append([]slog.Attr{
		slog.String("method", r.Method),
		slog.String("route", route),
		slog.Int("status", status),
		slog.Duration("duration", took),
		slog.String("request_id", i.id),
	}, i.notes...)
	a.log.LogAttrs(r.Context(), slog.LevelInfo, "request", attrs...)
}

// recovered answers 500 after a panic. Where the answer has begun already the
// connection is cut, so that half an answer is not taken for a whole one.
func (a *API) recovered(rec *recorder, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	a.log.ErrorContext(r.Context(), "request panicked", "panic", fmt.Sprint(v),
		"request_id", RequestID(r.Context()), "stack", string(debug.Stack()))
	if rec.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeProblem(rec, r, a.problemFor(fmt.Errorf("panic: %v", v)))
}

// failed turns a call's error into its answer, and logs what the answer does not tell.
func (a *API) failed(ctx context.Context, err error) error {
	p := a.problemFor(err)
	level, message := slog.LevelError, "request failed"
	switch {
	case p.Status < http.StatusInternalServerError:
		return p
	case p.Status == http.StatusServiceUnavailable:
		level, message = slog.LevelWarn, "request cannot be served now"
	}
	i := requestInfo(ctx)
	attrs := append([]slog.Attr{slog.String("request_id", i.id), slog.Any("error", err)}, i.notes...)
	a.log.LogAttrs(ctx, level, message, attrs...)
	return p
}

// recorder remembers the status. Unwrap lets http.ResponseController through.
type recorder struct {
	http.ResponseWriter

	status int // 0 until the answer begins
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}
