package reconciler_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/services/reconciler"
)

// patience is how long a test waits for what must happen; only a broken program is
// still not done by then.
const patience = 60 * time.Second

// yard has a database and a declared topology of its own, and nobody who consumes.
type yard struct {
	t         testing.TB
	db        *postgres.DB
	parked    *postgres.Parked
	replays   *postgres.Replays
	topology  rabbitmq.Topology
	publisher *rabbitmq.Publisher
}

// replayLimit is the default one.
const replayLimit = 5

var yardLadder = domain.Ladder{50 * time.Millisecond, 100 * time.Millisecond}

func newYard(t testing.TB) *yard {
	t.Helper()
	delays := domain.NewDelays(domain.Windows{300 * time.Millisecond}, domain.Tiers{100 * time.Millisecond, time.Second})
	db := postgrestest.New(t)
	y := &yard{
		t: t, db: db, parked: postgres.NewParked(db), replays: postgres.NewReplays(db),
		topology: rabbitmq.NewTopology(rabbitmqtest.Namespace(), delays, yardLadder),
	}
	conn := rabbitmq.Connect(rabbitmq.Config{URL: rabbitmqtest.URL(), Namespace: "x"}, "test", slog.New(slog.DiscardHandler))
	t.Cleanup(conn.Close)
	queues, exchanges := y.topology.Names()
	rabbitmqtest.Delete(t, queues, exchanges)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := y.topology.Declare(ctx, conn); err != nil {
		t.Fatal(err)
	}
	y.publisher = rabbitmq.NewPublisher(conn)
	return y
}

// park makes n pending orders and parks a timer of each, as the closer would.
func (y *yard) park(n int) {
	y.t.Helper()
	_, err := y.db.Pool().Exec(y.t.Context(), `
		WITH ids AS (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)), placed AS (
			INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
			SELECT id, 'c', 'c@example.com', 'EUR', 1000, now() - interval '1 minute', now() - interval '2 minutes' FROM ids
		)
		INSERT INTO parked_messages (id, parking_key, consumer, type, message_id, order_id, class, error, group_id, attempts,
			queue, exchange, routing_key, first_failed_at, last_failed_at, headers, story, payload)
		SELECT gen_random_uuid(), decode(md5(id::text), 'hex'), 'closer', 'order.timeout', id::text, id, 'transient',
			'closing order ' || id || ': no such luck', (ARRAY['a', 'b', 'c'])[1 + get_byte(uuid_send(id), 15) % 3], 4, $2, '', $2,
			now() - interval '1 minute', now(), '{}', '{}', convert_to('{"type":"order.timeout","version":1,"order_id":"' || id || '"}', 'UTF8')
		FROM ids`, n, y.topology.Queue(rabbitmq.Closer))
	if err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) start(r postgres.ReplayRequest) postgres.Run {
	y.t.Helper()
	r.Operator = "test"
	run, err := y.replays.Start(y.t.Context(), r)
	if err != nil {
		y.t.Fatal(err)
	}
	return run
}

func (y *yard) get(id string) postgres.Run {
	y.t.Helper()
	run, err := y.replays.Get(y.t.Context(), id)
	if err != nil {
		y.t.Fatal(err)
	}
	return run
}

func (y *yard) count(sql string, args ...any) (n int) {
	y.t.Helper()
	if err := y.db.Pool().QueryRow(y.t.Context(), sql, args...).Scan(&n); err != nil {
		y.t.Fatal(err)
	}
	return n
}

// replayer runs until the returned function is called; the run's lease is then free.
func (y *yard) replayer(p reconciler.Publisher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r := reconciler.NewReplayer(y.replays, p, y.topology, yardLadder, replayLimit, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			y.t.Error(err)
		}
	}
}

func (y *yard) eventually(what string, done func() bool) {
	y.t.Helper()
	for end := time.Now().Add(patience); !done(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			y.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
