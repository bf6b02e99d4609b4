package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

// ParkedStore keeps parked messages. Store commits before it returns, and the same key
// again changes nothing.
type ParkedStore interface {
	Store(ctx context.Context, key []byte, m postgres.ParkedMessage) (stored bool, err error)
}

// storeTimeout bounds one ingestion.
const storeTimeout = 15 * time.Second

// Ingest moves messages from the parking queue into Postgres.
type Ingest struct {
	store    ParkedStore
	topology rabbitmq.Topology
	logger   *slog.Logger
	parked   *prometheus.CounterVec
}

// NewIngest returns an ingest that registers its metrics with reg.
func NewIngest(store ParkedStore, t rabbitmq.Topology, reg prometheus.Registerer, logger *slog.Logger) *Ingest {
	in := &Ingest{store: store, topology: t, logger: logger, parked: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ordertimeout_parked_messages_total",
		Help: "Messages that were parked, by the consumer that failed (empty: nobody knows) and the class of its error.",
	}, []string{"consumer", "class"})}
	reg.MustRegister(in.parked)
	return in
}

// Handle is the handler of the parking queue. It returns nil only after the message is
// stored, so while Postgres is away messages wait in the queue. An error sends the
// message back there after a pause: the parking queue has no limit of returns.
func (in *Ingest) Handle(msg *message.Message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), storeTimeout)
	defer cancel()
	p := in.topology.ReadParked(msg, time.Now())
	stored, err := in.store.Store(ctx, p.Key, asParkedMessage(p))
	if err != nil {
		in.logger.Warn("parked message cannot be stored, it stays in the parking queue", "message_id", msg.UUID, "error", err)
		return fmt.Errorf("storing parked message %s: %w", msg.UUID, err)
	}
	if stored {
		in.parked.WithLabelValues(string(p.Consumer), knownClass(p.Class)).Inc()
		in.logger.Info("parked message stored", "message_id", msg.UUID, "order_id", domain.OrderIn(p.Payload), "consumer", p.Consumer,
			"class", p.Class, "attempt", p.Attempts, "replay_of", p.ReplayOf)
	}
	return nil
}

func asParkedMessage(p rabbitmq.ParkedDelivery) postgres.ParkedMessage {
	previous := ""
	if id, err := uuid.Parse(p.ReplayOf); err == nil { // a stranger may write anything there
		previous = id.String()
	}
	return postgres.ParkedMessage{
		Consumer: string(p.Consumer), Type: p.Type, MessageID: p.MessageID, OrderID: domain.OrderIn(p.Payload),
		Class: p.Class, Error: p.Error, Attempts: p.Attempts, Queue: p.Queue, Exchange: p.Exchange, RoutingKey: p.RoutingKey,
		FirstFailedAt: p.FirstFailedAt, LastFailedAt: p.LastFailedAt, Headers: p.Headers, Story: p.Story, Payload: p.Payload,
		PreviousID: previous,
	}
}

// knownClass keeps a stranger's text out of the metric's labels.
func knownClass(class string) string {
	switch class {
	case "malformed", "unsupported_event", "unknown_order", "permanent", "panic", "transient", rabbitmq.ClassDeliveryLimit:
		return class
	default:
		return rabbitmq.ClassUnknown
	}
}
