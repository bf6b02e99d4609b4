package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// Orders is the store of orders. Every method is one transaction.
type Orders interface {
	// Place stores a new order and holds its stock, or returns the order that the same
	// key and hash placed before. It returns postgres.ErrKeyReused for another hash, a
	// domain.SoldOutError or a domain.FieldError.
	Place(context.Context, domain.Placement, postgres.IdempotencyKey) (order *domain.Order, replayed bool, err error)
	// Get returns domain.ErrOrderNotFound for an unknown id.
	Get(context.Context, domain.OrderID) (*domain.Order, error)
	// List returns the newest orders first.
	List(context.Context, postgres.ListQuery) ([]*domain.Order, error)
	// Update locks the order, lets decide change it by the database's time, and writes
	// what it decided. An error of decide is returned unchanged and writes nothing.
	Update(ctx context.Context, id domain.OrderID, decide func(order *domain.Order, now time.Time) error) (*domain.Order, error)
	// Pay records a payment once, however often it is reported.
	Pay(context.Context, domain.Payment) (postgres.PaymentResult, error)
}

// Stock is the store of what can be promised.
type Stock interface {
	// List returns SKUs after the given one, in the order of their bytes or a collation,
	// the same at every call.
	List(ctx context.Context, after string, limit int) ([]postgres.StockLevel, error)
	// Set creates the SKU or replaces what is available of it; nil is unlimited.
	Set(ctx context.Context, sku string, available *int64) (postgres.StockLevel, error)
}

// Deps is what the order service works with. Nothing may be nil.
type Deps struct {
	Orders  Orders
	Stock   Stock
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Version string        // of this build, shown in the OpenAPI document
	Timeout time.Duration // for one request; 0 is DefaultTimeout
}

// DefaultTimeout is how long a request may take. The store gives up on a statement
// after 5 s, so a request that ran into a lock still gets its answer.
const DefaultTimeout = 10 * time.Second

// maxBody bounds a request's body. An order of 100 lines with the longest names has
// less than 20 KiB.
const maxBody = 64 << 10

// Handler serves the whole HTTP interface of the order service.
type Handler struct {
	mux     *http.ServeMux
	root    http.Handler
	beside  map[string]bool // patterns that Handle added
	metrics metrics
	timeout time.Duration

	orders   Orders
	stock    Stock
	windows  domain.Windows
	log      *slog.Logger
	operator tokenCheck
	webhook  *standardwebhooks.Webhook
}

// NewHandler returns the handler, or an error for an invalid configuration.
func NewHandler(cfg Config, deps Deps) (*Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	secret, err := decodeSecret(cfg.WebhookSecret)
	if err != nil {
		return nil, err
	}
	webhook, err := standardwebhooks.NewWebhookRaw(secret)
	if err != nil {
		return nil, fmt.Errorf("webhook secret: %w", err)
	}
	m, err := newMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	h := &Handler{
		mux:     http.NewServeMux(),
		beside:  map[string]bool{},
		metrics: m,
		timeout: deps.Timeout,

		orders:   deps.Orders,
		stock:    deps.Stock,
		windows:  cfg.Windows,
		log:      deps.Log,
		operator: newTokenCheck(cfg.OperatorToken),
		webhook:  webhook,
	}
	if h.timeout == 0 {
		h.timeout = DefaultTimeout
	}
	h.root = h.observed(http.HandlerFunc(h.route))
	if err := h.addAPI(deps.Version); err != nil {
		return nil, err
	}
	return h, nil
}

// ServeHTTP makes it an http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.root.ServeHTTP(w, r) }

// Handle adds something beside the interface, such as a health check; pattern is
// that of http.ServeMux. It is neither logged nor counted. Call it before the first
// request is served.
func (h *Handler) Handle(pattern string, handler http.Handler) {
	h.beside[pattern] = true
	h.mux.Handle(pattern, handler)
}

func (h *Handler) route(w http.ResponseWriter, r *http.Request) {
	if unrouted, pattern := h.mux.Handler(r); pattern == "" {
		plainErrors(unrouted).ServeHTTP(w, r) // 404, or 405 with Allow
		return
	}
	h.mux.ServeHTTP(w, r)
}

// call is one operation of the interface.
type call[I, O any] struct {
	op       huma.Operation
	operator bool                                     // needs the operator's token
	verify   func(r *http.Request, body []byte) error // checks the bytes before they are read, or nil
	do       func(context.Context, *I) (*O, error)    // domain errors are fine: the table knows them
	request  any                                      // example of the body, nil where there is none
	response any                                      // example of the good answer
	refusals []refusal                                // what else it can answer
}

// add serves and documents a call.
func add[I, O any](h *Handler, api huma.API, c call[I, O]) {
	if c.operator {
		c.op.Middlewares = append(c.op.Middlewares, h.operatorOnly)
	}
	if c.request != nil {
		c.op.Middlewares = append(c.op.Middlewares, h.buffered(c.verify))
		// huma reads what is buffered. With a deadline of its own the server would take a
		// client that quietly waits for the answer for one that went away.
		c.op.BodyReadTimeout = -1
	}
	document(api, &c.op, c.operator, c.request, c.response, c.refusals)
	huma.Register(api, c.op, func(ctx context.Context, in *I) (*O, error) {
		out, err := c.do(ctx, in)
		if err != nil {
			return nil, h.failed(ctx, err)
		}
		return out, nil
	})
}

// buffered reads the body, so that a body that is too long, too slow or cut off gets
// its own answer, and that a signature is checked over the very bytes that came, before
// anything looks into them.
func (h *Handler) buffered(verify func(*http.Request, []byte) error) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		body, problem := h.readBody(w, r)
		if problem == nil && verify != nil {
			if err := verify(r, body); err != nil {
				problem = problemFor(err)
			}
		}
		if problem != nil {
			writeProblem(w, r, problem)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next(ctx)
	}
}

func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problemError) {
	// Not every writer can do this (httptest's cannot); the server's own timeout remains.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.timeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var (
		tooLong *http.MaxBytesError
		netErr  net.Error
	)
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLong):
		return nil, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than the allowed %d bytes", maxBody))
	case errors.As(err, &netErr) && netErr.Timeout():
		return nil, newProblem(http.StatusRequestTimeout, "the body did not come in time")
	default:
		return nil, newProblem(http.StatusBadRequest, "the body could not be read to its end")
	}
}

// uninterrupted returns a context for work that writes. It keeps the request's
// deadline but does not end when the client goes away: cutting a transaction off helps
// nobody, costs the pool a connection, and makes a commit in doubt. What a client that
// left cannot know it learns by repeating the call: a placement by its idempotency
// key, a payment by its id.
func uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // observed has set one
	return context.WithDeadline(context.WithoutCancel(ctx), deadline)
}
