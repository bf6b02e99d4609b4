package console

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/services/reconciler"
)

const (
	sampleEvery   = time.Second
	sampleTimeout = 4 * time.Second

	// rateSpan is over how long rates are taken: short enough to follow, long enough not
	// to flicker.
	rateSpan = 10 * time.Second

	shownGroups  = 5
	shownFailing = 3
)

// snapshot is the whole flow at one instant.
type snapshot struct {
	At      time.Time
	Drift   reconciler.Drift
	Outbox  postgres.Backlog
	Delays  []station
	Closer  lane
	Notify  lane
	Park    station
	Groups  []postgres.ParkedGroup
	Failing []reconciler.FailingOrder // some of the orders that the sweep cannot close
	Parked  int                       // open, over all groups
	More    int                       // groups that are not shown
	Runs    []postgres.Run
	Placed  float64 // orders a second
	Ended   float64 // orders a second that were paid or closed
	Rates   bool    // there are earlier samples to take rates from

	DatabaseAway string // what it said; empty while it is there
	BrokerAway   string
}

// lane is a consumer with its queue and its ladder.
type lane struct {
	Queue station
	Rungs []station
}

// station is a queue as the picture shows it.
type station struct {
	rabbitmq.QueueState

	Label   string
	Change  float64 // messages a second that came more than went, or fewer
	Trouble string
}

// sampler takes a snapshot a second while somebody looks, for everybody who does.
type sampler struct {
	deps Deps

	mu       sync.Mutex
	watchers map[chan *snapshot]struct{}
	stop     context.CancelFunc
	past     []past // samples of the last rateSpan
}

// past is what rates are taken from.
type past struct {
	at      time.Time
	pending int
	depths  map[string]int
}

func newSampler(deps Deps) *sampler {
	return &sampler{deps: deps, watchers: map[chan *snapshot]struct{}{}}
}

// watch returns a channel of snapshots; a slow watcher misses some. leave must be called.
func (s *sampler) watch() (snapshots <-chan *snapshot, leave func()) {
	ch := make(chan *snapshot, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[ch] = struct{}{}
	if s.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s.stop = cancel
		go s.run(ctx)
	}
	return ch, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, ch)
		if len(s.watchers) == 0 && s.stop != nil {
			s.stop()
			s.stop = nil
		}
	}
}

func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		snap := s.sample(ctx)
		s.mu.Lock()
		for ch := range s.watchers {
			select {
			case ch <- snap:
			default: // it has not taken the last one yet
			}
		}
		s.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// sample looks at everything once. What is away is said, and the rest is shown.
func (s *sampler) sample(ctx context.Context) *snapshot {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	snap := &snapshot{At: time.Now()}
	before := s.oldest(snap.At)
	span := rateSpan
	if snap.Rates = before != nil; snap.Rates {
		span = snap.At.Sub(before.at)
	}
	if err := s.askDatabase(ctx, snap, span); err != nil {
		snap.DatabaseAway = err.Error()
	} else if snap.Rates {
		snap.Ended = max(0, snap.Placed-float64(snap.Drift.PendingOrders-before.pending)/span.Seconds())
	}
	queues, err := s.deps.Queues(ctx)
	if err != nil {
		snap.BrokerAway = err.Error()
	}
	slices.SortStableFunc(queues, func(a, b rabbitmq.QueueState) int { return cmp.Compare(b.TTL, a.TTL) })
	for _, q := range queues {
		st := station{QueueState: q, Label: label(q), Trouble: trouble(q)}
		if snap.Rates {
			st.Change = float64(q.Messages-before.depths[q.Name]) / span.Seconds()
		}
		snap.place(st)
	}
	s.remember(snap, queues)
	return snap
}

