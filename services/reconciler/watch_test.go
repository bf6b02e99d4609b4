package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/services/reconciler"
)

// scene is what a watch sees, and the watch, which looks every ten seconds of a time
// that only the test moves.
type scene struct {
	t          *testing.T
	queues     []rabbitmq.QueueState
	queuesErr  error
	drift      reconciler.Drift
	driftErr   error
	declared   error
	management rabbitmq.ManagementView
	manageErr  error

	watch *reconciler.Watch
	reg   *prometheus.Registry
	log   *records
	now   time.Time
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, reg: prometheus.NewRegistry(), log: &records{}, now: time.Now()}
	s.queues = []rabbitmq.QueueState{
		{Name: "ns.delay.1m.queue", Role: rabbitmq.RoleDelay, TTL: time.Minute, Exists: true},
		{Name: "ns.closer.retry.1.10s.queue", Role: rabbitmq.RoleRung, Consumer: rabbitmq.Closer, TTL: 10 * time.Second, Exists: true},
		{Name: "ns.timeout.queue", Role: rabbitmq.RoleConsumed, Consumer: rabbitmq.Closer, Exists: true, Consumers: 1},
		{Name: "ns.notify.queue", Role: rabbitmq.RoleConsumed, Consumer: rabbitmq.Notifier, Exists: true, Consumers: 1},
		{Name: "ns.parking.queue", Role: rabbitmq.RoleParking, Exists: true, Consumers: 1},
	}
	s.watch = reconciler.NewWatch(reconciler.WatchDeps{
		Queues:     s,
		Measure:    func(context.Context) (reconciler.Drift, error) { return s.drift, s.driftErr },
		Declared:   func() error { return s.declared },
		Management: func(context.Context) (rabbitmq.ManagementView, error) { return s.management, s.manageErr },
		Logger:     s.log.logger(), Registerer: s.reg,
	})
	return s
}

func (s *scene) Queues(context.Context, []time.Duration) ([]rabbitmq.QueueState, error) {
	return s.queues, s.queuesErr
}

const (
	delayQueue   = 0 // in a scene's queues
	rungQueue    = 1
	timeoutQueue = 2
	notifyQueue  = 3
	parkingQueue = 4
)

// look looks n times, ten seconds apart, and returns queue and problem of what is wrong.
func (s *scene) look(n int) []string {
	s.t.Helper()
	for range n {
		s.now = s.now.Add(10 * time.Second)
		s.watch.Look(s.t.Context(), s.now)
	}
	return findings(s.t, s.watch)
}

func findings(t *testing.T, w *reconciler.Watch) []string {
	t.Helper()
	var all []string
	for _, f := range w.Findings() {
		if !strings.HasSuffix(f.Cause, ".") || !strings.Contains(f.Cure, "`") {
			t.Errorf("%s: cause %q, cure %q: want a sentence and a command", f.Problem, f.Cause, f.Cure)
		}
		all = append(all, f.Queue+" "+f.Problem)
	}
	return all
}

// expect looks n times and wants exactly these findings.
func (s *scene) expect(n int, want ...string) {
	s.t.Helper()
	if got := s.look(n); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Fatalf("findings %q, want %q", got, want)
	}
}

// A finding is logged once when it is new and once when it is over, and counted.
func TestFindingsComeAndGo(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.expect(3)
	s.queues[delayQueue].Exists = false
	s.expect(3, "ns.delay.1m.queue missing_queue")
	if n := metric(t, s.reg, "ordertimeout_topology_findings", "missing_queue"); n != 1 {
		t.Errorf("the gauge shows %v", n)
	}
	if drift, err := s.watch.Drift(t.Context()); err != nil || len(drift.Findings) != 1 {
		t.Errorf("with the drift: %+v, %v", drift.Findings, err)
	}
	s.queues[delayQueue].Exists = true
	s.expect(3)
	if n := metric(t, s.reg, "ordertimeout_topology_findings", ""); n != 0 {
		t.Errorf("the gauges show %v", n)
	}
	if drift, err := s.watch.Drift(t.Context()); err != nil || drift.Findings == nil || len(drift.Findings) != 0 {
		t.Errorf("an empty list must stay a list: %#v, %v", drift.Findings, err)
	}
	if all := s.log.with("topology finding"); len(all) != 2 || len(s.log.with("level=ERROR", "missing_queue", "cause=", "cure=")) != 1 || len(s.log.with("is over", "ns.delay.1m.queue")) != 1 {
		t.Errorf("logged %q", all)
	}
}

