// Package notifier tells the buyer: a receipt when an order was paid, a word when it
// was closed, and another one for each payment that goes back.
//
// notifier.go takes an event and decides; notice.go says what an event means to a
// buyer; letter.go writes the mail from templates; format.go writes amounts, times
// and references as people read them.
//
// A buyer gets one mail for an order and kind, and one for each refunded payment.
// The exception: the mail server may have taken a mail without anybody here knowing,
// because the process died, the database was away or the connection broke between the
// server's acceptance and the mark in the database, or because a process stood still
// for longer than its claim. Then the mail is sent once more, with the same
// Message-ID, by which most mail programs show it once.
package notifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/smtp"
)

// A claim has to outlive the work and the mark, or another consumer sends the mail too.
const (
	workTimeout    = 30 * time.Second // look up, claim and send; the send takes smtp.SendTimeout of it at most
	markTimeout    = 15 * time.Second // outlasts the restart of a database: what is not marked is sent again
	releaseTimeout = 5 * time.Second
	claimLease     = time.Minute

	markPause = 200 * time.Millisecond // between attempts to mark
)

// Orders looks orders up.
type Orders interface {
	// Get returns domain.ErrOrderNotFound for an unknown id.
	Get(ctx context.Context, id domain.OrderID) (*domain.Order, error)
}

// Notifications keeps the record of what was sent.
type Notifications interface {
	// Claim reports that the mail was sent already, or reserves its sending for lease.
	// It returns postgres.ErrClaimed while somebody else holds it.
	Claim(ctx context.Context, key postgres.NotificationKey, lease time.Duration) (alreadySent bool, err error)
	MarkSent(ctx context.Context, key postgres.NotificationKey) error
	Release(ctx context.Context, key postgres.NotificationKey) error
}

// Mailer sends one mail; see smtp.Mailer.Send for its errors.
type Mailer interface {
	Send(ctx context.Context, mail smtp.Mail) error
	MessageIDDomain() string
}

// Deps is what a Notifier works with.
type Deps struct {
	Orders        Orders
	Notifications Notifications
	Mailer        Mailer
	Logger        *slog.Logger
	Registerer    prometheus.Registerer
}

// Notifier handles the events that a buyer is told about.
type Notifier struct {
	deps  Deps
	count *prometheus.CounterVec
}

// New registers the notifier's metrics.
func New(deps Deps) *Notifier {
	count := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ordertimeout_notifications_total",
		Help: "Events for buyers by kind of mail (receipt, closed, refund, unknown) and result: " +
			"sent, already_sent, skipped, claimed, unavailable, failed, rejected or unmarked.",
	}, []string{"kind", "result"})
	deps.Registerer.MustRegister(count)
	return &Notifier{deps: deps, count: count}
}

// result is what came of one event, as a metric's label.
type result string

const (
	sent        result = "sent"
	alreadySent result = "already_sent"
	skipped     result = "skipped"     // the order is not in the state that the event tells of
	claimed     result = "claimed"     // another consumer is sending it right now
	unavailable result = "unavailable" // the database or the mail server is away
	failed      result = "failed"      // worth another attempt
	rejected    result = "rejected"    // never to be sent
	unmarked    result = "unmarked"    // sent, but the record of it failed: it will be sent again
)

// Handle sends the mail that the event asks for. It returns nil when the mail is out,
// was out before, or is not due to an order in its present state. An error says by
// its kind what becomes of the message, see domain.Decide: an event that is malformed,
// too new or not for buyers is permanent, an unknown order is domain.ErrOrderNotFound.
//
// The message's context does not end the work: a mail that is on its way is settled.
func (n *Notifier) Handle(msg *message.Message) error {
	logger := n.deps.Logger.With("message_id", msg.UUID)
	notice, err := readNotice(msg.Payload)
	if err != nil {
		n.record(logger, "unknown", rejected, err)
		return err
	}
	outcome, err := n.tell(context.WithoutCancel(msg.Context()), logger, notice)
	n.record(logger.With("order_id", notice.order), notice.kind, outcome, err)
	return err
}

func (n *Notifier) tell(ctx context.Context, logger *slog.Logger, notice notice) (result, error) {
	work, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()

	order, err := n.deps.Orders.Get(work, notice.order)
	if err != nil {
		return resultOf(err), fmt.Errorf("looking up order %s: %w", notice.order, err)
	}
	if !notice.fits(order.Status()) {
		return skipped, nil
	}
	mail, err := n.compose(notice, order.Snapshot())
	if err != nil {
		return rejected, err
	}
	done, err := n.deps.Notifications.Claim(work, notice.key(), claimLease)
	if err != nil {
		return resultOf(err), fmt.Errorf("claiming the mail: %w", err)
	}
	if done {
		return alreadySent, nil
	}
	if err := n.deps.Mailer.Send(work, mail); err != nil {
		n.release(ctx, logger, notice)
		return resultOf(err), fmt.Errorf("sending the mail: %w", err)
	}
	return n.markSent(ctx, notice)
}

// markSent insists for a while when the database is away.
func (n *Notifier) markSent(ctx context.Context, notice notice) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	for {
		err := n.deps.Notifications.MarkSent(ctx, notice.key())
		if err == nil {
			return sent, nil
		}
		if !errors.Is(err, domain.ErrUnavailable) || !pause(ctx, markPause) {
			return unmarked, fmt.Errorf("mail was sent, marking it: %w", err)
		}
	}
}

// pause reports false when ctx ended first.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-time.After(length):
		return true
	case <-ctx.Done():
		return false
	}
}

// release lets the next attempt begin at once. Without it the claim runs out.
func (n *Notifier) release(ctx context.Context, logger *slog.Logger, notice notice) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := n.deps.Notifications.Release(ctx, notice.key()); err != nil {
		logger.Warn("claim of a mail cannot be released, it runs out by itself",
			"order_id", notice.order, "kind", notice.kind, "lease", claimLease.String(), "error", err)
	}
}

func (n *Notifier) record(logger *slog.Logger, kind kind, outcome result, err error) {
	n.count.WithLabelValues(string(kind), string(outcome)).Inc()
	logger = logger.With("kind", kind, "result", outcome)
	if err != nil {
		logger.Warn("buyer not told", "error", err)
		return
	}
	logger.Info("buyer notification decided")
}

func resultOf(err error) result {
	switch {
	case errors.Is(err, postgres.ErrClaimed):
		return claimed
	case errors.Is(err, domain.ErrUnavailable):
		return unavailable
	case errors.Is(err, domain.ErrPermanent):
		return rejected
	default:
		return failed
	}
}
