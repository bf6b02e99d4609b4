package main

import (
	"context"
	"errors"
	"log/slog"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/smtp"
	"example.com/ordertimeout/services/closer"
	"example.com/ordertimeout/services/notifier"
	"example.com/ordertimeout/services/order"
	"example.com/ordertimeout/services/reconciler"
	"example.com/ordertimeout/services/reconciler/console"
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

func (a *app) addCloser() error {
	if err := a.broker(); err != nil {
		return err
	}
	orders, err := faulty(a.orders())
	if err != nil {
		return err
	}
	c := closer.New(orders, a.registry, a.logger.With("service", "closer"))
	a.consume(rabbitmq.Closer, rabbitmq.SubscriberConfig{}, c.Handle)
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

func (a *app) addReconciler() error {
	replay, replayErr := load[reconciler.ReplayConfig]()
	sweep, sweepErr := load[reconciler.SweepConfig]()
	config, configErr := load[reconciler.APIConfig]()
	management, managementErr := load[rabbitmq.ManagementConfig]()
	if err := errors.Join(replayErr, sweepErr, configErr, managementErr, a.broker()); err != nil {
		return err
	}
	logger := a.logger.With("service", "reconciler")
	ingest := reconciler.NewIngest(a.parked(), a.topology, a.registry, logger)
	a.subscribe("parking", a.topology.ParkingQueue(), rabbitmq.SubscriberConfig{}, ingest.Handle)
	replayer := reconciler.NewReplayer(a.replays(), a.publisher, a.topology, a.delays.Ladder, replay.Limit, a.registry, logger)
	sweeper := reconciler.NewSweeper(sweep, postgres.NewSweep(a.db), a.registry, logger)
	inspector := rabbitmq.NewInspector(a.topology, a.consuming)
	meter := reconciler.NewMeter(postgres.NewSweep(a.db), postgres.NewDelayQueues(a.db), inspector, a.topology.Namespace(), sweep.Grace, a.registry, logger)
	watch, err := a.watch(management, meter, inspector, logger)
	if err != nil {
		return err
	}
	a.workers = append(a.workers, replayer.Run, sweeper.Run, meter.Run, watch.Run)
	api, err := reconciler.NewAPI(config, reconciler.APIDeps{
		Parked:  a.parked(),
		Replays: a.replays(),
		Audit:   postgres.NewAudit(a.db),
		Drift:   watch.Drift,
		Log:     logger,
		Metrics: a.labelled("reconciler"),
		Version: version,
	})
	if err != nil {
		return err
	}
	pages, err := a.console(config.OperatorToken, watch, inspector)
	if err != nil {
		return err
	}
	for _, pattern := range pages.Patterns() {
		api.Handle(pattern, pages)
	}
	a.serveAPI("reconciler", "console", config.Addr, api)
	return nil
}

// watch looks at the queues, through the management API too where there is one.
func (a *app) watch(c rabbitmq.ManagementConfig, meter *reconciler.Meter, inspector *rabbitmq.Inspector, logger *slog.Logger) (*reconciler.Watch, error) {
	deps := reconciler.WatchDeps{Queues: inspector, Measure: meter.Measure, Declared: a.keeper.Ready, Logger: logger, Registerer: a.registry}
	management, err := rabbitmq.NewManagement(c, a.topology, a.consuming)
	if err != nil {
		return nil, err
	}
	if management != nil {
		deps.Management = management.View
	}
	return reconciler.NewWatch(deps), nil
}

// console is the operator's pages, which stand beside the reconciler's calls.
func (a *app) console(token string, watch *reconciler.Watch, inspector *rabbitmq.Inspector) (*console.Console, error) {
	delays := postgres.NewDelayQueues(a.db)
	return console.New(console.Deps{
		Orders:  a.orders(),
		Outbox:  a.outbox(),
		Parked:  a.parked(),
		Replays: a.replays(),
		Audit:   postgres.NewAudit(a.db),
		Drift:   watch.Drift,
		Queues: func(ctx context.Context) ([]rabbitmq.QueueState, error) {
			recorded, err := delays.List(ctx, a.topology.Namespace())
			if err != nil {
				recorded = nil // the broker's part of the picture needs no database
			}
			return inspector.Queues(ctx, recorded)
		},
		Token:    token,
		Log:      a.logger.With("service", "reconciler"),
		Stopping: a.stopping,
	})
}
