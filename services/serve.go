package main

import (
	"context"
	"errors"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/smtp"
	"example.com/ordertimeout/services/closer"
	"example.com/ordertimeout/services/notifier"
	"example.com/ordertimeout/services/order"
	"example.com/ordertimeout/services/relay"
)

// serveCmd runs one service, or all of them in one process.
type serveCmd struct{}

// Run is called by the command line parser with the name of the chosen service.
func (serveCmd) Run(ctx context.Context, service string) error {
	a, err := newApp(service)
	if err != nil {
		return err
	}
	defer a.close()
	add := map[string]func() error{
		"order":    a.addOrder,
		"relay":    a.addRelay,
		"closer":   a.addCloser,
		"notifier": a.addNotifier,

		"reconciler": a.addReconciler,
		"all": func() error {
			if err := a.broker(); err != nil { // once, not for each service
				return errors.Join(err, a.addOrder())
			}
			return errors.Join(a.addOrder(), a.addRelay(), a.addCloser(), a.addNotifier(), a.addReconciler())
		},
	}
	if err := add[service](); err != nil {
		return err
	}
	return a.run(ctx)
}

func (a *app) addOrder() error {
	config, err := load[order.Config]()
	if err != nil {
		return err
	}
	handler, err := order.NewHandler(config, order.Deps{
		Orders:  a.orders(),
		Stock:   a.stock(),
		Log:     a.logger.With("service", "order"),
		Metrics: a.labelled("order"),
		Version: version,
	})
	if err != nil {
		return err
	}
	a.serveAPI("order", "api", config.Addr, handler.API)
	return nil
}

func (a *app) addRelay() error {
	config, err := load[relay.Config]()
	if err := errors.Join(err, a.broker()); err != nil {
		return err
	}
	r := relay.New(config, a.outbox(), a.publisher, a.topology, a.registry, a.logger.With("service", "relay"))
	a.workers = append(a.workers, r.Run)
	return nil
}

// faultVariable names the order whose closes fail, in a build that can do so.
const faultVariable = "FAULT_CLOSE"

// closesInHand is enough for each of the shared transactions to be full while the next
// one gathers.
const closesInHand = 1024

func (a *app) addCloser() error {
	if err := a.broker(); err != nil {
		return err
	}
	orders, err := faulty(postgres.NewGroupedOrders(a.orders(), postgres.GroupConfig{}))
	if err != nil {
		return err
	}
	c := closer.New(orders, a.registry, a.logger.With("service", "closer"))
	a.consume(rabbitmq.Closer, rabbitmq.SubscriberConfig{Window: closesInHand}, c.Handle)
	return nil
}

// mailsInHand bounds the notifier's concurrency: each is one SMTP session.
const mailsInHand = 16

func (a *app) addNotifier() error {
	config, err := load[smtp.Config]()
	if err := errors.Join(err, a.broker()); err != nil {
		return err
	}
	mailer, err := smtp.New(config)
	if err != nil {
		return err
	}
	n := notifier.New(notifier.Deps{
		Orders:        a.orders(),
		Notifications: a.notifications(),
		Mailer:        mailer,
		Logger:        a.logger.With("service", "notifier"),
		Registerer:    a.registry,
	})
	a.consume(rabbitmq.Notifier, rabbitmq.SubscriberConfig{Window: mailsInHand}, n.Handle)
	return nil
}