// askDatabase fills in what the database knows; placed orders are counted over span.
func (s *sampler) askDatabase(ctx context.Context, snap *snapshot, span time.Duration) (err error) {
	if snap.Outbox, err = s.deps.Outbox.Backlog(ctx); err != nil {
		return err
	}
	groups, err := s.deps.Parked.Groups(ctx, postgres.ParkedFilter{})
	if err != nil {
		return err
	}
	for _, g := range groups {
		snap.Parked += g.Messages
	}
	snap.Groups, snap.More = groups[:min(shownGroups, len(groups))], max(0, len(groups)-shownGroups)
	runs, err := s.deps.Replays.List(ctx, "", shownGroups)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if !run.Finished() {
			snap.Runs = append(snap.Runs, run)
		}
	}
	placed, err := s.deps.Orders.Placed(ctx, span)
	if err != nil {
		return err
	}
	snap.Placed = float64(placed) / span.Seconds()
	// It asks the broker too, and last: the rest is known by then.
	drift, err := s.deps.Drift(ctx)
	snap.Drift = drift
	snap.Failing = drift.FailingSample[:min(shownFailing, len(drift.FailingSample))]
	return err
}

func (snap *snapshot) place(st station) {
	lanes := map[rabbitmq.Consumer]*lane{rabbitmq.Closer: &snap.Closer, rabbitmq.Notifier: &snap.Notify}
	switch st.Role {
	case rabbitmq.RoleDelay:
		snap.Delays = append(snap.Delays, st)
	case rabbitmq.RoleRung:
		l := lanes[st.Consumer]
		l.Rungs = append([]station{st}, l.Rungs...) // the longest wait comes first and stands last
	case rabbitmq.RoleConsumed:
		lanes[st.Consumer].Queue = st
	case rabbitmq.RoleParking:
		snap.Park = st
	}
}

// oldest returns the oldest sample within rateSpan of now, if it is old enough to take
// rates from.
func (s *sampler) oldest(now time.Time) *past {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.past) > 0 && now.Sub(s.past[0].at) > rateSpan {
		s.past = s.past[1:]
	}
	if len(s.past) == 0 || now.Sub(s.past[0].at) < sampleEvery/2 {
		return nil
	}
	return &s.past[0]
}

func (s *sampler) remember(snap *snapshot, queues []rabbitmq.QueueState) {
	if snap.DatabaseAway != "" || snap.BrokerAway != "" {
		return
	}
	p := past{at: snap.At, pending: snap.Drift.PendingOrders, depths: map[string]int{}}
	for _, q := range queues {
		p.depths[q.Name] = q.Messages
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = append(s.past, p)
}

func label(q rabbitmq.QueueState) string {
	switch q.Role {
	case rabbitmq.RoleDelay, rabbitmq.RoleRung:
		return domain.DelayName(q.TTL)
	case rabbitmq.RoleParking:
		return "parking queue"
	default:
		if q.Consumer == rabbitmq.Notifier {
			return "notify queue"
		}
		return "timeout queue"
	}
}

// trouble is what is wrong with a queue at first sight.
func trouble(q rabbitmq.QueueState) string {
	waits := q.Role == rabbitmq.RoleDelay || q.Role == rabbitmq.RoleRung
	switch {
	case !q.Exists:
		return "missing"
	case waits && q.Consumers > 0:
		return "has a consumer, which destroys the delay"
	case !waits && q.Consumers == 0:
		return "nobody consumes"
	case q.Dropped:
		return "not configured any more"
	default:
		return ""
	}
}

func (c *Console) showPipeline(w http.ResponseWriter, r *http.Request) error {
	return c.show(w, r, "pipeline", "pipeline", "Pipeline", c.sampler.sample(r.Context()))
}

// streamPipeline sends the picture as it changes, as server-sent events.
func (c *Console) streamPipeline(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Time{}); err != nil { // it has no end
		return fmt.Errorf("stream: %w", err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	snapshots, leave := c.sampler.watch()
	defer leave()
	for {
		select {
		case snap := <-snapshots:
			var out bytes.Buffer
			if err := c.templates["pipeline"].ExecuteTemplate(&out, "picture", snap); err != nil {
				return err
			}
			if !sendEvent(w, out.String()) || control.Flush() != nil {
				return nil // the browser left
			}
		case <-r.Context().Done():
			return nil
		case <-c.deps.Stopping:
			return nil
		}
	}
}

func sendEvent(w http.ResponseWriter, text string) bool {
	var event strings.Builder
	for line := range strings.Lines(text) {
		event.WriteString("data: " + strings.TrimRight(line, "\n") + "\n")
	}
	_, err := fmt.Fprintf(w, "event: pipeline\n%s\n", event.String())
	return err == nil
}