// While the broker is away nothing changes; without the database the queues are still
// looked at.
func TestWatchWithoutItsDependencies(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.queues[delayQueue].Exists = false
	s.driftErr = domain.ErrUnavailable
	s.expect(1, "ns.delay.1m.queue missing_queue")
	s.queuesErr, s.queues = domain.ErrUnavailable, nil
	s.expect(3, "ns.delay.1m.queue missing_queue")
	if _, err := s.watch.Drift(t.Context()); !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("drift without the database: %v", err)
	}
	if all := s.log.with("level="); len(all) != 1 {
		t.Errorf("logged %q", all)
	}
}

// What was not declared yet is not missing. Later, a declaration that fails hides nothing.
func TestWatchWaitsForTheFirstDeclaration(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.queues[delayQueue].Exists = false
	s.declared = errors.New("topology is not declared yet")
	s.expect(2)
	s.declared = nil
	s.expect(1, "ns.delay.1m.queue missing_queue")
	s.declared = errors.New("broker is away")
	s.queues[rungQueue].Exists = false
	s.expect(1, "ns.delay.1m.queue missing_queue", "ns.closer.retry.1.10s.queue missing_queue")
}

func TestWatchWantsConsumersWhereTheyBelong(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, service := range map[int]string{timeoutQueue: "closer", notifyQueue: "notifier", parkingQueue: "reconciler"} {
		s.queues[i].Consumers, s.queues[i].Messages = 0, 5
		s.expect(1) // it may just be connecting
		s.expect(1, s.queues[i].Name+" no_consumer")
		if cure := s.watch.Findings()[0].Cure; !strings.Contains(cure, "`ordertimeout "+service+"`") {
			t.Errorf("%s: %s", s.queues[i].Name, cure)
		}
		s.queues[i].Consumers = 2
		s.expect(1)
		s.queues[i].Consumers = 0
		s.expect(1) // it counts from the beginning
		s.queues[i].Consumers = 1
	}
	s.queues[delayQueue].Consumers, s.queues[rungQueue].Consumers = 1, 1
	s.expect(1, "ns.delay.1m.queue unexpected_consumer", "ns.closer.retry.1.10s.queue unexpected_consumer")
}

func TestWatchTellsOfWrongArguments(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.declared = errors.New("broker is away")
	s.expect(1)
	s.declared = fmt.Errorf("declaring: %w", &rabbitmq.MismatchError{Queue: "ns.delay.1m.queue", Argument: "x-message-ttl", Wanted: "60000", Found: "6"})
	s.expect(1, "ns.delay.1m.queue wrong_arguments")
	if f := s.watch.Findings()[0]; !strings.Contains(f.Cause, "x-message-ttl 6 instead of 60000") || !strings.Contains(f.Cure, "delete_queue ns.delay.1m.queue") {
		t.Errorf("%+v", f)
	}
}

// What waits longer than its TTL is stuck. A delay queue that only fills is not: orders
// must be late, too.
func TestWatchFindsStuckMessages(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.queues[rungQueue].Messages = 3
	s.expect(9)
	s.queues[rungQueue].Messages = 2 // it moves
	s.expect(9)
	s.queues[rungQueue].Messages = 4
	s.expect(2, "ns.closer.retry.1.10s.queue stuck_messages")
	s.queues[rungQueue].Messages = 0
	s.expect(30)

	s.queues[delayQueue].Messages = 100
	s.expect(30)
	s.drift.LateOrders, s.drift.Timers = 1, []reconciler.TimerPlace{{Place: "ns.timeout.queue", Timers: 1}}
	s.expect(1, "ns.delay.1m.queue stuck_messages")
	s.drift.LateOrders = 0 // the sweep was there
	s.expect(5, "ns.delay.1m.queue stuck_messages")
	s.queues[delayQueue].Messages = 99
	s.drift.LateOrders = 1
	s.expect(9)
	s.expect(2, "ns.delay.1m.queue stuck_messages")
	s.drift.LateOrders = 0
	s.expect(6)

	s.queues[delayQueue].TTL = time.Hour
	s.queues[delayQueue].Messages = 98
	s.drift.LateOrders = 1
	s.expect(364) // an hour and half a minute after the first of them
	s.expect(1, "ns.delay.1m.queue stuck_messages")
}

