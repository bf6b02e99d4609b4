package domain_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/ordertimeout/domain"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	ladder := domain.Ladder{10 * time.Second, time.Minute}
	plain := errors.New("plain")
	wrap := func(err error) error { return fmt.Errorf("closing: %w", err) }
	for name, test := range map[string]struct {
		err    error
		failed int
		want   domain.Decision
	}{
		"handled":            {nil, 1, domain.Decision{Outcome: domain.Done, Attempt: 1}},
		"early":              {wrap(&domain.NotDueError{Remaining: time.Second}), 1, domain.Decision{Outcome: domain.Redelay, Wait: time.Second, Attempt: 1}},
		"database away":      {wrap(domain.ErrUnavailable), 2, domain.Decision{Outcome: domain.Hold, Attempt: 2}},
		"first failure":      {plain, 0, domain.Decision{Outcome: domain.Retry, Wait: 10 * time.Second, Attempt: 1, Class: "transient"}},
		"second failure":     {plain, 1, domain.Decision{Outcome: domain.Retry, Wait: time.Minute, Attempt: 2, Class: "transient"}},
		"third failure":      {plain, 2, domain.Decision{Outcome: domain.Park, Attempt: 3, Class: "transient"}},
		"far beyond":         {plain, 1000, domain.Decision{Outcome: domain.Park, Attempt: 1001, Class: "transient"}},
		"a stranger's count": {plain, -5, domain.Decision{Outcome: domain.Park, Attempt: -4, Class: "transient"}},
		"a count of minus 1": {plain, -1, domain.Decision{Outcome: domain.Park, Class: "transient"}},
		"early and away":     {errors.Join(domain.ErrUnavailable, &domain.NotDueError{Remaining: 1}), 3, domain.Decision{Outcome: domain.Redelay, Wait: 1, Attempt: 3}},
		"malformed":          {wrap(domain.ErrMalformed), 0, domain.Decision{Outcome: domain.Park, Attempt: 1, Class: "malformed"}},
		"another release":    {wrap(&domain.UnsupportedEventError{Type: "x", Version: 2}), 0, domain.Decision{Outcome: domain.Park, Attempt: 1, Class: "unsupported_event"}},
		"permanent":          {wrap(domain.ErrPermanent), 0, domain.Decision{Outcome: domain.Park, Attempt: 1, Class: "permanent"}},
		"unknown order":      {wrap(domain.ErrOrderNotFound), 0, domain.Decision{Outcome: domain.Retry, Wait: 10 * time.Second, Attempt: 1, Class: "unknown_order"}},
		"panic":              {wrap(domain.ErrPanic), 0, domain.Decision{Outcome: domain.Retry, Wait: 10 * time.Second, Attempt: 1, Class: "panic"}},
		"away and then due":  {errors.Join(domain.ErrUnavailable, plain), 0, domain.Decision{Outcome: domain.Hold}},
	} {
		if got := domain.Decide(test.err, test.failed, ladder); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

// Whatever count a message brings, it is never a reason to panic or to go on for ever.
func TestDecideWithoutARungParks(t *testing.T) {
	t.Parallel()
	for _, failed := range []int{math.MinInt, -2, -1, 1, 2, math.MaxInt - 1, math.MaxInt} {
		if got := domain.Decide(errors.New("plain"), failed, domain.Ladder{time.Second}); got.Outcome != domain.Park {
			t.Errorf("%d failed attempts: %+v", failed, got)
		}
	}
	if got := domain.Decide(errors.New("plain"), 0, nil); got.Outcome != domain.Park || got.Attempt != 1 {
		t.Errorf("without a ladder: %+v", got)
	}
}

// Names of outcomes and classes are labels of metrics: they stay as they are.
func TestNamesOfOutcomesAndClasses(t *testing.T) {
	t.Parallel()
	for outcome, want := range []string{"done", "redelay", "hold", "retry", "park"} {
		if got := domain.Outcome(outcome).String(); got != want {
			t.Errorf("outcome %d is named %q, want %q", outcome, got, want)
		}
	}
	for want, err := range map[string]error{
		"malformed":         fmt.Errorf("%w: %w", domain.ErrMalformed, domain.ErrOrderNotFound),
		"unsupported_event": &domain.UnsupportedEventError{},
		"unknown_order":     domain.ErrOrderNotFound,
		"permanent":         domain.ErrPermanent,
		"panic":             domain.ErrPanic,
		"transient":         errors.New("plain"),
	} {
		for _, err := range []error{err, fmt.Errorf("outer: %w", err), errors.Join(errors.New("first"), err)} {
			if got := domain.Class(err); got != want {
				t.Errorf("%v: class %q, want %q", err, got, want)
			}
		}
	}
}

// A message that always fails is handled once more than the ladder has rungs, waits on
// each rung once and in their order, and is parked; what costs no attempt changes nothing.
func TestAlwaysFailingMessageEndsInParking(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ladder := domain.Ladder(rapid.SliceOfN(delays(), 0, 6).Draw(t, "ladder"))
		failed, handled := 0, 0
		var waits []time.Duration
		for {
			for _, free := range []error{domain.ErrUnavailable, &domain.NotDueError{Remaining: 1}} {
				if d := domain.Decide(free, failed, ladder); d.Attempt != failed {
					t.Fatalf("%v cost an attempt", free)
				}
			}
			d := domain.Decide(errors.New("always"), failed, ladder)
			handled++
			failed = d.Attempt
			if d.Outcome == domain.Park {
				break
			}
			waits = append(waits, d.Wait)
		}
		if handled != len(ladder)+1 || fmt.Sprint(waits) != fmt.Sprint([]time.Duration(ladder)) {
			t.Fatalf("handled %d times with waits %v on the ladder %v", handled, waits, ladder)
		}
	})
}
