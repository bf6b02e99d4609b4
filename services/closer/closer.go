// Package closer handles timers: it closes the order that a timer names if the order
// is still unpaid and due.
package closer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/telemetry"
)

// Orders is the store: Update locks one order, lets decide change it by the database's
// clock, and commits what it recorded, all or nothing, before it returns.
type Orders interface {
	Update(ctx context.Context, id domain.OrderID, decide func(*domain.Order, time.Time) error) (*domain.Order, error)
}

// closeTimeout bounds one close. The database's own statement timeout is shorter.
const closeTimeout = 15 * time.Second

// Closer closes orders.
type Closer struct {
	orders   Orders
	logger   *slog.Logger
	closings telemetry.Closings
}

// New returns a closer that registers its metrics with reg.
func New(orders Orders, reg prometheus.Registerer, logger *slog.Logger) *Closer {
	return &Closer{orders: orders, logger: logger, closings: telemetry.NewClosings(reg)}
}

// Handle is the handler of the timeout queue. It returns nil only after the
// transaction committed, or when there was nothing to do, so the ack that follows a
// nil can never be ahead of the commit.
//
// It returns a domain.NotDueError for a timer that came early, domain.ErrMalformed or
// an UnsupportedEventError for a message that is no timer, domain.ErrOrderNotFound,
// and domain.ErrUnavailable while the database is away.
func (c *Closer) Handle(msg *message.Message) error {
	event, err := domain.DecodeEvent(msg.Payload)
	if err != nil {
		return err
	}
	timer, ok := event.(domain.OrderTimeout)
	if !ok {
		return fmt.Errorf("%w: %s is not a timer", domain.ErrMalformed, event.Type())
	}
	// A shutdown ends the message's context; work in hand is finished all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), closeTimeout)
	defer cancel()
	by := domain.ByTimer
	if msg.Metadata.Get(rabbitmq.MetaReplayOf) != "" {
		by = domain.ByReplay
	}
	return c.close(ctx, timer.OrderID, by, msg.UUID)
}

func (c *Closer) close(ctx context.Context, id domain.OrderID, by domain.ClosedBy, messageID string) error {
	var closed bool
	order, err := c.orders.Update(ctx, id, func(o *domain.Order, now time.Time) (err error) {
		closed, err = o.Close(by, now)
		return err
	})
	if err != nil {
		return fmt.Errorf("closing order %s: %w", id, err)
	}
	if !closed {
		c.logger.Debug("nothing to close", "order_id", id, "message_id", messageID, "status", order.Status().String())
		return nil
	}
	lateness := time.Since(order.DueAt()) // the database's deadline by this machine's clock
	c.closings.Add(by, lateness)
	c.logger.Info("order closed", "order_id", id, "message_id", messageID, "by", by.String(), "due_at", order.DueAt().UTC(), "late", lateness.String())
	return nil
}
