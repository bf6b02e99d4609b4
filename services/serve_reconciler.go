package main

import (
	"context"
	"errors"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/services/reconciler"
	"example.com/ordertimeout/services/reconciler/console"
)

// repair is the reconciler's parts that know each other.
type repair struct {
	inspector *rabbitmq.Inspector
	meter     *reconciler.Meter
	watch     *reconciler.Watch
}

func (a *app) addReconciler() error {
	replay, replayErr := load[reconciler.ReplayConfig]()
	sweep, sweepErr := load[reconciler.SweepConfig]()
	management, managementErr := load[rabbitmq.ManagementConfig]()
	config, configErr := load[reconciler.APIConfig]()
	if err := errors.Join(replayErr, sweepErr, managementErr, configErr, a.broker()); err != nil {
		return err
	}
	logger := a.logger.With("service", "reconciler")
	ingest := reconciler.NewIngest(postgres.NewGroupedParked(a.parked(), postgres.GroupConfig{}), a.topology, a.registry, logger)
	a.subscribe("parking", a.topology.ParkingQueue(), rabbitmq.SubscriberConfig{}, ingest.Handle)
	replayer := reconciler.NewReplayer(a.replays(), a.publisher, a.topology, a.delays.Ladder, replay.Limit, a.registry, logger)
	sweeper := reconciler.NewSweeper(sweep, postgres.NewSweep(a.db), a.registry, logger)
	r, err := a.newRepair(sweep, management)
	if err != nil {
		return err
	}
	a.workers = append(a.workers, replayer.Run, sweeper.Run, r.meter.Run, r.watch.Run)
	return a.serveOperators(config, r)
}

func (a *app) newRepair(sweep reconciler.SweepConfig, config rabbitmq.ManagementConfig) (repair, error) {
	logger := a.logger.With("service", "reconciler")
	r := repair{inspector: rabbitmq.NewInspector(a.topology, a.consuming)}
	r.meter = reconciler.NewMeter(postgres.NewSweep(a.db), postgres.NewDelayQueues(a.db), r.inspector, a.topology.Namespace(), sweep.Grace, a.registry, logger)
	deps := reconciler.WatchDeps{
		Queues: r.inspector, Measure: r.meter.Measure, Declared: a.keeper.Ready, Logger: logger, Registerer: a.registry,
	}
	management, err := rabbitmq.NewManagement(config, a.topology, a.consuming)
	if err != nil {
		return repair{}, err
	}
	if management != nil {
		deps.Management = management.View
	}
	r.watch = reconciler.NewWatch(deps)
	return r, nil
}

// serveOperators serves the reconciler's calls and, beside them, its pages.
func (a *app) serveOperators(config reconciler.APIConfig, r repair) error {
	api, err := reconciler.NewAPI(config, reconciler.APIDeps{
		Parked:  a.parked(),
		Replays: a.replays(),
		Audit:   postgres.NewAudit(a.db),
		Drift:   r.watch.Drift,
		Log:     a.logger.With("service", "reconciler"),
		Metrics: a.labelled("reconciler"),
		Version: version,
	})
	if err != nil {
		return err
	}
	delays := postgres.NewDelayQueues(a.db)
	pages, err := console.New(console.Deps{
		Orders:  a.orders(),
		Outbox:  a.outbox(),
		Parked:  a.parked(),
		Replays: a.replays(),
		Audit:   postgres.NewAudit(a.db),
		Drift:   r.watch.Drift,
		Queues: func(ctx context.Context) ([]rabbitmq.QueueState, error) {
			recorded, err := delays.List(ctx, a.topology.Namespace())
			if err != nil {
				recorded = nil // the broker's part of the picture needs no database
			}
			return r.inspector.Queues(ctx, recorded)
		},
		Token:    config.OperatorToken,
		Log:      a.logger.With("service", "reconciler"),
		Stopping: a.stopping,
	})
	if err != nil {
		return err
	}
	for _, pattern := range pages.Patterns() {
		api.Handle(pattern, pages)
	}
	a.serveAPI("reconciler", "console", config.Addr, api)
	return nil
}
