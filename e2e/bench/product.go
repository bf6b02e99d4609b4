package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
)

const (
	windows = "30m,8s,2s"
	tiers   = "1s,10s,1m,5m,30m"

	waitFew, waitMany = 2 * time.Second, 8 * time.Second // of a drain's timers
)

// wait is how long the timers of a drain lie in their queue: all are in it before the
// first one fires.
func (l load) wait() time.Duration {
	if l.orders <= 10_000 {
		return waitFew
	}
	return waitMany
}

// topology is that of a world.
func (w *world) topology() rabbitmq.Topology {
	var offered domain.Windows
	var fixed domain.Tiers
	var ladder domain.Ladder
	err := errors.Join(offered.UnmarshalText([]byte(windows)), fixed.UnmarshalText([]byte(tiers)), ladder.UnmarshalText([]byte("10s,1m,5m")))
	if err != nil {
		panic(err) // our own
	}
	return rabbitmq.NewTopology(w.name, domain.NewDelays(offered, fixed), ladder)
}

func (w *world) connect(name string) *rabbitmq.Connection {
	return rabbitmq.Connect(rabbitmq.Config{URL: w.broker.URL(), Namespace: w.name}, name, slog.New(slog.DiscardHandler))
}

// loadTimers publishes a timer for every order, as the relay does, and as fast as it can:
// those of the run into a short delay queue, so that they begin to fire at w.due, and
// before that those of the others into the longest one.
func (w *world) loadTimers(ctx context.Context) error {
	conn := w.connect("bench loading")
	t := w.topology()
	if err := t.Declare(ctx, conn); err != nil {
		return err
	}
	publisher := rabbitmq.NewPublisher(conn)
	if w.pending > 0 {
		others, err := w.timers(ctx, "due_at > '"+w.due.Format(time.RFC3339Nano)+"' ORDER BY id", t.TimerRoute(30*time.Minute))
		if err == nil {
			err = errors.Join(publisher.PublishAll(ctx, others)...)
		}
		if err != nil {
			return err
		}
	}
	if w.loaded != nil {
		if err := w.loaded(w); err != nil {
			return err
		}
	}
	out, err := w.timers(ctx, w.mine()+" ORDER BY id", t.TimerRoute(w.wait()))
	if err != nil {
		return err
	}
	time.Sleep(time.Until(w.due.Add(-w.wait())))
	go func() { // the first fire while the last are published
		defer conn.Close()
		if err := errors.Join(publisher.PublishAll(context.WithoutCancel(ctx), out)...); err != nil {
			fmt.Println("loading:", err) // the check finds what is missing
		}
	}()
	return nil
}

func (w *world) timers(ctx context.Context, which string, route rabbitmq.Route) ([]rabbitmq.Outgoing, error) {
	ids, err := w.ids(ctx, which)
	if err != nil {
		return nil, err
	}
	out := make([]rabbitmq.Outgoing, len(ids))
	for i, id := range ids {
		body, err := domain.EncodeEvent(domain.OrderTimeout{OrderID: domain.OrderID(id), DueAt: w.due})
		if err != nil {
			return nil, err
		}
		msg := message.NewMessage(uuid.NewString(), body)
		msg.Metadata.Set(rabbitmq.MetaType, string(domain.TypeOrderTimeout))
		out[i] = rabbitmq.Outgoing{Route: route, Message: msg}
	}
	return out, nil
}

func (w *world) removeQueues() error {
	conn, err := amqp.Dial(w.broker.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	queues, exchanges := w.topology().Names()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for _, name := range queues {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			return err
		}
	}
	for _, name := range exchanges {
		if err := ch.ExchangeDelete(name, false, false); err != nil {
			return err
		}
	}
	return nil
}

// grouped is the ceiling of the closer's work without a broker: everything is there at
// once, and each order is decided and committed as the closer does it.
type grouped struct{}

func (grouped) name() string { return "group commit, no broker" }

func (grouped) load(context.Context, *world) error { return nil }

func (grouped) work(ctx context.Context, w *world) (func() error, error) {
	ids, err := w.ids(ctx, w.mine()+" ORDER BY id")
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, postgres.Config{URL: w.url, MaxConns: 10})
	if err != nil {
		return nil, err
	}
	orders := postgres.NewGroupedOrders(postgres.NewOrders(db), postgres.GroupConfig{})
	stop := inBackground(ctx, func(ctx context.Context) error {
		time.Sleep(time.Until(w.due))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(1024) // as many as the closer has in hand
		for _, id := range ids {
			group.Go(func() error {
				_, err := orders.Update(ctx, domain.OrderID(id), func(o *domain.Order, now time.Time) error {
					_, err := o.Close(domain.ByTimer, now)
					return err
				})
				return err
			})
		}
		return group.Wait()
	})
	return func() error {
		defer db.Close()
		return stop()
	}, nil
}

// product is the closer of this project, as its own process.
type product struct{ closer *process }

const nameProduct = "ordertimeout"

func (*product) name() string { return nameProduct }

func (p *product) load(ctx context.Context, w *world) error { return w.loadTimers(ctx) }

func (p *product) work(_ context.Context, w *world) (func() error, error) {
	var err error
	p.closer, err = w.run("closer")
	return func() error {
		p.closer.stop()
		return w.removeQueues()
	}, err
}

func (p *product) memory() float64 { return p.closer.peakMemory() }
func (p *product) cpu() float64    { return p.closer.cpuSeconds() }
