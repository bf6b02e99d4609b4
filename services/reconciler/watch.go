package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/infra/rabbitmq"
)

// Finding is something wrong with a queue, for an operator to act on.
type Finding struct {
	Queue   string `json:"queue"`
	Problem string `json:"problem" enum:"missing_queue,no_consumer,unexpected_consumer,wrong_arguments,stuck_messages,stuck_dead_letters,lost_timers,lost_binding,policy,parking_limit,management_away"`
	Cause   string `json:"cause"`
	Cure    string `json:"cure"`
}

// What can be wrong. The last four need the management API.
const (
	problemMissingQueue = "missing_queue"
	problemNoConsumer   = "no_consumer"
	problemConsumer     = "unexpected_consumer"
	problemArguments    = "wrong_arguments"
	problemStuck        = "stuck_messages"
	problemLostTimers   = "lost_timers"
	problemManagement   = "management_away"
	problemStuckDead    = "stuck_dead_letters"
	problemLostBinding  = "lost_binding"
	problemPolicy       = "policy"
	problemParkingLimit = "parking_limit"
)

const (
	lookEvery   = 10 * time.Second
	lookTimeout = 10 * time.Second

	consumerPatience   = 2                // looks without a consumer: one that reconnects is no finding
	stuckLooks         = 10               // looks at a depth that does not fall: fewer come about by chance
	stuckGrace         = 30 * time.Second // beyond the queue's TTL
	deadLetterPatience = 2 * time.Minute  // for dead letters that do not become fewer
	lateMemory         = time.Minute      // late orders are remembered: the sweep closes them between two looks
	lateSightings      = 2                // looks with unexplained late orders, within that time
)

var problems = []string{
	problemMissingQueue, problemNoConsumer, problemConsumer, problemArguments, problemStuck, problemStuckDead,
	problemLostTimers, problemLostBinding, problemPolicy, problemParkingLimit, problemManagement,
}

// WatchDeps is what a watch looks at.
type WatchDeps struct {
	Queues     Queues
	Measure    func(ctx context.Context) (Drift, error)                   // see Meter
	Declared   func() error                                               // of the last declaration; see rabbitmq.Keeper
	Management func(ctx context.Context) (rabbitmq.ManagementView, error) // nil without a management API
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Watch looks for queues that lost what they need. A finding is logged when it is new
// and when it is over.
//
// Depths alone tell little: a queue that fills faster than it empties looks like one
// that is stuck. So a delay queue is called stuck only while orders are late, and short
// clocks are given some looks more. Without a management API bindings and policies are
// seen by what they do only.
type Watch struct {
	deps  WatchDeps
	gauge *prometheus.GaugeVec

	// Of earlier looks; used by one look at a time.
	declared    bool              // once: until then nothing is missing
	idle        map[string]int    // looks in a row that found no consumer
	depths      map[string]*depth // of queues whose messages must leave
	deadLetters map[string]*depth
	late        []time.Time // looks that saw late orders, within lateMemory
	unexplained []time.Time // of these, looks that saw no timer of theirs

	mu       sync.Mutex
	findings []Finding
}

// NewWatch returns a watch.
func NewWatch(d WatchDeps) *Watch {
	w := &Watch{
		deps: d, idle: map[string]int{}, depths: map[string]*depth{}, deadLetters: map[string]*depth{},
		gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ordertimeout_topology_findings",
			Help: "Queues that something is wrong with, by problem. GET /v1/drift shows cause and cure.",
		}, []string{"problem"}),
	}
	d.Registerer.MustRegister(w.gauge)
	w.publish(nil)
	return w
}

// Run looks every 10 s until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		w.look(ctx, time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// Findings returns those of the last look.
func (w *Watch) Findings() []Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.findings)
}

// Drift measures the drift and adds the findings. It returns the errors of Meter.Measure.
func (w *Watch) Drift(ctx context.Context) (Drift, error) {
	drift, err := w.deps.Measure(ctx)
	drift.Findings = append([]Finding{}, w.Findings()...)
	return drift, err
}

