package rabbitmq

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the order in which messages are done, every one is acked exactly once, and
// no cumulative ack reaches past one that is still in hand.
func TestAcksNeverReachPastAMessageInHand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "messages")
		window := rapid.IntRange(1, 64).Draw(t, "window")
		order := rapid.Permutation(seq(n)).Draw(t, "order of completion")
		nacked := map[uint64]bool{}
		answered := map[uint64]int{} // by an ack or a nack
		inHand := map[uint64]bool{}
		for _, tag := range order {
			inHand[tag] = true
		}
		a := newAcks(window)
		now := time.Unix(0, 0)
		flush := func() {
			upTo, singles := a.take(now)
			for tag := uint64(1); tag <= upTo; tag++ {
				if inHand[tag] {
					t.Fatalf("ack up to %d covers %d, which is in hand", upTo, tag)
				}
				if answered[tag] == 0 {
					answered[tag]++
				}
			}
			for _, tag := range singles {
				if inHand[tag] || answered[tag] > 0 || tag <= upTo {
					t.Fatalf("ack of %d: in hand %v, answered %d times, up to %d", tag, inHand[tag], answered[tag], upTo)
				}
				answered[tag]++
			}
		}
		for _, tag := range order {
			delete(inHand, tag)
			if rapid.IntRange(0, 4).Draw(t, "fate") == 0 {
				nacked[tag] = true
				answered[tag]++
				a.answered(tag)
			} else {
				a.done(tag, now)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "flush") {
				flush()
			}
		}
		now = now.Add(ackPatience)
		flush()
		for _, tag := range order {
			if answered[tag] != 1 {
				t.Fatalf("delivery %d (nacked %v) answered %d times", tag, nacked[tag], answered[tag])
			}
		}
		if !a.idle() || len(a.settled) != 0 {
			t.Fatalf("left over: %v %v", a.waiting, a.settled)
		}
	})
}

// A slow message in front must not fill the window with finished ones.
func TestAcksDoNotWaitForASlowMessage(t *testing.T) {
	a := newAcks(8)
	now := time.Unix(0, 0)
	a.done(2, now)
	if upTo, singles := a.take(now); upTo != 0 || len(singles) != 0 {
		t.Fatalf("at once: up to %d, singles %v, want to wait for 1", upTo, singles)
	}
	if _, singles := a.take(now.Add(ackPatience)); !slices.Equal(singles, []uint64{2}) {
		t.Fatalf("after patience: singles %v, want 2", singles)
	}
	for tag := uint64(3); tag <= 7; tag++ {
		a.done(tag, now)
	}
	if _, singles := a.take(now); len(singles) != 0 {
		t.Fatalf("not crowded: singles %v, want none", singles)
	}
	a.done(8, now)
	if _, singles := a.take(now); len(singles) != 6 {
		t.Fatalf("crowded: singles %v, want 3 to 8", singles)
	}
	a.done(1, now)
	if upTo, singles := a.take(now); upTo != 1 || len(singles) != 0 {
		t.Fatalf("gap closed: up to %d, singles %v, want 1 only", upTo, singles)
	}
}

func seq(n int) []uint64 {
	tags := make([]uint64, n)
	for i := range tags {
		tags[i] = uint64(i + 1)
	}
	return tags
}
