package domain_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
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

// shopDelays draws windows and tiers that are multiples of one unit, so that no plan
// climbs from milliseconds to weeks.
func shopDelays(t *rapid.T) (domain.Windows, domain.Tiers) {
	unit := rapid.SampledFrom([]time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second, time.Minute}).Draw(t, "unit")
	multiples := rapid.Map(rapid.Int64Range(1, 2000), func(n int64) time.Duration { return time.Duration(n) * unit })
	windows := rapid.SliceOfNDistinct(multiples, 1, 4, rapid.ID).Draw(t, "windows")
	return windows, rapid.SliceOfNDistinct(multiples, 1, 6, rapid.ID).Draw(t, "tiers")
}

// remainingOver draws a time that takes several hops and lies around the edges between
// them: a bare range would give a few nanoseconds most of the time.
func remainingOver(t *rapid.T, all []time.Duration, smallest time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += time.Duration(rapid.IntRange(0, 3).Draw(t, "times")) * d
	}
	around := time.Duration(rapid.Int64Range(-2*int64(smallest), 2*int64(smallest)).Draw(t, "around"))
	return max(1, sum+around)
}

// mostHops bounds every plan. While one delay is the longest that fits, each hop takes
// at least that delay from what is left, and what is left is less than the next longer
// delay: no more hops than the one fits into the other. One more may reach beyond the end.
func mostHops(all []time.Duration, remaining time.Duration) int {
	ceil := func(a, b time.Duration) int { return int((a + b - 1) / b) }
	hops := ceil(remaining, all[len(all)-1]) + 1
	for i := 1; i < len(all); i++ {
		hops += ceil(all[i], all[i-1])
	}
	return hops
}

// Followed to its end the plan always ends, is never early, and is late by the smallest
// tier at most, with a bounded number of hops. With a broker that fires late
// the same bound holds, and only its last lateness comes on top.
func TestHopPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		windows, tiers := shopDelays(t)
		plan, smallest := domain.NewDelays(windows, tiers), slices.Min(tiers)
		all := slices.Concat([]time.Duration(windows), []time.Duration(tiers))
		slices.Sort(all)
		all = slices.Compact(all)
		if !slices.Equal(plan.All(), all) {
			t.Fatalf("windows %s and tiers %s give %s", windows, tiers, plan.All())
		}
		remaining := remainingOver(t, all, smallest)
		late := rapid.SliceOfN(rapid.Int64Range(0, int64(50*time.Millisecond)), 1, 5).Draw(t, "late")
		for _, late := range [][]int64{{0}, late} {
			left, hops, last := remaining, 0, time.Duration(0)
			for ; left > 0; hops++ {
				if hops == mostHops(all, remaining) {
					t.Fatalf("%s is not reached in %d hops", remaining, hops)
				}
				next := plan.Next(left)
				if !slices.Contains(all, next) {
					t.Fatalf("%s before the deadline the timer waits %s", left, next)
				}
				last = time.Duration(late[hops%len(late)])
				left -= next + last
			}
			if left < -smallest-last {
				t.Fatalf("ends %s late, allowed: %s", -left, smallest+last)
			}
		}
	})
}

func TestTimerThatIsDueWaitsNoMore(t *testing.T) {
	t.Parallel()
	plan := domain.NewDelays(domain.Windows{time.Minute}, domain.Tiers{time.Second})
	for _, remaining := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
		if next := plan.Next(remaining); next != 0 {
			t.Errorf("%s: waits %s", remaining, next)
		}
	}
	for _, remaining := range []time.Duration{1, time.Microsecond, time.Millisecond} {
		if next := plan.Next(remaining); next != time.Second {
			t.Errorf("%s: waits %s", remaining, next)
		}
	}
}

// A window's own timer takes one hop, also when it is relayed late by up to the smallest
// tier, whatever the windows and tiers are.
func TestWindowTakesOneHop(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		windows, tiers := shopDelays(t)
		plan := domain.NewDelays(windows, tiers)
		window := rapid.SampledFrom(windows).Draw(t, "window")
		late := time.Duration(rapid.Int64Range(0, int64(slices.Min(tiers))).Draw(t, "late"))
		for _, late := range []time.Duration{0, late, slices.Min(tiers)} {
			remaining := window - late
			if remaining <= 0 {
				continue
			}
			// A shorter delay that reaches the deadline as well is one hop too.
			if next := plan.Next(remaining); next < remaining || next > window {
				t.Fatalf("a timer of %s that is relayed %s late waits %s", window, late, next)
			}
		}
	})
}

func TestDelaysCannotBeChangedFromOutside(t *testing.T) {
	t.Parallel()
	windows, tiers := domain.Windows{time.Minute}, domain.Tiers{time.Minute, time.Second}
	plan := domain.NewDelays(windows, tiers)
	plan.All()[0], windows[0], tiers[0] = time.Hour, time.Hour, time.Hour
	if want := []time.Duration{time.Second, time.Minute}; !slices.Equal(plan.All(), want) {
		t.Errorf("got %s, want %s", plan.All(), want)
	}
}

// A window below the smallest tier does not narrow how late a timer may be.
func TestShortWindowCostsNoHops(t *testing.T) {
	t.Parallel()
	plan := domain.NewDelays(domain.Windows{100 * time.Millisecond}, domain.Tiers{10 * time.Second, time.Second})
	if got := plan.Next(9500 * time.Millisecond); got != 10*time.Second {
		t.Errorf("next is %s", got)
	}
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
	for text, culprit := range map[string]string{
		"": "", "30": "30", "1800000": "1800000", "0": "0", "0s": "0s", "-1m": "-1m", "1500us": "1500us", "0.5ms": "0.5ms",
		"1200h": "1200h", "20y": "20y", "9999999h": "9999999h", "1193h2m47.296s": "1193h2m47.296s", "30m 10m": "30m 10m",
		"\xff": "\xff", "30m,,10m": "", "30m,": "", "30m,30m": "30m", "1h,60m": "60m", "30m,30": "30", "30m, 1200h": "1200h",
	} {
		for name, target := range map[string]interface{ UnmarshalText([]byte) error }{"windows": new(domain.Windows), "tiers": new(domain.Tiers), "ladder": new(domain.Ladder)} {
			err := target.UnmarshalText([]byte(text))
			if err == nil || !strings.HasPrefix(err.Error(), strconv.Quote(culprit)+" ") || !strings.Contains(err.Error(), "allowed: a comma-separated list") {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
	}
}

// The first window is the default and rungs are climbed as they are listed; only tiers
// are sorted.
func TestOrderOfListedDelays(t *testing.T) {
	t.Parallel()
	for want, target := range map[string]interface {
		UnmarshalText([]byte) error
		String() string
	}{"10m,1h,90s": new(domain.Windows), "90s,10m,1h": new(domain.Tiers)} {
		if err := target.UnmarshalText([]byte("10m,60m,90s")); err != nil || target.String() != want {
			t.Errorf("got %s, %v, want %s", target, err, want)
		}
	}
	var ladder domain.Ladder
	if err := ladder.UnmarshalText([]byte("10m,60m,90s")); err != nil || ladder.String() != "10m,1h,90s" {
		t.Errorf("got %s, %v", ladder, err)
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
	for _, text := range []string{"11m", "30", "0", "-30m", "30m,10m", " 30m"} {
		_, err := w.Parse(text)
		want := domain.FieldError{Field: "payment_window", Got: text, Allowed: "one of 30m,10m"}
		var got *domain.FieldError
		if !errors.As(err, &got) || *got != want {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