// look replaces the findings. While the broker is away they stay as they are: readiness
// tells of that.
func (w *Watch) look(ctx context.Context, now time.Time) {
	err := w.deps.Declared()
	mismatch, wrong := errors.AsType[*rabbitmq.MismatchError](err)
	if w.declared = w.declared || wrong || err == nil; !w.declared {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	states, err := w.deps.Queues.Queues(ctx, nil)
	if err != nil {
		w.deps.Logger.Debug("queues cannot be looked at", "error", err)
		return
	}
	var found []Finding
	if wrong {
		found = append(found, wrongArguments(mismatch))
	}
	if drift, err := w.deps.Measure(ctx); err == nil { // without the database the queues remain
		found = append(found, w.lookAtOrders(drift, states, now)...)
	}
	for _, s := range states {
		found = append(found, w.lookAtQueue(s, now)...)
	}
	if w.deps.Management != nil {
		found = append(found, w.lookAtManagement(ctx, states, now)...)
	}
	if ctx.Err() == nil { // else the look is not complete
		w.publish(found)
	}
}

func (w *Watch) publish(found []Finding) {
	w.mu.Lock()
	before := w.findings
	w.findings = found
	w.mu.Unlock()
	for _, f := range found {
		if !has(before, f) {
			w.deps.Logger.Error("topology finding", "queue", f.Queue, "problem", f.Problem, "cause", f.Cause, "cure", f.Cure)
		}
	}
	for _, f := range before {
		if !has(found, f) {
			w.deps.Logger.Info("topology finding is over", "queue", f.Queue, "problem", f.Problem)
		}
	}
	count := map[string]int{}
	for _, f := range found {
		count[f.Problem]++
	}
	for _, problem := range problems {
		w.gauge.WithLabelValues(problem).Set(float64(count[problem]))
	}
}

// has ignores the texts, in which counts change.
func has(all []Finding, f Finding) bool {
	return slices.ContainsFunc(all, func(o Finding) bool { return o.Queue == f.Queue && o.Problem == f.Problem })
}

func wrongArguments(m *rabbitmq.MismatchError) Finding {
	return Finding{
		m.Queue, problemArguments,
		fmt.Sprintf("It exists with %s %s instead of %s, which the broker cannot change.", m.Argument, m.Found, m.Wanted),
		fmt.Sprintf("Let it run empty and remove it with `rabbitmqctl delete_queue %s`; the services declare it again within 10 s.", m.Queue),
	}
}

// lookAtOrders finds late orders that nothing explains: their timers neither wait for a
// consumer nor failed.
func (w *Watch) lookAtOrders(d Drift, states []rabbitmq.QueueState, now time.Time) []Finding {
	w.late, w.unexplained = recent(w.late, now), recent(w.unexplained, now)
	late := d.LateOrders - d.FailingOrders
	if late > 0 {
		w.late = append(w.late, now)
	}
	var timeoutQueue string
	arrived, elsewhere := 0, 0 // timers on their last steps, and those that wait for the relay or a person
	for _, place := range d.Timers {
		i := slices.IndexFunc(states, func(s rabbitmq.QueueState) bool { return s.Name == place.Place })
		switch {
		case i >= 0 && states[i].Consumer == rabbitmq.Closer:
			arrived += place.Timers
		case place.Place == placeOutbox, place.Place == placeParked, i >= 0 && states[i].Role == rabbitmq.RoleParking:
			elsewhere += place.Timers
		}
	}
	if late > elsewhere && arrived == 0 {
		w.unexplained = append(w.unexplained, now)
	}
	for _, s := range states {
		if s.Role == rabbitmq.RoleConsumed && s.Consumer == rabbitmq.Closer {
			timeoutQueue = s.Name
		}
	}
	if len(w.unexplained) < lateSightings {
		return nil
	}
	return []Finding{{
		timeoutQueue, problemLostTimers,
		"Orders are late and none of their timers came: they were lost, or they stick as dead letters in a delay queue because the binding of this queue is gone.",
		"The sweep closes these orders; see with `rabbitmqctl list_bindings` that this queue is bound, and with `rabbitmqctl list_policies` that nothing shortens or deletes delay queues.",
	}}
}

// recent keeps the times that are younger than lateMemory.
func recent(times []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) >= lateMemory })
}

func (w *Watch) lookAtQueue(s rabbitmq.QueueState, now time.Time) []Finding {
	if !s.Exists {
		delete(w.depths, s.Name)
		return []Finding{{
			s.Name, problemMissingQueue,
			"It does not exist: somebody deleted it, or a policy with expires did, and its messages are gone with it.",
			"The services declare it again within 10 s and the sweep closes what lost its timer; when it vanishes again, find the policy with `rabbitmqctl list_policies`.",
		}}
	}
	if s.Role == rabbitmq.RoleConsumed || s.Role == rabbitmq.RoleParking {
		return w.lookAtConsumers(s)
	}
	var found []Finding
	if s.Consumers > 0 {
		found = append(found, Finding{
			s.Name, problemConsumer,
			fmt.Sprintf("%d consumers take messages out of it before their time, and it must have none.", s.Consumers),
			"Find them with `rabbitmqctl list_consumers` and stop them; the sweep closes orders whose timers they took.",
		})
	}
	if w.stuck(s, now) {
		found = append(found, Finding{
			s.Name, problemStuck,
			fmt.Sprintf("It holds %d messages and they did not become fewer for longer than the %s that each waits: what expired cannot leave.", s.Messages, s.TTL),
			fmt.Sprintf("See with `rabbitmqctl list_bindings` that its target is bound, and with `rabbitmq-queues quorum_status %s` that it has a leader.", s.Name),
		})
	}
	return found
}