// Late orders whose timers are nowhere point at dead letters that cannot be delivered.
func TestWatchFindsLostTimers(t *testing.T) {
	t.Parallel()
	for name, explained := range map[string]reconciler.Drift{
		"waits for a closer":      {LateOrders: 9, Timers: []reconciler.TimerPlace{{Place: "ns.timeout.queue", Timers: 1}}},
		"climbs the ladder":       {LateOrders: 9, Timers: []reconciler.TimerPlace{{Place: "ns.closer.retry.1.10s.queue", Timers: 1}}},
		"all wait for the relay":  {LateOrders: 9, Timers: []reconciler.TimerPlace{{Place: "outbox", Timers: 9}}},
		"all parked":              {LateOrders: 9, Timers: []reconciler.TimerPlace{{Place: "parked", Timers: 4}, {Place: "ns.parking.queue", Timers: 5}}},
		"the sweep cannot either": {LateOrders: 9, FailingOrders: 9},
		"nobody is late":          {PendingOrders: 9, OverdueOrders: 9},
	} {
		s := newScene(t)
		s.drift = explained
		if got := s.look(4); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	s := newScene(t)
	s.drift = reconciler.Drift{LateOrders: 9, Timers: []reconciler.TimerPlace{
		{Place: "outbox", Timers: 4}, {Place: "ns.delay.1m.queue", Timers: 70}, {Place: "ns.timeout.queue"}, {Place: "ns.parking.queue", Timers: 2}, {Place: "parked", Timers: 2},
	}}
	s.expect(1) // may be in a closer's hand
	s.expect(1, "ns.timeout.queue lost_timers")
	s.drift.LateOrders = 0 // the sweep closed them, and more will come
	s.expect(4, "ns.timeout.queue lost_timers")
	s.expect(2)
}

func TestWatchTellsWhatTheManagementAPIKnows(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.manageErr = errors.New("401 Unauthorized")
	s.expect(1, " management_away")
	s.manageErr = nil
	s.expect(1)
	s.management.LostBindings = []rabbitmq.LostBinding{
		{Queue: "ns.timeout.queue", Exchange: "ns.dlx.exchange", Key: "ns.timeout.key"},
		{Queue: "ns.notify.queue", Exchange: "ns.events.exchange", Key: "order.paid"},
		{Queue: "ns.notify.queue", Exchange: "ns.events.exchange", Key: "order.closed"},
	}
	s.management.Policies = []rabbitmq.PolicySetting{
		{Queue: "ns.delay.1m.queue", Policy: "bad", Key: "expires", Value: "3600000"},
		{Queue: "ns.delay.1m.queue", Policy: "bad", Key: "max-length", Value: "10"},
	}
	s.management.ParkingLimit = 20
	s.expect(1, "ns.timeout.queue lost_binding", "ns.notify.queue lost_binding", "ns.delay.1m.queue policy", "ns.parking.queue parking_limit")
	all := s.watch.Findings()
	for i, want := range map[int]string{
		0: "ns.dlx.exchange with key ns.timeout.key.", 1: "key order.paid, ns.events.exchange with key order.closed.",
		2: "Policy bad deletes it, drops its messages or fires timers early: expires 3600000, max-length 10.", 3: "after 20 returns",
	} {
		if !strings.Contains(all[i].Cause, want) {
			t.Errorf("%s: %s, want %q", all[i].Problem, all[i].Cause, want)
		}
	}
	if cure := all[3].Cure; !strings.Contains(cure, `'^ns\.parking\.queue$' '{"delivery-limit":-1}'`) {
		t.Errorf("cure %s", cure)
	}
	s.management = rabbitmq.ManagementView{DeadLetters: map[string]int{"ns.delay.1m.queue": 3}}
	s.expect(12)
	s.management.DeadLetters["ns.delay.1m.queue"] = 2
	s.expect(13)
	s.management.DeadLetters["ns.delay.1m.queue"] = 5
	s.expect(1, "ns.delay.1m.queue stuck_dead_letters")
	s.management.DeadLetters = nil
	s.expect(1)
}

// brokerWatch watches the queues of a yard, whose consumers are not there, and its drift.
func brokerWatch(t *testing.T, y *yard) (*reconciler.Watch, *rabbitmq.Connection) {
	t.Helper()
	conn := rabbitmq.Connect(rabbitmq.Config{URL: rabbitmqtest.URL(), Namespace: "x"}, "test", slog.New(slog.DiscardHandler))
	t.Cleanup(conn.Close)
	inspector := rabbitmq.NewInspector(y.topology, conn)
	reg, logger := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	meter := reconciler.NewMeter(postgres.NewSweep(y.db), postgres.NewDelayQueues(y.db), inspector, y.topology.Namespace(), 0, reg, logger)
	return reconciler.NewWatch(reconciler.WatchDeps{
		Queues: inspector, Measure: meter.Measure, Declared: func() error { return nil }, Logger: logger, Registerer: reg,
	}), conn
}

// The binding of the timeout queue is gone, or its exchange: expired timers cannot leave
// the delay queue and are in no count. The watch sees it by the orders that are late,
// without a management API.
func TestWatchSeesTimersThatCannotLeave(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	watch, _ := brokerWatch(t, y)
	raw := rabbitmqtest.Channel(t)
	ns := y.topology.Namespace()
	if err := raw.QueueUnbind(y.topology.Queue(rabbitmq.Closer), ns+".timeout.key", ns+".dlx.exchange", nil); err != nil {
		t.Fatal(err)
	}
	orders := &overdueShop{t: t, ctx: t.Context(), db: y.db, orders: postgres.NewOrders(y.db)}
	units := int64(shopStock)
	if _, err := postgres.NewStock(y.db).Set(t.Context(), "tea", &units); err != nil {
		t.Fatal(err)
	}
	orders.place(3, time.Hour)
	for range 3 {
		if err := y.publisher.Publish(y.topology.TimerRoute(300*time.Millisecond).Topic(), message.NewMessage(watermill.NewUUID(), []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	want := y.topology.Queue(rabbitmq.Closer) + " lost_timers"
	now := time.Now()
	until(t, func() string {
		now = now.Add(10 * time.Second)
		watch.Look(t.Context(), now)
		if got := findings(t, watch); len(got) == 0 || got[0] != want {
			return fmt.Sprintf("findings %q, want %q first", got, want)
		}
		return ""
	})
}

// Somebody deleted a queue and reads another one: both show, and are over once the
// topology is declared again and the stranger is gone.
func TestWatchSeesTheBroker(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	watch, conn := brokerWatch(t, y)
	raw := rabbitmqtest.Channel(t)
	if _, err := raw.QueueDelete(y.topology.DelayQueue(time.Second), false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Consume(y.topology.DelayQueue(300*time.Millisecond), "stranger", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	ns := y.topology.Namespace()
	idle := []string{ns + ".notify.queue no_consumer", ns + ".timeout.queue no_consumer", ns + ".parking.queue no_consumer"}
	now := time.Now()
	look := func(want ...string) {
		until(t, func() string {
			now = now.Add(10 * time.Second)
			watch.Look(t.Context(), now)
			if got := findings(t, watch); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Sprintf("findings %q, want %q", got, want)
			}
			return ""
		})
	}
	look(append([]string{ns + ".delay.1s.queue missing_queue", ns + ".delay.300ms.queue unexpected_consumer"}, idle...)...)
	if err := raw.Cancel("stranger", false); err != nil {
		t.Fatal(err)
	}
	if err := y.topology.Declare(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	look(idle...)
}
