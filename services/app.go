package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/httpserver"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/telemetry"
)

// app is one running process: what its services share, and what each of them runs.
//
//	newApp ─▶ add… (serve.go) ─▶ run: health up ─▶ schema there ─▶ workers ─▶ ctx ends ─▶ workers drain ─▶ health down ─▶ close
type app struct {
	service   string // its name on the command line
	telemetry telemetry.Config
	logger    *slog.Logger
	registry  *prometheus.Registry
	checks    []telemetry.Check
	db        *postgres.DB
	schema    atomic.Bool // the schema was found to be there

	// Set by broker, which connects once, for the services that need it.
	broker                func() error
	delays                delaysConfig
	topology              rabbitmq.Topology
	publishing, consuming *rabbitmq.Connection
	publisher             *rabbitmq.Publisher
	keeper                *rabbitmq.Keeper
	outcomes              *prometheus.CounterVec
	stopping              chan struct{} // closed when the process begins to drain

	workers []func(context.Context) error // each runs until its context ends, and then drains
}

// routerDrain is a little more than a subscription's own drain, so that the router
// never gives up on a message that its subscription still waits for.
const routerDrain = 25 * time.Second

// collectorPercent lets the heap grow to five times what is alive before the garbage
// collector runs. A service keeps some ten MiB alive, so the default would run it for
// every ten MiB that a burst allocates: a fifth of the closer's time. Measured with
// 30,000 closes at once: 20 % less CPU, and 85 MiB resident in place of 50.
const collectorPercent = 400

func newApp(service string) (*app, error) {
	if os.Getenv("GOGC") == "" { // Go's own variable wins
		debug.SetGCPercent(collectorPercent)
	}
	config, err := load[telemetry.Config]()
	database, dbErr := load[postgres.Config]()
	if err := errors.Join(err, dbErr); err != nil {
		return nil, err
	}
	a := &app{
		telemetry: config,
		logger:    telemetry.NewLogger(config, os.Stderr),
		registry:  prometheus.NewRegistry(),
		service:   service,
		stopping:  make(chan struct{}),
	}
	a.broker = sync.OnceValue(a.connect)
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if a.db, err = postgres.Open(context.Background(), database); err != nil {
		return nil, err
	}
	a.check("serving", func(context.Context) error {
		select {
		case <-a.stopping:
			return errors.New("draining")
		default:
			return nil
		}
	})
	a.check("postgres", a.db.Ping)
	a.check("schema", func(context.Context) error {
		if !a.schema.Load() {
			return errors.New("not checked yet, or behind this program")
		}
		return nil
	})
	return a, nil
}

// connect connects to the broker; a.broker calls it once, however many services ask.
func (a *app) connect() error {
	config, err := load[rabbitmq.Config]()
	delays, delaysErr := load[delaysConfig]()
	if err := errors.Join(err, delaysErr); err != nil {
		return err
	}
	a.delays = delays
	a.topology = delays.topology(config.Namespace)
	a.publishing = rabbitmq.Connect(config, "ordertimeout publishing", a.logger)
	a.consuming = rabbitmq.Connect(config, "ordertimeout consuming", a.logger)
	a.publisher = rabbitmq.NewPublisher(a.publishing)
	a.keeper = rabbitmq.NewKeeper(a.topology, a.consuming, a.logger)
	a.outcomes = rabbitmq.NewOutcomeCounter(a.registry)
	a.check("rabbitmq", func(context.Context) error { return errors.Join(a.publishing.Ready(), a.consuming.Ready()) })
	a.check("topology", func(context.Context) error { return a.keeper.Ready() })
	return nil
}

// consume runs handle on a consumer's queue, inside of the outcome switch.
func (a *app) consume(consumer rabbitmq.Consumer, config rabbitmq.SubscriberConfig, handle message.NoPublishHandlerFunc) {
	outcomes := rabbitmq.Outcomes{
		Consumer:  consumer,
		Topology:  a.topology,
		Publisher: a.publisher,
		Ladder:    a.delays.Ladder,
		Logger:    a.logger.With("service", string(consumer)),
		Stopping:  a.stopping,
		Count:     a.outcomes,
		Replayed: func(ctx context.Context, parkedID string) error {
			return a.replays().Handled(ctx, []string{parkedID})
		},
	}
	a.subscribe(string(consumer), a.topology.Queue(consumer), config, handle, outcomes.Middleware)
}

