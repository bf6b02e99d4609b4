package domain

import "time"

// Ladder is the bounded list of waits before a failed message is tried again. A
// message is handled at most len(Ladder)+1 times, then it is parked.
type Ladder []time.Duration

func (l Ladder) String() string { return joinDelays(l) }

// UnmarshalText reads "10s,1m,5m": one wait a rung, in the order they are climbed.
func (l *Ladder) UnmarshalText(text []byte) error {
	delays, err := parseDelays(string(text))
	*l = delays
	return err
}

// Rung returns the wait after a message failed for the attempt-th time, counted from
// one. It reports false when the ladder ends there.
func (l Ladder) Rung(attempt int) (time.Duration, bool) {
	if attempt < 1 || attempt > len(l) {
		return 0, false
	}
	return l[attempt-1], true
}
