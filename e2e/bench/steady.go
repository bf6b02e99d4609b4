package main

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"

	"example.com/ordertimeout/infra/rabbitmq"
)

// arrival is a way to place timers one by one, at their own times.
type arrival interface {
	way

	// begin starts what handles timers; add hands it orders with their deadlines, in the
	// transaction that placed them where the way can do that.
	begin(ctx context.Context, w *world) (stop func() error, err error)
	add(ctx context.Context, w *world, tx pgx.Tx, ids []string, due time.Time) error
}

const (
	steadyRate  = 300                   // orders a second
	steadyTick  = 10 * time.Millisecond // orders are placed in groups of three
	steadyDelay = 2 * time.Second       // from placing to the deadline
)

// steady places orders at a constant rate and measures how late each is closed.
func (l *lab) steady(ctx context.Context, way arrival, length time.Duration) (d drained, err error) {
	n := int(length.Seconds() * steadyRate)
	w, err := l.newWorld(ctx, load{skus: manySKUs}, time.Time{})
	if err != nil {
		return d, err
	}
	w.orders = n
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	if _, err := w.pool.Exec(ctx, `UPDATE stock SET available = $1`, n); err != nil {
		return d, err
	}
	stop, err := way.begin(ctx, w)
	if err != nil {
		return d, err
	}
	began := time.Now()
	for placed := 0; placed < n && err == nil; {
		group := steadyRate * int(steadyTick) / int(time.Second)
		err = w.place(ctx, way, placed, group)
		placed += group
		time.Sleep(time.Until(began.Add(time.Duration(placed) * time.Second / steadyRate)))
	}
	if err == nil {
		err = w.awaitClosed(ctx, steadyDelay+30*time.Second)
	}
	published := 0
	if ours, ok := way.(*product); ok && err == nil {
		published, err = ours.published(ctx, w)
	}
	if err = errors.Join(err, stop()); err != nil {
		return d, err
	}
	if err := w.check(ctx, published); err != nil {
		return d, err
	}
	return d, w.measure(ctx, &d)
}

// place stores a few orders with their timers.
func (w *world) place(ctx context.Context, way arrival, first, n int) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var due time.Time
		rows, err := tx.Query(ctx, `
			WITH placed AS (
				INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
				SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7' || substr(md5(($1 + i)::text), 1, 19))::uuid,
					'customer', 'customer@example.com', 'EUR', 2000, now() + $3::interval, now()
				FROM generate_series(1, $2::int) AS i RETURNING id, due_at
			), numbered AS (
				SELECT id, due_at, 'sku-' || ($1::int + row_number() OVER (ORDER BY id)) % 1000 AS sku FROM placed
			), lines AS (
				INSERT INTO order_lines (order_id, position, sku, quantity, unit_price, held) SELECT id, 1, sku, 1, 500, 1 FROM numbered
			), stock AS (
				UPDATE stock s SET available = available - 1, held = held + 1 FROM numbered n WHERE s.sku = n.sku
			)
			SELECT id::text, due_at FROM numbered`, first, n, steadyDelay)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id string, err error) {
			err = row.Scan(&id, &due)
			return id, err
		})
		if err != nil {
			return err
		}
		return way.add(ctx, w, tx, ids, due)
	})
}

// published waits for the relay and counts the events at the broker, in the notifier's
// queue, which nobody reads here.
func (*product) published(ctx context.Context, w *world) (int, error) {
	for left := true; left; {
		if err := w.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox)").Scan(&left); err != nil {
			return 0, err
		}
	}
	conn, err := amqp.Dial(w.broker.URL())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	queue, err := ch.QueueDeclarePassive(w.topology().Queue(rabbitmq.Notifier), true, false, false, false, nil)
	return queue.Messages, err
}

func (p *product) begin(ctx context.Context, w *world) (func() error, error) {
	conn := w.connect("bench")
	err := w.topology().Declare(ctx, conn)
	conn.Close()
	if err != nil {
		return nil, err
	}
	stopCloser, err := p.work(ctx, w)
	if err != nil {
		return nil, err
	}
	relay, err := w.run("relay")
	if err != nil {
		return nil, errors.Join(err, stopCloser())
	}
	return func() error {
		relay.stop()
		return stopCloser()
	}, nil
}

// add writes timers into the outbox: from there on it is the product's own way.
func (p *product) add(ctx context.Context, _ *world, tx pgx.Tx, ids []string, due time.Time) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO outbox (message_id, order_id, type, payload, due_at)
		SELECT gen_random_uuid(), id, 'order.timeout', json_build_object('type', 'order.timeout', 'version', 1, 'order_id', id, 'due_at', $2::timestamptz), $2
		FROM unnest($1::uuid[]) AS id`, ids, due)
	return err
}

func (s scan) begin(ctx context.Context, w *world) (func() error, error)    { return s.work(ctx, w) }
func (scan) add(context.Context, *world, pgx.Tx, []string, time.Time) error { return nil }

func (r *riverQueue) begin(ctx context.Context, w *world) (func() error, error) {
	if err := r.prepare(ctx, w); err != nil {
		return nil, err
	}
	return r.work(ctx, w)
}

func (r *riverQueue) add(ctx context.Context, _ *world, tx pgx.Tx, ids []string, due time.Time) error {
	jobs := make([]river.InsertManyParams, len(ids))
	for i, id := range ids {
		jobs[i] = river.InsertManyParams{Args: closeArgs{id}, InsertOpts: &river.InsertOpts{ScheduledAt: due}}
	}
	_, err := r.client.InsertManyFastTx(ctx, tx, jobs)
	return err
}

func (a *asynqQueue) begin(ctx context.Context, w *world) (func() error, error) {
	a.client = asynq.NewClient(asynq.RedisClientOpt{Addr: w.redis.addr})
	stop, err := a.work(ctx, w)
	return func() error { return errors.Join(stop(), a.client.Close()) }, err
}

func (a *asynqQueue) add(ctx context.Context, w *world, _ pgx.Tx, ids []string, due time.Time) error {
	for _, id := range ids {
		task, err := closeTask(id)
		if err != nil {
			return err
		}
		if _, err := a.client.EnqueueContext(ctx, task, asynq.ProcessAt(wholeSecond(due)), asynq.Queue(w.name)); err != nil {
			return err
		}
	}
	return nil
}
