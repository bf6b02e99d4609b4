package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"example.com/ordertimeout/infra/rabbitmq"
)

// closing is the work of one close, the same for everybody, as one statement: the
// order, its stock, its event in the outbox. It takes any number of ids; stock rows are
// locked in one order, so that two of them cannot block each other.
const closing = `
	WITH due AS (
		SELECT id FROM orders WHERE id = ANY($1::uuid[]) AND status = 'pending' AND due_at <= now() ORDER BY id FOR NO KEY UPDATE
	), closed AS (
		UPDATE orders o SET status = 'closed', closed_at = now(), closed_by = 'timer' FROM due WHERE o.id = due.id RETURNING o.id
	), back AS (
		SELECT l.sku, sum(l.held) AS units FROM order_lines l JOIN closed c ON c.id = l.order_id GROUP BY l.sku
	), locked AS (
		SELECT s.sku, b.units FROM stock s JOIN back b ON b.sku = s.sku ORDER BY s.sku FOR NO KEY UPDATE OF s
	), returned AS (
		UPDATE stock s SET available = s.available + l.units, held = s.held - l.units, updated_at = now() FROM locked l WHERE s.sku = l.sku
	)
	INSERT INTO outbox (message_id, order_id, type, payload)
	SELECT gen_random_uuid(), id, 'order.closed', json_build_object('type', 'order.closed', 'version', 1, 'order_id', id, 'closed_at', now(), 'closed_by', 'timer')
	FROM closed`

// closingOne is the same for one order of one line, with nothing in it that only many
// need: the fairest to those who close one at a time.
const closingOne = `
	WITH closed AS (
		UPDATE orders SET status = 'closed', closed_at = now(), closed_by = 'timer' WHERE id = $1 AND status = 'pending' AND due_at <= now() RETURNING id
	), returned AS (
		UPDATE stock s SET available = available + l.held, held = s.held - l.held, updated_at = now()
		FROM closed c JOIN order_lines l ON l.order_id = c.id WHERE s.sku = l.sku
	)
	INSERT INTO outbox (message_id, order_id, type, payload)
	SELECT gen_random_uuid(), id, 'order.closed', json_build_object('type', 'order.closed', 'version', 1, 'order_id', id, 'closed_at', now(), 'closed_by', 'timer')
	FROM closed`

func closeOne(ctx context.Context, pool *pgxpool.Pool, id string) error {
	_, err := pool.Exec(ctx, closingOne, id)
	return err
}

func closeOrders(ctx context.Context, pool *pgxpool.Pool, ids ...string) error {
	_, err := pool.Exec(ctx, closing, ids)
	return err
}

// orderIn reads the order that a timer names.
func orderIn(body []byte) (string, error) {
	var timer struct {
		OrderID string `json:"order_id"`
	}
	err := json.Unmarshal(body, &timer)
	return timer.OrderID, err
}

// scan looks for due orders every second and closes them in batches: no timers at all.
type scan struct{}

const scanBatch = 500

func (scan) name() string                       { return "SQL scan each second" }
func (scan) load(context.Context, *world) error { return nil }

func (scan) work(ctx context.Context, w *world) (func() error, error) {
	return inBackground(ctx, func(ctx context.Context) error {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			for n := scanBatch; n == scanBatch; {
				var err error
				if n, err = scanOnce(ctx, w); err != nil {
					return err
				}
			}
			select {
			case <-every.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}), nil
}

func scanOnce(ctx context.Context, w *world) (int, error) {
	ids, err := w.ids(ctx, fmt.Sprintf("status = 'pending' AND due_at <= now() ORDER BY due_at LIMIT %d", scanBatch))
	if err == nil && len(ids) > 0 {
		err = closeOrders(ctx, w.pool, ids...)
	}
	return len(ids), err
}

// raw is the ceiling of a broker's consumer: the bare client, a large window, batches
// in one transaction, one ack for each. No order has an outcome of its own.
type raw struct{}

const rawBatch = 512

func (raw) name() string                             { return "raw client, batches" }
func (raw) load(ctx context.Context, w *world) error { return w.loadTimers(ctx) }
func (raw) work(ctx context.Context, w *world) (func() error, error) {
	conn, err := amqp.Dial(w.broker.URL())
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(4*rawBatch, 0, false)
	}
	if err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(w.topology().Queue(rabbitmq.Closer), "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, func(ctx context.Context) error {
		for {
			batch, err := gather(ctx, deliveries)
			if len(batch) == 0 || err != nil {
				return err
			}
			if err := closeBatch(ctx, w, batch); err != nil {
				return err
			}
		}
	})
	return func() error { return errors.Join(stop(), conn.Close(), w.removeQueues()) }, nil
}

func closeBatch(ctx context.Context, w *world, batch []amqp.Delivery) (err error) {
	ids := make([]string, len(batch))
	for i, d := range batch {
		if ids[i], err = orderIn(d.Body); err != nil {
			return err
		}
	}
	if err := closeOrders(ctx, w.pool, ids...); err != nil {
		return err
	}
	return batch[len(batch)-1].Ack(true)
}

// gather returns a batch, or what came when nothing more does.
func gather(ctx context.Context, deliveries <-chan amqp.Delivery) ([]amqp.Delivery, error) {
	var batch []amqp.Delivery
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	for len(batch) < rawBatch {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, errors.New("consumer ended")
			}
			batch = append(batch, d)
			idle.Reset(5 * time.Millisecond)
		case <-idle.C:
			return batch, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return batch, nil
}

