package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"example.com/ordertimeout/e2e/servers"
	"example.com/ordertimeout/infra/postgres"
)

// growths drains and places with more and more timers pending.
func (l *lab) growths(ctx context.Context, p plan, r *report) error {
	if !p.full {
		return nil
	}
	for _, pending := range []int{10_000, 100_000, 1_000_000} {
		row := growthRow{Pending: pending}
		before, err := l.brokerBytes()
		if err != nil {
			return err
		}
		d, err := l.drain(ctx, &product{}, load{orders: p.orders, skus: manySKUs, pending: pending, loaded: func(w *world) error {
			after, err := l.brokerBytes()
			row.BrokerBytes = (after - before) / float64(pending)
			return errors.Join(err, w.pool.QueryRow(ctx, `SELECT (pg_total_relation_size('orders') + pg_total_relation_size('order_lines'))::float8 / count(*) FROM orders`).Scan(&row.DatabaseBytes))
		}})
		if err != nil {
			return fmt.Errorf("%d pending: %w", pending, err)
		}
		placed, err := l.placing(ctx, 1, pending, p.length/2)
		if err != nil {
			return fmt.Errorf("%d pending: %w", pending, err)
		}
		row.Drain, row.Place = d.Rate, placed.Rate
		sayf("%d pending: closed %.0f/s, placed %.0f/s", pending, row.Drain, row.Place)
		r.Growth = append(r.Growth, row)
	}
	return nil
}

func (l *lab) brokerBytes() (float64, error) {
	dir, err := filepath.EvalSymlinks(l.broker.Dir)
	if err != nil {
		return 0, err
	}
	var sum float64
	err = filepath.WalkDir(filepath.Join(dir, "data"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // what is removed meanwhile counts nothing
		}
		if info, err := entry.Info(); err == nil {
			sum += float64(info.Size())
		}
		return nil
	})
	return sum, err
}

// replays parks messages and measures one run over all of them, from its first message
// to its last, with the closer beside it.
func (l *lab) replays(ctx context.Context, p plan, r *report) (err error) {
	w, err := l.newWorld(ctx, load{orders: p.orders, skus: manySKUs}, time.Now().Add(-time.Minute).Truncate(time.Millisecond))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	_, err = w.pool.Exec(ctx, `
		INSERT INTO parked_messages (id, parking_key, consumer, type, message_id, order_id, class, error, group_id, attempts,
			queue, exchange, routing_key, first_failed_at, last_failed_at, headers, story, payload)
		SELECT id, decode(md5(id::text), 'hex'), 'closer', 'order.timeout', id::text, id, 'transient', 'closing order ' || id || ': no such luck', 'a', 4,
			$1, '', $1, now(), now(), '{}', '{}', convert_to('{"type":"order.timeout","version":1,"order_id":"' || id || '"}', 'UTF8')
		FROM orders`, w.topology().Queue("closer"))
	if err != nil {
		return err
	}
	console, err := servers.FreePort()
	if err != nil {
		return err
	}
	reconciler, err := w.run("reconciler", "CONSOLE_ADDR=127.0.0.1:"+strconv.Itoa(console), "SWEEP_GRACE=1h")
	if err != nil {
		return err
	}
	defer reconciler.stop()
	closer, err := w.run("closer")
	if err != nil {
		return err
	}
	defer closer.stop()
	db, err := postgres.Open(ctx, postgres.Config{URL: w.url, MaxConns: 2})
	if err != nil {
		return err
	}
	defer db.Close()
	run, err := postgres.NewReplays(db).Start(ctx, postgres.ReplayRequest{Operator: "bench"})
	if err != nil {
		return err
	}
	if err := w.awaitClosed(ctx, 2*time.Minute); err != nil {
		return err
	}
	err = w.pool.QueryRow(ctx, `
		SELECT count(*) / extract(epoch FROM max(sent_at) - min(sent_at))::float8 FROM replay_items WHERE run_id = $1`, run.ID).Scan(&r.Replay)
	sayf("replay: %.0f/s", r.Replay)
	return err
}
