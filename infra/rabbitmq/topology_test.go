package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
)

func TestDeclareIsIdempotentAndRepairsWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := f.topology.Declare(f.ctx(), f.conn); err != nil {
		t.Fatalf("declaring again: %v", err)
	}
	queue := f.topology.Queue(rabbitmq.Closer)
	ns := f.topology.Namespace()
	if err := f.raw.QueueUnbind(queue, ns+".timeout.key", ns+".dlx.exchange", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := f.raw.QueueDelete(f.topology.DelayQueue(300*time.Millisecond), false, false, false); err != nil {
		t.Fatal(err)
	}
	if err := f.topology.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	sent := f.publish(f.topology.TimerRoute(300*time.Millisecond), "through the repaired map")
	if got := f.get(queue); got.MessageId != sent.UUID {
		t.Fatalf("got %s, want %s", got.MessageId, sent.UUID)
	}
}

// The line names queue, argument, what is wanted and what is there.
func TestMismatchIsOneClearLine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := f.topology.DelayQueue(300 * time.Millisecond)
	if _, err := f.raw.QueueDelete(name, false, false, false); err != nil {
		t.Fatal(err)
	}
	_, err := f.raw.QueueDeclare(name, true, false, false, false, map[string]any{
		"x-queue-type": "quorum", "x-message-ttl": int64(5000),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = f.topology.Declare(f.ctx(), f.conn)
	var mismatch *rabbitmq.MismatchError
	if !errors.As(err, &mismatch) {
		t.Fatalf("got %v, want a mismatch", err)
	}
	if mismatch.Queue != name || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q", err)
	}
	// Which of the differing arguments the broker names first is its own affair.
	switch mismatch.Argument {
	case "x-message-ttl":
		if mismatch.Wanted != "300" || mismatch.Found != "5000" {
			t.Errorf("got %q", err)
		}
	case "x-dead-letter-exchange":
		if mismatch.Wanted != f.topology.Namespace()+".dlx.exchange" {
			t.Errorf("got %q", err)
		}
	default:
		t.Logf("broker named %s", mismatch.Argument)
	}
}

// A window that is dropped keeps its queue until its last timer fired; its timers
// arrive all the same; and its queue can be removed once it is empty.
func TestDroppedWindowKeepsItsTimers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := 300 * time.Millisecond
	timer := f.publish(f.topology.TimerRoute(old), "old window")
	next := rabbitmq.NewTopology(f.topology.Namespace(), domain.NewDelays(domain.Windows{500 * time.Millisecond}, domain.Tiers{100 * time.Millisecond, time.Second}), f.ladder)
	rabbitmqtest.Delete(t, []string{next.DelayQueue(500 * time.Millisecond)}, nil)
	if err := next.Declare(f.ctx(), f.conn); err != nil {
		t.Fatal(err)
	}
	if got := f.get(f.topology.Queue(rabbitmq.Closer)); got.MessageId != timer.UUID {
		t.Fatalf("got %s, want the old timer", got.MessageId)
	}
	if removed, err := next.RemoveDelayQueue(f.ctx(), f.conn, old); err != nil || !removed {
		t.Fatalf("empty queue: removed %v, %v", removed, err)
	}
	if state, err := next.DelayQueueState(f.ctx(), f.conn, old); err != nil || state.Exists {
		t.Fatalf("state %+v, %v", state, err)
	}
	// A queue with a timer in it stays.
	f.publish(next.TimerRoute(time.Second), "waits")
	if removed, err := next.RemoveDelayQueue(f.ctx(), f.conn, time.Second); err != nil || removed {
		t.Fatalf("full queue: removed %v, %v", removed, err)
	}
}

// A long timer never blocks a short one: they wait in different queues.
func TestLongTimerDoesNotBlockAShortOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 50 {
		f.publish(f.topology.TimerRoute(time.Second), "long")
	}
	f.publish(f.topology.TimerRoute(100*time.Millisecond), "short")
	if got := f.get(f.topology.Queue(rabbitmq.Closer)); string(got.Body) != "short" {
		t.Fatalf("first out is %q", got.Body)
	}
}

func TestStatesShowTheWholeMap(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publish(f.topology.ParkingRoute(rabbitmq.Notifier), "x")
	eventually(t, func() error {
		states, err := f.topology.States(f.ctx(), f.conn)
		if err != nil {
			t.Fatal(err)
		}
		last := states[len(states)-1]
		if last.Name != f.topology.ParkingQueue() || last.Messages != 1 {
			return errors.New("parking is not last, or not counted")
		}
		for _, s := range states {
			if !s.Exists {
				t.Errorf("%s is missing", s.Name)
			}
		}
		return nil
	})
}
