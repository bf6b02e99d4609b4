package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// way is one way to close orders that are due.
type way interface {
	name() string

	// load puts the timers of all orders in place, so that they fire at w.due. Then work
	// starts whatever handles them; stop ends it.
	load(ctx context.Context, w *world) error
	work(ctx context.Context, w *world) (stop func() error, err error)
}

// drained is what one run of a way measured.
type drained struct {
	Rate    float64 `json:"closed_per_second"`               // from the first commit to the last
	Whole   float64 `json:"closed_per_second_from_deadline"` // to the last commit
	P50     float64 `json:"p50_seconds"`                     // from the deadline to the commit
	P99     float64 `json:"p99_seconds"`
	Max     float64 `json:"max_seconds"`
	CPU     float64 `json:"machine_cpu_seconds_per_1000"` // the servers' included
	Program float64 `json:"closer_cpu_seconds_per_1000"`
	Memory  float64 `json:"closer_peak_bytes"`
}

// drain closes orders that are all due at once.
func (l *lab) drain(ctx context.Context, way way, load load) (d drained, err error) {
	orders := load.orders
	lead := load.wait() + 3*time.Second + time.Duration(orders)*time.Second/5000 + time.Duration(load.pending)*time.Second/4000
	due := time.Now().Add(lead).Truncate(time.Millisecond)
	w, err := l.newWorld(ctx, load, due)
	if err != nil {
		return d, err
	}
	defer func() {
		if closeErr := w.close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
	}()
	if err := way.load(ctx, w); err != nil {
		return d, fmt.Errorf("load: %w", err)
	}
	if late := time.Since(due); late > -200*time.Millisecond {
		return d, fmt.Errorf("loading took %s too long", late+200*time.Millisecond)
	}
	stop, err := way.work(ctx, w)
	if err != nil {
		return d, fmt.Errorf("work: %w", err)
	}
	time.Sleep(time.Until(due))
	busy := busySeconds()
	err = w.awaitClosed(ctx, time.Duration(orders)*time.Second/200+20*time.Second)
	d.CPU = (busySeconds() - busy) / float64(orders) * 1000
	if ours, ok := way.(*product); ok {
		d.Memory, d.Program = ours.memory(), ours.cpu()/float64(orders)*1000
	}
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return d, err
	}
	if err := w.check(ctx, 0); err != nil {
		return d, err
	}
	return d, w.measure(ctx, &d)
}

// measure reads when each close was committed.
func (w *world) measure(ctx context.Context, d *drained) error {
	var first, last float64
	err := w.pool.QueryRow(ctx, `
		SELECT min(late), max(late), percentile_cont(0.5) WITHIN GROUP (ORDER BY late), percentile_cont(0.99) WITHIN GROUP (ORDER BY late)
		FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - due_at)::float8 AS late FROM orders WHERE `+w.mine()+`) t`).
		Scan(&first, &last, &d.P50, &d.P99)
	if err != nil {
		return err
	}
	d.Max = last
	d.Rate = float64(w.orders) / (last - first)
	d.Whole = float64(w.orders) / last
	return nil
}

// medianOf is the run with the median rate.
func medianOf(all []drained) drained {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b drained) int { return cmp.Compare(a.Rate, b.Rate) })
	return sorted[len(sorted)/2]
}
