package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/services/reconciler"
)

// take takes one message out of a queue, or reports that there is none.
func (y *yard) take(queue string) (amqp.Delivery, bool) {
	y.t.Helper()
	d, ok, err := rabbitmqtest.Channel(y.t).Get(queue, true)
	if err != nil {
		y.t.Fatal(err)
	}
	return d, ok
}

func (y *yard) ids() []string {
	y.t.Helper()
	var ids []string
	all, err := y.parked.List(y.t.Context(), postgres.ParkedQuery{All: true, Limit: 1000})
	if err != nil {
		y.t.Fatal(err)
	}
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	slices.Reverse(ids)
	return ids
}

func (y *yard) exec(sql string, args ...any) {
	y.t.Helper()
	if _, err := y.db.Pool().Exec(y.t.Context(), sql, args...); err != nil {
		y.t.Fatal(err)
	}
}

// A replay goes to the queue of the consumer that failed and to nobody else, as the
// message once was, without its failures.
func TestReplaySendsTheMessageAsItWas(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(1)
	id := y.ids()[0]
	y.exec(`UPDATE parked_messages SET headers = '{"origin": "shop", "x-evil": "1"}', story = '{"ordertimeout-attempts": "4"}'`)
	y.start(postgres.ReplayRequest{})
	defer y.replayer(y.publisher)()
	var d amqp.Delivery
	y.eventually("it is in the closer's queue", func() (ok bool) {
		d, ok = y.take(y.topology.Queue(rabbitmq.Closer))
		return ok
	})
	whole, err := y.parked.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if d.MessageId != whole.MessageID || d.Type != "order.timeout" || string(d.Body) != string(whole.Payload) || d.DeliveryMode != amqp.Persistent {
		t.Errorf("sent %+v", d)
	}
	for name, value := range d.Headers {
		if name == "x-delivery-count" || name == "x-acquired-count" {
			continue // the broker's, of this delivery
		}
		if want := map[string]string{"origin": "shop", rabbitmq.MetaReplayOf: id, "type": "order.timeout"}[name]; want != value {
			t.Errorf("header %s is %v, want %q", name, value, want)
		}
	}
	if d.Headers[rabbitmq.MetaReplayOf] != id {
		t.Errorf("headers %v", d.Headers)
	}
	for _, queue := range []string{y.topology.Queue(rabbitmq.Notifier), y.topology.ParkingQueue(), y.topology.Queue(rabbitmq.Closer)} {
		if _, ok := y.take(queue); ok {
			t.Errorf("%s got one too", queue)
		}
	}
}

// What makes no sense any more is not sent, with the reason.
func TestReplayLooksFirst(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(9)
	ids := y.ids()
	change := func(i int, sql string) { y.exec(`UPDATE parked_messages SET `+sql+` WHERE id = $1`, ids[i]) }
	order := func(i int, sql string) {
		y.exec(`UPDATE orders SET `+sql+` WHERE id = (SELECT order_id FROM parked_messages WHERE id = $1)`, ids[i])
	}
	order(0, `status = 'paid', paid_at = now()`)
	order(1, `status = 'closed', closed_at = now(), closed_by = 'sweep'`)
	change(2, `order_id = gen_random_uuid()`)
	change(3, `payload = '{'`)
	change(4, `payload = '{"type":"order.timeout","version":2}'`)
	change(5, `consumer = 'nobody'`)
	change(6, `replays = 5`)
	order(7, `status = 'closed', closed_at = now(), closed_by = 'timer'`)
	change(7, `consumer = 'notifier', type = 'payment.refund_due', payload = convert_to('{"type":"payment.refund_due","version":1,"order_id":"' || order_id || '","payment_id":"p","amount":1,"currency":"EUR"}', 'UTF8')`)
	run := y.start(postgres.ReplayRequest{Canaries: 1})
	stop := y.replayer(y.publisher)
	defer stop()
	var items []postgres.ReplayOutcome
	y.eventually("the refund, the canary, is out", func() bool {
		var err error
		if items, err = y.replays.Items(t.Context(), run.ID, "", "", 100); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(items, func(i postgres.ReplayOutcome) bool { return i.Outcome == "sent" })
	})
	want := []string{
		"resolved: the order is paid", "resolved: the order is closed", "skipped: no order has this id", "skipped: malformed", "skipped: unsupported event",
		"skipped: nothing tells whose", "skipped: it was replayed 5 times", "sent: ", "waiting: ",
	}
	for i, item := range items {
		if got := item.Outcome + ": " + item.Reason; !strings.HasPrefix(got, want[i]) {
			t.Errorf("message %d: %q, want %q", i, got, want[i])
		}
	}
	if _, ok := y.take(y.topology.Queue(rabbitmq.Closer)); ok {
		t.Error("something was sent to the closer")
	}
	if _, ok := y.take(y.topology.Queue(rabbitmq.Notifier)); !ok {
		t.Error("the refund was not sent to the notifier")
	}
}