func (w *Watch) lookAtConsumers(s rabbitmq.QueueState) []Finding {
	if s.Consumers > 0 {
		w.idle[s.Name] = 0
		return nil
	}
	if w.idle[s.Name]++; w.idle[s.Name] < consumerPatience {
		return nil
	}
	service := string(s.Consumer)
	if s.Role == rabbitmq.RoleParking {
		service = "reconciler"
	}
	return []Finding{{
		s.Name, problemNoConsumer,
		fmt.Sprintf("No %s consumes it, and %d messages wait in it.", service, s.Messages),
		fmt.Sprintf("Start one with `ordertimeout %s`; one that runs says in its log and at /readyz why it does not consume.", service),
	}}
}

// stuck tells whether the messages of a delay queue or rung stay beyond their TTL.
func (w *Watch) stuck(s rabbitmq.QueueState, now time.Time) bool {
	d := w.depths[s.Name]
	if d == nil {
		d = &depth{}
		w.depths[s.Name] = d
	}
	d.see(s.Messages, now)
	return d.looks >= stuckLooks && d.stays(s.TTL+stuckGrace, now) && (s.Role == rabbitmq.RoleRung || len(w.late) > 0)
}

// depth watches a number of messages that should fall.
type depth struct {
	messages int
	since    time.Time // when it fell last, or was 0
	looks    int       // from then on
}

func (d *depth) see(messages int, now time.Time) {
	if messages == 0 || messages < d.messages || d.looks == 0 {
		d.since, d.looks = now, 0
	}
	d.messages = messages
	d.looks++
}

func (d *depth) stays(limit time.Duration, now time.Time) bool {
	return d.messages > 0 && now.Sub(d.since) > limit
}

func (w *Watch) lookAtManagement(ctx context.Context, states []rabbitmq.QueueState, now time.Time) []Finding {
	view, err := w.deps.Management(ctx)
	if err != nil {
		return []Finding{{
			"", problemManagement,
			fmt.Sprintf("The management API does not answer, so bindings and policies are not checked: %v.", err),
			"Correct RABBITMQ_MANAGEMENT_URL, or switch the API on with `rabbitmq-plugins enable rabbitmq_management`.",
		}}
	}
	found := slices.Concat(lostBindings(view.LostBindings), harmfulPolicies(view.Policies))
	for _, s := range states {
		if f, ok := w.lookAtDeadLetters(s.Name, view.DeadLetters[s.Name], now); ok {
			found = append(found, f)
		}
		if s.Role == rabbitmq.RoleParking && view.ParkingLimit > 0 {
			found = append(found, Finding{
				s.Name, problemParkingLimit,
				fmt.Sprintf("The broker drops a message from it after %d returns, for good.", view.ParkingLimit),
				fmt.Sprintf("Switch the limit off with `rabbitmqctl set_policy --apply-to queues parking '^%s$' '{\"delivery-limit\":-1}'`.", strings.ReplaceAll(s.Name, ".", `\.`)),
			})
		}
	}
	return found
}

// lookAtDeadLetters finds messages that left the depth of a queue and that their target
// does not take.
func (w *Watch) lookAtDeadLetters(queue string, n int, now time.Time) (Finding, bool) {
	d := w.deadLetters[queue]
	if d == nil {
		d = &depth{}
		w.deadLetters[queue] = d
	}
	if d.see(n, now); d.looks < stuckLooks || !d.stays(deadLetterPatience, now) {
		return Finding{}, false
	}
	return Finding{
		queue, problemStuckDead,
		fmt.Sprintf("%d dead letters stick inside of it because their target does not confirm them.", n),
		"See with `rabbitmqctl list_bindings` and `rabbitmqctl list_queues name messages` that the target is there, bound and not full; then they leave by themselves within minutes.",
	}, true
}

func lostBindings(lost []rabbitmq.LostBinding) []Finding {
	var found []Finding
	for _, b := range lost {
		text := fmt.Sprintf("%s with key %s", b.Exchange, b.Key)
		if n := len(found); n > 0 && found[n-1].Queue == b.Queue {
			found[n-1].Cause = strings.TrimSuffix(found[n-1].Cause, ".") + ", " + text + "."
			continue
		}
		found = append(found, Finding{
			b.Queue, problemLostBinding,
			fmt.Sprintf("It is not bound any more to %s.", text),
			"The services bind it again within 10 s; when that does not help, their logs say why, and `rabbitmqctl list_bindings` shows what is bound.",
		})
	}
	return found
}

func harmfulPolicies(settings []rabbitmq.PolicySetting) []Finding {
	var found []Finding
	for _, p := range settings {
		text := p.Key + " " + p.Value
		if n := len(found); n > 0 && found[n-1].Queue == p.Queue {
			found[n-1].Cause = strings.TrimSuffix(found[n-1].Cause, ".") + ", " + text + "."
			continue
		}
		found = append(found, Finding{
			p.Queue, problemPolicy,
			fmt.Sprintf("Policy %s deletes it, drops its messages or fires timers early: %s.", p.Policy, text),
			fmt.Sprintf("Remove it with `rabbitmqctl clear_policy %s` (an operator policy: `clear_operator_policy`), or change its pattern so that it spares this queue.", p.Policy),
		})
	}
	return found
}
