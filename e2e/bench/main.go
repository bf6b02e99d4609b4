// Command bench measures how fast orders are closed and placed, and how late, beside
// other ways to do the same work: watermill-amqp as it comes, River, asynq, a scan of the
// table, and the bare ceilings. All of them run on the same private servers, one after
// the other, on the same data, and every run is checked: one that loses an order, closes
// one twice or gets the stock wrong has no result.
//
//	main.go       the plan: what is measured, how often
//	lab.go        servers, databases, processes; the check
//	drain.go      orders that are all due at once
//	steady.go     orders that come and fall due one by one
//	place.go      placing through HTTP, against pgbench
//	growth.go     the same with many timers pending; replays
//	product.go, others.go    the ways to close
//	report.go, plot.go       tables, targets, bench.json, pictures
//
// It needs what the tests need, and redis-server for asynq.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	manySKUs = 1000 // what is measured against the targets
	hotSKU   = 1    // everybody waits for one stock row
)

// plan is what one call measures.
type plan struct {
	full   bool
	only   string
	ways   string // those whose names have it
	orders int    // of a drain
	runs   int    // of each drain; the median counts
	length time.Duration
}

func main() {
	root := flag.String("root", "../..", "the project")
	full := flag.Bool("full", false, "40,000 orders, three runs each, and up to a million timers pending: about an hour")
	check := flag.Bool("check", false, "exit 1 when a target is missed")
	out := flag.String("out", ".dev/bench", "directory for bench.json and pictures, from the project's root")
	p := plan{}
	flag.StringVar(&p.only, "only", "drain,steady,place,growth,replay", "parts to measure")
	flag.StringVar(&p.ways, "ways", "", "drain only the ways with this in their names")
	flag.IntVar(&p.orders, "orders", 0, "orders of a drain, in place of the plan's")
	flag.IntVar(&p.runs, "runs", 0, "runs of each drain, in place of the plan's; the median counts")
	flag.Parse()
	p.complete(*full)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	missed, err := run(ctx, p, *root, *out)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case missed && *check:
		os.Exit(1)
	}
}

func (p *plan) complete(full bool) {
	p.full, p.length = full, 6*time.Second
	orders, runs := 10_000, 1
	if full {
		orders, runs, p.length = 40_000, 3, 30*time.Second
	}
	p.orders, p.runs = cmp.Or(p.orders, orders), cmp.Or(p.runs, runs)
}

func run(ctx context.Context, p plan, root, out string) (missed bool, err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return false, err
	}
	l, err := openLab(ctx, root)
	if l != nil {
		defer l.close()
	}
	if err != nil {
		return false, err
	}
	r := &report{At: time.Now().UTC(), Machine: machine(), Orders: p.orders}
	if r.Versions, err = l.versions(ctx); err != nil {
		return false, err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context, plan, *report) error
	}{{"drain", l.drains}, {"steady", l.steadies}, {"place", l.placings}, {"growth", l.growths}, {"replay", l.replays}} {
		if strings.Contains(p.only, part.name) {
			if err := part.measure(ctx, p, r); err != nil {
				return false, fmt.Errorf("%s: %w", part.name, err)
			}
		}
	}
	r.judge()
	r.print(os.Stdout)
	return r.missed(), errors.Join(r.save(out), r.plot(out))
}

// contest is a way with the stock that it works on.
type contest struct {
	way  way
	skus int
}

// contests are every way with many SKUs, and those that are fast with one hot SKU.
func (l *lab) contests(p plan) []contest {
	fast := []way{&product{}, raw{}, scan{}, grouped{}}
	slow := []way{stockWatermill{1}, stockWatermill{32}, &riverQueue{workers: 100}}
	if l.redis != nil {
		slow = append(slow, &asynqQueue{workers: 32})
	}
	if p.full {
		slow = append(slow, &riverQueue{workers: 50}, &riverQueue{workers: 200})
		if l.redis != nil {
			slow = append(slow, &asynqQueue{workers: 64}, &asynqQueue{workers: 128})
		}
	}
	var all []contest
	for _, way := range append(slices.Clone(fast), slow...) {
		all = append(all, contest{way, manySKUs})
	}
	if !p.full {
		fast = fast[:1]
	}
	for _, way := range fast {
		all = append(all, contest{way, hotSKU})
	}
	return slices.DeleteFunc(all, func(c contest) bool { return !strings.Contains(c.way.name(), p.ways) })
}

// drains measures all contests once, and then again: what disturbs the machine for some
// minutes then disturbs all of them.
func (l *lab) drains(ctx context.Context, p plan, r *report) error {
	contests := l.contests(p)
	runs := make([][]drained, len(contests))
	for range p.runs {
		for i, c := range contests {
			orders := p.orders
			if one, ok := c.way.(stockWatermill); ok && one.subscriptions == 1 {
				orders /= 4 // so slow that fewer tell the rate as well
			}
			d, err := l.drain(ctx, c.way, load{orders: orders, skus: c.skus})
			if err != nil {
				return fmt.Errorf("%s: %w", c.way.name(), err)
			}
			sayf("drain %s, %d SKUs: %.0f/s", c.way.name(), c.skus, d.Rate)
			runs[i] = append(runs[i], d)
		}
	}
	for i, c := range contests {
		r.Drains = append(r.Drains, drainRow{Way: c.way.name(), SKUs: c.skus, Runs: p.runs, drained: medianOf(runs[i])})
	}
	return nil
}

func (l *lab) steadies(ctx context.Context, p plan, r *report) error {
	ways := []arrival{&product{}, scan{}, &riverQueue{workers: 100}}
	if l.redis != nil {
		ways = append(ways, &asynqQueue{workers: 32})
	}
	for _, way := range ways {
		d, err := l.steady(ctx, way, p.length)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name(), err)
		}
		sayf("steady %s: p99 %s", way.name(), seconds(d.P99))
		r.Steady = append(r.Steady, steadyRow{Way: way.name(), P50: d.P50, P99: d.P99, Max: d.Max})
	}
	return nil
}

func (l *lab) placings(ctx context.Context, p plan, r *report) error {
	for _, lines := range []int{1, 5} {
		placed, err := l.placing(ctx, lines, 0, p.length/2)
		if err != nil {
			return err
		}
		sayf("placing %d line(s): %.0f/s, pgbench %.0f/s", lines, placed.Rate, placed.PgBench)
		r.Placing = append(r.Placing, placingRow{Lines: lines, placed: placed})
	}
	return nil
}

func sayf(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
