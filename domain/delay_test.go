package domain_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/ordertimeout/domain"
)

func delays() *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "unit")
		return time.Duration(rapid.Int64Range(1, 5000).Draw(t, "n")) * unit
	})
}

// Followed to its end the plan always ends, is never early, and is late by the smallest
// tier at most, with a bounded number of hops.
func TestHopPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		windows := domain.Windows(rapid.SliceOfNDistinct(delays(), 1, 4, rapid.ID).Draw(t, "windows"))
		tiers := domain.Tiers(rapid.SliceOfNDistinct(delays(), 1, 6, rapid.ID).Draw(t, "tiers"))
		plan := domain.NewDelays(windows, tiers)
		all := plan.All()
		smallest := tiers[0]
		for _, tier := range tiers {
			smallest = min(smallest, tier)
		}
		remaining := time.Duration(rapid.Int64Range(1, int64(100*all[len(all)-1])).Draw(t, "remaining"))
		if rapid.Bool().Draw(t, "just below a delay") {
			below := time.Duration(rapid.Int64Range(0, int64(4*smallest)).Draw(t, "by"))
			remaining = max(1, rapid.SampledFrom(all).Draw(t, "delay")-below)
		}
		for _, d := range all {
			if plan.Next(d) != d {
				t.Fatalf("a timer for %s itself waits %s first", d, plan.Next(d))
			}
		}
		// As often as each delay fits into the next longer one, and the longest into the rest.
		bound := int(remaining/all[len(all)-1]) + 2
		for i := 1; i < len(all); i++ {
			bound += int(all[i]/all[i-1]) + 1
		}
		left, hops := remaining, 0
		for ; plan.Next(left) > 0; hops++ {
			if hops > bound {
				t.Fatalf("more than %d hops", bound)
			}
			left -= plan.Next(left)
		}
		if left > 0 || left < -smallest {
			t.Fatalf("ends %s before the deadline, allowed: 0 to -%s", left, smallest)
		}
	})
}

func TestHopPlanOfTheDefaultTiers(t *testing.T) {
	t.Parallel()
	var tiers domain.Tiers
	if err := tiers.UnmarshalText([]byte("1s,10s,1m,5m,30m")); err != nil {
		t.Fatal(err)
	}
	plan := domain.NewDelays(domain.Windows{30 * time.Minute}, tiers)
	// Every half second of a day: all delays are whole seconds, so what lies between two
	// of them goes the same way.
	const step = 500 * time.Millisecond
	hops := make([]int, 24*time.Hour/step+1)
	for i := 1; i < len(hops); i++ {
		hops[i] = 1
		if next := plan.Next(time.Duration(i) * step); next < time.Duration(i)*step {
			hops[i] += hops[i-int(next/step)]
		}
	}
	// 47 of 30m, 5 of 5m, 4 of 1m, 5 of 10s and 9 of 1s.
	if most := slices.Max(hops); most != 70 {
		t.Errorf("%d hops at most for a delay up to a day, want 70", most)
	}
	for _, late := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, time.Second} {
		if got := plan.Next(30*time.Minute - late); got != 30*time.Minute {
			t.Errorf("a window's timer that is relayed %s late takes a hop of %s first", late, got)
		}
	}
	if got := plan.Next(30*time.Minute - time.Second - 1); got != 5*time.Minute {
		t.Errorf("a timer would fire later than the smallest tier allows: next is %s", got)
	}
}

func TestDelaysAreReadExactlyOrRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30m": 30 * time.Minute, "1.5s": 1500 * time.Millisecond, "720h": 720 * time.Hour,
		"1ms": time.Millisecond, "1193h2m47.295s": domain.MaxDelay,
	} {
		var w domain.Windows
		if err := w.UnmarshalText([]byte(text)); err != nil || w.Default() != want {
			t.Errorf("%q: got %v, %v", text, w, err)
		}
	}
	spaced := domain.Windows{}
	if err := spaced.UnmarshalText([]byte(" 30m , 10m ")); err != nil || spaced.String() != "30m,10m" {
		t.Errorf("spaces between delays: %v, %v", spaced, err)
	}
	for _, text := range []string{"", "30", "1800000", "0", "0s", "-1m", "1500us", "1200h", "20y", "30m,,10m", "30m,30m", "30m,30", "1193h2m47.296s", "\xff"} {
		for name, target := range map[string]interface{ UnmarshalText([]byte) error }{"windows": new(domain.Windows), "tiers": new(domain.Tiers), "ladder": new(domain.Ladder)} {
			err := target.UnmarshalText([]byte(text))
			if err == nil || !strings.Contains(err.Error(), "allowed:") || !strings.Contains(err.Error(), `"`) {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
	}
}

func TestDelayNamesAreDurationsAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, domain.MaxDelay.Milliseconds()).Draw(t, "ms")) * time.Millisecond
		name := domain.DelayName(d)
		if back, err := time.ParseDuration(name); err != nil || back != d || strings.ContainsAny(name, ". ") {
			t.Fatalf("%s is named %q", d, name)
		}
	})
}

func TestWindowMustBeOffered(t *testing.T) {
	t.Parallel()
	w := domain.Windows{30 * time.Minute, 10 * time.Minute}
	for text, want := range map[string]time.Duration{"": 30 * time.Minute, "10m": 10 * time.Minute, "600s": 10 * time.Minute} {
		if got, err := w.Parse(text); err != nil || got != want {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
	if _, err := w.Parse("11m"); err == nil || !strings.Contains(err.Error(), "30m,10m") {
		t.Errorf("got %v", err)
	}
}
