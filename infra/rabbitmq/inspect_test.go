package rabbitmq_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

// Every queue is shown with what it is for, the queue of a dropped delay too, and
// queues that are missing do not hide those after them.
func TestInspectorKnowsWhatQueuesAreFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := rabbitmq.NewTopology(f.topology.Namespace(), domain.NewDelays(domain.Windows{time.Hour}, domain.Tiers{time.Second}), nil)
	if err := old.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	rabbitmqtest.Delete(t, []string{old.DelayQueue(time.Hour)}, nil)
	f.publish(old.TimerRoute(time.Hour), "x")
	for _, missing := range []string{f.topology.DelayQueue(time.Second), f.topology.Queue(rabbitmq.Notifier)} {
		if _, err := f.raw.QueueDelete(missing, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	inspector := rabbitmq.NewInspector(f.topology, f.conn)
	recorded := []time.Duration{300 * time.Millisecond, time.Hour, 2 * time.Hour} // configured, dropped, gone
	ns := f.topology.Namespace()
	state := func(name string, role rabbitmq.Role, c rabbitmq.Consumer, ttl time.Duration) rabbitmq.QueueState {
		return rabbitmq.QueueState{Name: ns + "." + name + ".queue", Role: role, Consumer: c, TTL: ttl, Exists: true}
	}
	want := []rabbitmq.QueueState{
		state("delay.1h", rabbitmq.RoleDelay, "", time.Hour),
		state("delay.1s", rabbitmq.RoleDelay, "", time.Second),
		state("delay.300ms", rabbitmq.RoleDelay, "", 300*time.Millisecond),
		state("delay.100ms", rabbitmq.RoleDelay, "", 100*time.Millisecond),
		state("notifier.retry.2.100ms", rabbitmq.RoleRung, rabbitmq.Notifier, 100*time.Millisecond),
		state("notifier.retry.1.50ms", rabbitmq.RoleRung, rabbitmq.Notifier, 50*time.Millisecond),
		state("notify", rabbitmq.RoleConsumed, rabbitmq.Notifier, 0),
		state("closer.retry.2.100ms", rabbitmq.RoleRung, rabbitmq.Closer, 100*time.Millisecond),
		state("closer.retry.1.50ms", rabbitmq.RoleRung, rabbitmq.Closer, 50*time.Millisecond),
		state("timeout", rabbitmq.RoleConsumed, rabbitmq.Closer, 0),
		state("parking", rabbitmq.RoleParking, "", 0),
	}
	want[0].Dropped, want[0].Messages = true, 1
	want[1].Exists, want[6].Exists = false, false
	eventually(t, func() error {
		got, err := inspector.Queues(f.ctx(), recorded)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%d queues, want %d: %+v", len(got), len(want), got)
		}
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("place %d: %+v, want %+v", i, got[i], want[i])
			}
			timers := want[i].Role == rabbitmq.RoleDelay || want[i].Consumer == rabbitmq.Closer
			if got[i].HoldsTimers() != timers {
				t.Errorf("%s holds timers: %v", got[i].Name, !timers)
			}
		}
		return nil
	})
	f.conn.Close()
	if _, err := inspector.Queues(f.ctx(), nil); !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("without a broker: %v", err)
	}
}