// subscribe runs handle on a queue once the topology is there.
func (a *app) subscribe(name, queue string, config rabbitmq.SubscriberConfig, handle message.NoPublishHandlerFunc, middleware ...message.HandlerMiddleware) {
	logger := a.logger.With("service", name)
	subscriber := rabbitmq.NewSubscriber(a.consuming, config, logger)
	a.checks = append(a.checks, telemetry.Check{
		Name:  name + " subscription",
		Ready: func(context.Context) error { return subscriber.Ready() },
		Alive: subscriber.Alive,
	})
	a.workers = append(a.workers, func(ctx context.Context) error {
		if !await(ctx, logger, func(context.Context) error { return a.keeper.Ready() }) {
			return nil // the end came first
		}
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: routerDrain}, watermill.NewSlogLogger(logger))
		if err != nil {
			return err
		}
		router.AddConsumerHandler(name, queue, subscriber, handle).AddMiddleware(middleware...)
		return router.Run(ctx)
	})
}

// serveAPI serves a service's calls, and its health beside them for a load balancer that
// sees this port only. check is what health calls it.
func (a *app) serveAPI(service, check, addr string, api *httpapi.API) {
	var listening atomic.Bool
	a.check(check, func(context.Context) error {
		if !listening.Load() {
			return errors.New("not listening yet")
		}
		return nil
	})
	a.workers = append(a.workers, func(ctx context.Context) error {
		listener, err := httpserver.Listen(ctx, addr)
		if err != nil {
			return err
		}
		listening.Store(true)
		api.Handle("GET /healthz", telemetry.Healthz(a.checks))
		api.Handle("GET /readyz", telemetry.Readyz(a.checks))
		return httpserver.Serve(ctx, listener, api, a.logger.With("service", service))
	})
}

// labelled keeps the metrics apart that several services have under the same names.
func (a *app) labelled(service string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"service": service}, a.registry)
}

// run works until ctx ends or a part fails, then drains. Health and metrics are served
// from before the first dependency is there until after the last worker is done.
func (a *app) run(ctx context.Context) error {
	a.logger.Info("starting", "service", a.service, "version", version)
	listener, err := httpserver.Listen(ctx, a.telemetry.MetricsAddr)
	if err != nil {
		return fmt.Errorf("METRICS_ADDR: %w", err)
	}
	health, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	healthDone := make(chan error, 1)
	go func() {
		healthDone <- httpserver.Serve(health, listener, telemetry.Handler(a.registry, a.checks), a.logger.With("service", "health"))
	}()
	err = a.work(ctx)
	stopHealth()
	err = errors.Join(err, <-healthDone)
	a.logger.Info("stopped", "error", err)
	return err
}

// work starts the workers once the schema is there: a message that meets no table
// would climb the ladder for nothing.
func (a *app) work(ctx context.Context) error {
	if !await(ctx, a.logger, a.db.CheckSchema) {
		return nil // the end came first
	}
	a.schema.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, func() { close(a.stopping) }) // asked to end, or a worker failed
	if a.keeper != nil {
		group.Go(func() error { return a.keeper.Run(ctx) })
		group.Go(func() error { return a.recordDelays(ctx) })
	}
	for _, worker := range a.workers {
		group.Go(func() error { return worker(ctx) })
	}
	return group.Wait()
}

// startRetry is how often a missing dependency is looked for at the start.
const startRetry = 200 * time.Millisecond

// await reports true once ready returns nil, and false when ctx ends first. It logs
// each new cause of waiting once.
func await(ctx context.Context, logger *slog.Logger, ready func(context.Context) error) bool {
	for last := ""; ; {
		err := ready(ctx)
		if err == nil {
			return true
		}
		if text := err.Error(); text != last && ctx.Err() == nil {
			logger.Warn("not ready to start, waiting", "error", err)
			last = text
		}
		select {
		case <-time.After(startRetry):
		case <-ctx.Done():
			return false
		}
	}
}

// recordDelays notes which delay queues exist, so that those of dropped windows can be
// found and removed later.
func (a *app) recordDelays(ctx context.Context) error {
	store := postgres.NewDelayQueues(a.db)
	await(ctx, a.logger, func(ctx context.Context) error { // the end may come first
		return store.Record(ctx, a.topology.Namespace(), a.delays.delays().All())
	})
	return nil
}

// close gives everything back, in the opposite order of its making.
func (a *app) close() {
	if a.publisher != nil {
		_ = a.publisher.Close() // what waits for a confirm has been waited for
		a.consuming.Close()
		a.publishing.Close()
	}
	a.db.Close()
}

func (a *app) check(name string, ready func(context.Context) error) {
	a.checks = append(a.checks, telemetry.Check{Name: name, Ready: ready})
}

func (a *app) orders() *postgres.Orders               { return postgres.NewOrders(a.db) }
func (a *app) stock() *postgres.Stock                 { return postgres.NewStock(a.db) }
func (a *app) outbox() *postgres.Outbox               { return postgres.NewOutbox(a.db) }
func (a *app) parked() *postgres.Parked               { return postgres.NewParked(a.db) }
func (a *app) replays() *postgres.Replays             { return postgres.NewReplays(a.db) }
func (a *app) notifications() *postgres.Notifications { return postgres.NewNotifications(a.db) }