// inBackground runs fn until stop is called; stop returns its error.
func inBackground(ctx context.Context, fn func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	return func() error {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// stockWatermill is the subscriber of watermill-amqp as it comes, a transaction a
// message, on one queue with so many subscriptions.
type stockWatermill struct{ subscriptions int }

func (s stockWatermill) name() string {
	return fmt.Sprintf("watermill-amqp, %d subscription(s)", s.subscriptions)
}
func (stockWatermill) load(ctx context.Context, w *world) error { return w.loadTimers(ctx) }

func (s stockWatermill) work(ctx context.Context, w *world) (func() error, error) {
	queue := w.topology().Queue(rabbitmq.Closer)
	config := stock.NewDurableQueueConfig(w.broker.URL())
	config.TopologyBuilder = existing{}
	config.Marshaler = rabbitmq.Marshaler{} // its own refuses every dead letter: not all of their headers are text
	config.Consume.Qos.PrefetchCount = 64
	logger := watermill.NewSlogLogger(slog.New(slog.DiscardHandler))
	subscriber, err := stock.NewSubscriber(config, logger)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return nil, err
	}
	for i := range s.subscriptions {
		router.AddConsumerHandler(fmt.Sprint("close-", i), queue, subscriber, func(msg *message.Message) error {
			id, err := orderIn(msg.Payload)
			if err != nil {
				return err
			}
			return closeOne(msg.Context(), w.pool, id)
		})
	}
	stop := inBackground(ctx, router.Run)
	<-router.Running()
	return func() error { return errors.Join(stop(), subscriber.Close(), w.removeQueues()) }, nil
}

// existing declares nothing: the queue is there.
type existing struct{}

func (existing) BuildTopology(*amqp.Channel, string, string, stock.Config, watermill.LoggerAdapter) error {
	return nil
}

func (existing) ExchangeDeclare(*amqp.Channel, string, stock.Config) error { return nil }

// riverQueue is River, with one job an order.
type riverQueue struct {
	workers int
	client  *river.Client[pgx.Tx]
}

func (r *riverQueue) name() string { return fmt.Sprintf("River, %d workers", r.workers) }

type closeArgs struct {
	OrderID string `json:"order_id"`
}

func (closeArgs) Kind() string { return "close" }

type closeWorker struct {
	river.WorkerDefaults[closeArgs]

	pool *pgxpool.Pool
}

func (c *closeWorker) Work(ctx context.Context, job *river.Job[closeArgs]) error {
	return closeOne(ctx, c.pool, job.Args.OrderID)
}

func (r *riverQueue) load(ctx context.Context, w *world) error {
	if err := r.prepare(ctx, w); err != nil {
		return err
	}
	ids, err := w.ids(ctx, w.mine()+" ORDER BY id")
	if err != nil {
		return err
	}
	jobs := make([]river.InsertManyParams, len(ids))
	for i, id := range ids {
		jobs[i] = river.InsertManyParams{Args: closeArgs{id}, InsertOpts: &river.InsertOpts{ScheduledAt: w.due}}
	}
	if _, err := r.client.InsertManyFast(ctx, jobs); err != nil {
		return err
	}
	_, err = w.pool.Exec(ctx, "VACUUM ANALYZE river_job")
	return err
}

// prepare makes River's tables and a client.
func (r *riverQueue) prepare(ctx context.Context, w *world) error {
	driver := riverpgxv5.New(w.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &closeWorker{pool: w.pool})
	r.client, err = river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}}, Workers: workers,
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	return err
}

func (r *riverQueue) work(ctx context.Context, _ *world) (func() error, error) {
	if err := r.client.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return r.client.Stop(context.WithoutCancel(ctx)) }, nil
}

// asynqQueue is asynq, with one task an order.
type asynqQueue struct {
	workers int
	client  *asynq.Client // of a steady run
}

// wholeSecond rounds up: asynq counts in seconds, and would be early.
func wholeSecond(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second) }

func closeTask(id string) (*asynq.Task, error) {
	body, err := json.Marshal(closeArgs{id})
	return asynq.NewTask("close", body), err
}

func (a *asynqQueue) name() string { return fmt.Sprintf("asynq, %d workers", a.workers) }

func (a *asynqQueue) load(ctx context.Context, w *world) error {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: w.redis.addr, PoolSize: 16})
	defer func() { _ = client.Close() }()
	ids, err := w.ids(ctx, w.mine()+" ORDER BY id")
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, 16)
	for k := range errs {
		group.Go(func() {
			for i := k; i < len(ids) && errs[k] == nil; i += len(errs) {
				task, err := closeTask(ids[i])
				if err == nil {
					_, err = client.EnqueueContext(ctx, task, asynq.ProcessAt(wholeSecond(w.due)), asynq.Queue(w.name))
				}
				errs[k] = err
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (a *asynqQueue) work(ctx context.Context, w *world) (func() error, error) {
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: w.redis.addr, PoolSize: a.workers + 10}, asynq.Config{
		Concurrency: a.workers, Queues: map[string]int{w.name: 1}, LogLevel: asynq.FatalLevel,
		DelayedTaskCheckInterval: 100 * time.Millisecond, TaskCheckInterval: 10 * time.Millisecond,
		BaseContext: func() context.Context { return ctx },
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("close", func(ctx context.Context, task *asynq.Task) error {
		id, err := orderIn(task.Payload())
		if err != nil {
			return err
		}
		return closeOne(ctx, w.pool, id)
	})
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	return func() error { server.Shutdown(); return nil }, nil
}
