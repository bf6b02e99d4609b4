package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultTimeout is how long a request may take. The store gives up on a statement
	// after 5 s, so a request that ran into a lock still gets its answer.
	DefaultTimeout = 10 * time.Second

	// DefaultMaxBody bounds a request's body, in bytes. An order of 100 lines with the
	// longest names has less than 20 KiB.
	DefaultMaxBody = 64 << 10
)

// Config is what one interface is made of. Log and Metrics are required.
type Config struct {
	Title       string
	Description string // Markdown; AboutErrors is a paragraph of it that all interfaces share
	Version     string // of this build
	Tags        []string
	Security    map[string]*huma.SecurityScheme // beside "operator", which is always there

	// OperatorToken opens the calls that need it. With an empty one nothing opens them.
	OperatorToken string
	// Problem returns the answer to an error that only this service knows, and nil for
	// every other. It may be nil, and must return a new Problem each time.
	Problem func(error) *Problem
	// ProblemMembers is a struct with the members that Problem.Extra can have, for the
	// document. Nil where there are none.
	ProblemMembers any

	Log *slog.Logger
	// Metrics must tell the services of one process apart, by a label for example
	// (prometheus.WrapRegistererWith): the names of the metrics are always the same.
	Metrics prometheus.Registerer
	Timeout time.Duration // for one request; 0 is DefaultTimeout
	MaxBody int64         // in bytes; 0 is DefaultMaxBody

	// OwnHome leaves GET / to a handler that Handle adds. Otherwise it leads to /docs.
	OwnHome bool
}

// API serves an HTTP interface and its document.
type API struct {
	mux     *http.ServeMux
	huma    huma.API
	beside  map[string]bool // patterns that Handle added
	metrics metrics
	timeout time.Duration
	maxBody int64

	log           *slog.Logger
	operator      TokenCheck
	known         func(error) *Problem
	problemSchema *huma.Schema
}

// New returns the interface that consists of the given calls. Each function adds one
// call or more by Add.
func New(cfg Config, calls ...func(*API)) (*API, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	a := &API{
		mux:     http.NewServeMux(),
		beside:  map[string]bool{},
		metrics: m,
		timeout: cfg.Timeout,
		maxBody: cfg.MaxBody,

		log:      cfg.Log,
		operator: NewTokenCheck(cfg.OperatorToken),
		known:    cfg.Problem,
	}
	if a.timeout == 0 {
		a.timeout = DefaultTimeout
	}
	if a.maxBody == 0 {
		a.maxBody = DefaultMaxBody
	}
	a.huma = humago.New(a.mux, documentConfig(cfg))
	a.problemSchema = problemSchema(a.huma.OpenAPI().Components.Schemas, cfg.ProblemMembers)
	for _, add := range calls {
		add(a)
	}
	if err := a.addDocs(cfg.OwnHome); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Title, err)
	}
	return a, nil
}

// ServeHTTP makes it an http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.observe(w, r) }

// Handle adds something beside the interface, such as a health check or a page; pattern
// is that of http.ServeMux. It is neither logged nor counted and has no deadline, but a
// request id, and its panics are answered. Call it before the first request is served.
func (a *API) Handle(pattern string, handler http.Handler) {
	a.beside[pattern] = true
	a.mux.Handle(pattern, handler)
}

func (a *API) route(w http.ResponseWriter, r *http.Request) {
	if unrouted, pattern := a.mux.Handler(r); pattern == "" {
		plainErrors(unrouted).ServeHTTP(w, r) // 404, or 405 with Allow
		return
	}
	a.mux.ServeHTTP(w, r)
}