// consumer settles what a run sends, as a consumer of it would.
type consumer struct {
	*rabbitmq.Publisher

	y     *yard
	fails func(n int64) bool // whether the n-th message fails, from 1
	seen  atomic.Int64
}

func (c *consumer) PublishAll(ctx context.Context, out []rabbitmq.Outgoing) []error {
	errs := c.Publisher.PublishAll(ctx, out)
	for i, o := range out {
		if errs[i] != nil {
			continue
		}
		id, n := o.Message.Metadata.Get(rabbitmq.MetaReplayOf), c.seen.Add(1)
		go func() { // the run holds the row until it has recorded what it sent
			if c.fails(n) {
				_, err := c.y.parked.Store(context.WithoutCancel(ctx), []byte(uuid.NewString()), postgres.ParkedMessage{Consumer: "closer", PreviousID: id, Payload: []byte("{}")})
				if err != nil {
					c.y.t.Error(err)
				}
			} else if err := c.y.replays.Handled(context.WithoutCancel(ctx), []string{id}); err != nil {
				c.y.t.Error(err)
			}
		}()
	}
	return errs
}

func TestCanaries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		canaries    int
		fails       func(int64) bool
		status      postgres.RunStatus
		handled     int
		failedAgain int
	}{
		"one that is handled":      {1, func(int64) bool { return false }, postgres.RunDone, 30, 0},
		"one that fails":           {1, func(n int64) bool { return n == 1 }, postgres.RunCanaryFailed, 0, 1},
		"three, the last fails":    {3, func(n int64) bool { return n == 3 }, postgres.RunCanaryFailed, 2, 1},
		"three, a later one fails": {3, func(n int64) bool { return n == 4 }, postgres.RunDone, 29, 1},
		"none":                     {0, func(n int64) bool { return n == 1 }, postgres.RunDone, 29, 1},
		"more than there are":      {500, func(int64) bool { return false }, postgres.RunDone, 30, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			y.park(30)
			run := y.start(postgres.ReplayRequest{Canaries: c.canaries})
			defer y.replayer(&consumer{Publisher: y.publisher, y: y, fails: c.fails})()
			y.eventually("it is finished", func() bool { return y.get(run.ID).Finished() })
			got := y.get(run.ID)
			if got.Status != c.status || got.Handled != c.handled || got.FailedAgain != c.failedAgain || got.Handled+got.FailedAgain+got.Skipped != 30 {
				t.Errorf("%+v", got)
			}
			if n := y.count(`SELECT count(*) FROM parked_messages WHERE status = 'parked'`); n != 30-c.handled {
				t.Errorf("%d parked, want %d", n, 30-c.handled)
			}
		})
	}
}

// A rate is a promise to what failed under load: never more than that.
func TestReplayKeepsItsRate(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(40)
	began := time.Now()
	run := y.start(postgres.ReplayRequest{Rate: 20})
	defer y.replayer(y.publisher)()
	y.eventually("everything is sent", func() bool { return y.get(run.ID).Sent == 40 })
	// The first batch of 5 goes at once.
	if took := time.Since(began); took < 35*time.Second/20 {
		t.Errorf("40 messages in %s at 20 a second", took)
	}
}

// flaky is a broker that is away for its first calls.
type flaky struct {
	*rabbitmq.Publisher

	away atomic.Int64
}

func (f *flaky) PublishAll(ctx context.Context, out []rabbitmq.Outgoing) []error {
	if f.away.Add(-1) < 0 {
		return f.Publisher.PublishAll(ctx, out)
	}
	errs := make([]error, len(out))
	for i := range errs {
		errs[i] = fmt.Errorf("no broker: %w", domain.ErrUnavailable)
	}
	return errs
}

func TestReplayOutlivesTheBroker(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(20)
	run := y.start(postgres.ReplayRequest{})
	broker := &flaky{Publisher: y.publisher}
	broker.away.Store(3)
	defer y.replayer(broker)()
	y.eventually("everything is sent", func() bool { return y.get(run.ID).Sent == 20 })
	if broker.away.Load() >= 0 {
		t.Error("the broker was never away")
	}
	seen := map[string]int{}
	for range 20 {
		d, ok := y.take(y.topology.Queue(rabbitmq.Closer))
		if !ok {
			t.Fatal("a message is missing")
		}
		seen[d.MessageId]++
	}
	if _, ok := y.take(y.topology.Queue(rabbitmq.Closer)); ok || len(seen) != 20 {
		t.Errorf("%d different messages, more: %v", len(seen), ok)
	}
}

// cutter publishes and then kills the database connection on which the run would be
// recorded, once.
type cutter struct {
	*rabbitmq.Publisher

	y    *yard
	once sync.Once
}

