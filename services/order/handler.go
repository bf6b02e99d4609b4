package order

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
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
	Timeout time.Duration // for one request; 0 is httpapi.DefaultTimeout
}

// Handler serves the whole HTTP interface of the order service.
type Handler struct {
	*httpapi.API

	orders  Orders
	stock   Stock
	windows domain.Windows
	webhook *standardwebhooks.Webhook
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
	h := &Handler{orders: deps.Orders, stock: deps.Stock, windows: cfg.Windows, webhook: webhook}
	h.API, err = httpapi.New(httpapi.Config{
		Title:          "Order service",
		Description:    apiDescription,
		Version:        deps.Version,
		Tags:           []string{tagOrders, tagPayments, tagStock},
		Security:       webhookSecurity,
		OperatorToken:  cfg.OperatorToken,
		Problem:        problemFor,
		ProblemMembers: soldOutJSON{},
		Log:            deps.Log,
		Metrics:        deps.Metrics,
		Timeout:        deps.Timeout,
	}, h.addPlace, h.addGet, h.addList, h.addPay, h.addExtend, h.addListStock, h.addSetStock)
	if err != nil {
		return nil, err
	}
	return h, nil
}
