package domain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxDelay is the longest TTL that RabbitMQ takes: 2^32-1 milliseconds, 49.7 days.
const MaxDelay = (1<<32 - 1) * time.Millisecond

// Windows is what a shop offers its buyers to pay in; the first is the default.
type Windows []time.Duration

// Default returns the window of an order that does not ask for one.
func (w Windows) Default() time.Duration { return w[0] }

// Parse returns the offered window that text names, or the default for an empty
// text. It returns a FieldError for anything that is not offered.
func (w Windows) Parse(text string) (time.Duration, error) {
	if text == "" {
		return w.Default(), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || !slices.Contains(w, d) {
		return 0, &FieldError{Field: "payment_window", Got: clip(text, 32), Allowed: "one of " + w.String()}
	}
	return d, nil
}

func (w Windows) String() string { return joinDelays(w) }

// UnmarshalText reads "30m,10m": at least one delay, each of them once.
func (w *Windows) UnmarshalText(text []byte) error {
	delays, err := parseDelays(string(text))
	*w = delays
	return err
}

// Tiers are the fixed delays over which any other delay is reached in hops,
// shortest first.
type Tiers []time.Duration

func (t Tiers) String() string { return joinDelays(t) }

// UnmarshalText reads "1s,10s,1m": at least one delay, each of them once, in any order.
func (t *Tiers) UnmarshalText(text []byte) error {
	delays, err := parseDelays(string(text))
	slices.Sort(delays)
	*t = delays
	return err
}

// Delays is every delay that has a queue: the windows and the tiers. The zero value
// has none; build it with NewDelays.
type Delays struct {
	sorted    []time.Duration // ascending, each once
	tolerance time.Duration   // the smallest tier: how late a timer may be
}

// NewDelays joins windows and tiers.
func NewDelays(windows Windows, tiers Tiers) Delays {
	all := slices.Concat([]time.Duration(windows), []time.Duration(tiers))
	slices.Sort(all)
	return Delays{sorted: slices.Compact(all), tolerance: slices.Min(tiers)}
}

// All returns every delay, ascending.
func (d Delays) All() []time.Duration { return slices.Clone(d.sorted) }

// Next returns the delay that a timer with remaining time waits next, or 0 when it
// is due. Followed until it returns 0 the plan always ends, is never early, and is
// late by the smallest tier at most.
//
// The shortest delay that reaches the deadline is taken if that is late by no more
// than the smallest tier, so a timer for one of the windows takes one hop. Else the
// longest delay that fits is taken, and the rest comes in further hops.
func (d Delays) Next(remaining time.Duration) time.Duration {
	if remaining <= 0 {
		return 0
	}
	i, _ := slices.BinarySearch(d.sorted, remaining)
	if i < len(d.sorted) && d.sorted[i]-remaining <= d.tolerance {
		return d.sorted[i]
	}
	return d.sorted[i-1] // exists: below the smallest delay the branch above was taken
}

// DelayName writes a delay as it stands in the names of queues: the largest unit
// that divides it, such as "30m", "1h" or "1500ms".
func DelayName(d time.Duration) string {
	for _, unit := range []struct {
		size   time.Duration
		suffix string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if d >= unit.size && d%unit.size == 0 {
			return strconv.FormatInt(int64(d/unit.size), 10) + unit.suffix
		}
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}

func joinDelays(delays []time.Duration) string {
	names := make([]string, len(delays))
	for i, d := range delays {
		names[i] = DelayName(d)
	}
	return strings.Join(names, ",")
}

const delaysAllowed = "a comma-separated list of different Go durations in whole milliseconds from 1ms to 1193h2m47.295s, each with its unit, such as 30m,90s"

func parseDelays(text string) ([]time.Duration, error) {
	var delays []time.Duration
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		d, err := time.ParseDuration(part)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not a duration with a unit; allowed: %s", clip(part, 32), delaysAllowed)
		case d <= 0 || d > MaxDelay:
			return nil, fmt.Errorf("%q is out of range; allowed: %s", part, delaysAllowed)
		case d%time.Millisecond != 0:
			return nil, fmt.Errorf("%q is not a whole number of milliseconds; allowed: %s", part, delaysAllowed)
		case slices.Contains(delays, d):
			return nil, fmt.Errorf("%q stands twice; allowed: %s", part, delaysAllowed)
		}
		delays = append(delays, d)
	}
	return delays, nil
}