func (c *cutter) PublishAll(ctx context.Context, out []rabbitmq.Outgoing) []error {
	errs := c.Publisher.PublishAll(ctx, out)
	c.once.Do(func() {
		c.y.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
	})
	return errs
}

// Published and not recorded: it is sent again, and nothing is lost.
func TestReplayCutBeforeTheRecord(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(3)
	run := y.start(postgres.ReplayRequest{})
	defer y.replayer(&cutter{Publisher: y.publisher, y: y})()
	y.eventually("everything is sent", func() bool { return y.get(run.ID).Sent == 3 })
	copies := map[string]int{}
	for range 6 {
		d, ok := y.take(y.topology.Queue(rabbitmq.Closer))
		if !ok {
			t.Fatal("a copy is missing")
		}
		copies[d.MessageId]++
		if err := y.replays.Handled(t.Context(), []string{fmt.Sprint(d.Headers[rabbitmq.MetaReplayOf])}); err != nil {
			t.Fatal(err)
		}
	}
	for id, n := range copies {
		if n != 2 {
			t.Errorf("%s was sent %d times, want 2", id, n)
		}
	}
	y.eventually("it is finished", func() bool { return y.get(run.ID).Finished() })
	if got := y.get(run.ID); got.Handled != 3 || got.Status != postgres.RunDone {
		t.Errorf("%+v", got)
	}
}

func TestReplaySendsTheEdit(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(1)
	id := y.ids()[0]
	y.exec(`UPDATE parked_messages SET payload = '{"broken'`)
	whole, err := y.parked.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	edited := fmt.Sprintf(`{"type":"order.timeout","version":1,"order_id":%q,"note":"mended"}`, whole.OrderID)
	order, err := reconciler.CheckPayload("closer", []byte(edited))
	if err != nil {
		t.Fatal(err)
	}
	if err := y.parked.Edit(t.Context(), "ada", id, order, []byte(edited)); err != nil {
		t.Fatal(err)
	}
	y.start(postgres.ReplayRequest{})
	defer y.replayer(y.publisher)()
	y.eventually("the edit is out", func() bool {
		d, ok := y.take(y.topology.Queue(rabbitmq.Closer))
		return ok && string(d.Body) == edited && d.MessageId == whole.MessageID
	})
	if got, err := y.parked.Get(t.Context(), id); err != nil || string(got.Payload) != `{"broken` {
		t.Errorf("the original is %q, %v", got.Payload, err)
	}
}

func TestCheckPayload(t *testing.T) {
	t.Parallel()
	const order = "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"
	timer := `{"type":"order.timeout","version":1,"order_id":"` + order + `"}`
	if got, err := reconciler.CheckPayload("closer", []byte(timer)); err != nil || got != order {
		t.Errorf("%s, %v", got, err)
	}
	for name, c := range map[string]struct{ consumer, payload string }{
		"not JSON":            {"closer", "{"},
		"another version":     {"closer", `{"type":"order.timeout","version":2,"order_id":"` + order + `"}`},
		"another's event":     {"notifier", timer},
		"nobody's message":    {"", timer},
		"a refund of nothing": {"notifier", `{"type":"payment.refund_due","version":1,"order_id":"` + order + `","payment_id":"p"}`},
		"far too long":        {"closer", timer[:len(timer)-1] + `,"x":"` + strings.Repeat("x", 70_000) + `"}`},
	} {
		var field *domain.FieldError
		if _, err := reconciler.CheckPayload(c.consumer, []byte(c.payload)); !errors.As(err, &field) || field.Field != "payload" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// While Postgres is away what is parked stays in its queue: the handler fails, which
// returns the message.
func TestIngestWaitsForPostgres(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	msg := message.NewMessage("m", []byte(`{"order_id":"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"`))
	msg.Metadata.Set(rabbitmq.MetaConsumer, "closer")
	msg.Metadata.Set(rabbitmq.MetaErrorClass, "malformed")
	msg.Metadata.Set(rabbitmq.MetaError, "boom")
	closed := postgrestest.Open(t, "postgres://127.0.0.1:1/none", 1)
	away := reconciler.NewIngest(postgres.NewParked(closed), y.topology, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err := away.Handle(msg); !errors.Is(err, domain.ErrUnavailable) {
		t.Fatalf("without a database: %v", err)
	}
	there := reconciler.NewIngest(y.parked, y.topology, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	for range 2 { // delivered twice
		if err := there.Handle(msg); err != nil {
			t.Fatal(err)
		}
	}
	ids := y.ids()
	if len(ids) != 1 {
		t.Fatalf("%d rows", len(ids))
	}
	m, err := y.parked.Get(t.Context(), ids[0])
	if err != nil || m.OrderID != "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d" || m.Class != "malformed" || string(m.Payload) != string(msg.Payload) {
		t.Errorf("%+v, %v", m, err)
	}
}
