package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report is everything that was measured, as it is written to bench.json.
type report struct {
	At       time.Time         `json:"at"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Orders   int               `json:"orders"`
	Drains   []drainRow        `json:"drains"`
	Steady   []steadyRow       `json:"steady"`
	Placing  []placingRow      `json:"placing"`
	Growth   []growthRow       `json:"growth,omitempty"`
	Replay   float64           `json:"replays_per_second,omitempty"`
	Targets  []target          `json:"targets"`
}

type drainRow struct {
	Way  string `json:"way"`
	SKUs int    `json:"skus"`
	Runs int    `json:"runs"`
	drained
}

type steadyRow struct {
	Way string  `json:"way"`
	P50 float64 `json:"p50_seconds"`
	P99 float64 `json:"p99_seconds"`
	Max float64 `json:"max_seconds"`
}

type placingRow struct {
	Lines int `json:"lines"`
	placed
}

type growthRow struct {
	Pending       int     `json:"pending"`
	Drain         float64 `json:"closed_per_second"`
	Place         float64 `json:"placed_per_second"`
	BrokerBytes   float64 `json:"broker_bytes_per_timer"`
	DatabaseBytes float64 `json:"database_bytes_per_order"`
}

// target is one promise, with what came of it.
type target struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	Met  bool   `json:"met"`
}

func (r *report) best(prefix string, skus int) (row drainRow, ok bool) {
	for _, d := range r.Drains {
		if strings.HasPrefix(d.Way, prefix) && d.SKUs == skus && d.Rate > row.Rate {
			row, ok = d, true
		}
	}
	return row, ok
}

func (r *report) lateness(prefix string) (row steadyRow, ok bool) {
	for _, s := range r.Steady {
		if strings.HasPrefix(s.Way, prefix) {
			return s, true
		}
	}
	return row, false
}

// judge compares what was measured with what is promised.
func (r *report) judge() {
	ours, measured := r.best(nameProduct, manySKUs)
	ratio := func(prefix string, least float64) {
		if other, ok := r.best(prefix, manySKUs); ok && measured {
			got := ours.Rate / other.Rate
			r.Targets = append(r.Targets, target{"drain against " + other.Way, fmt.Sprintf("%.2fx", least), fmt.Sprintf("%.2fx", got), got >= least})
		}
	}
	ratio("River", 3)
	ratio("asynq", 3)
	ratio(stockWatermill{1}.name(), 12)
	ratio(raw{}.name(), 0.7)
	ratio(scan{}.name(), 0.75)
	if late, ok := r.lateness(nameProduct); ok {
		below := func(prefix string, share float64) {
			if other, ok := r.lateness(prefix); ok {
				limit := other.P99 * share
				r.Targets = append(r.Targets, target{"steady lateness p99 against " + other.Way, fmt.Sprintf("%.0f ms at most", limit*1000), fmt.Sprintf("%.0f ms", late.P99*1000), late.P99 <= limit})
			}
		}
		below(scan{}.name(), 0.1)
		below("River", 1)
		below("asynq", 1)
	}
	for _, p := range r.Placing {
		if p.Lines == 1 {
			got := p.Rate / p.PgBench
			r.Targets = append(r.Targets,
				target{"placing against pgbench, one line", "0.50x", fmt.Sprintf("%.2fx", got), got >= 0.5},
				target{"outbox lag p99 while placing", "1 s at most", fmt.Sprintf("%.2f s", p.OutboxP99), p.OutboxP99 <= 1})
		}
	}
	if n := len(r.Growth); n > 1 {
		first, last := r.Growth[0], r.Growth[n-1]
		for _, m := range []struct {
			name          string
			before, after float64
		}{{"drain", first.Drain, last.Drain}, {"placing", first.Place, last.Place}} {
			got := m.after / m.before
			r.Targets = append(r.Targets, target{fmt.Sprintf("%s with %d pending against %d", m.name, last.Pending, first.Pending), "0.80x", fmt.Sprintf("%.2fx", got), got >= 0.8})
		}
	}
	if measured && ours.Memory > 0 {
		r.Targets = append(r.Targets, target{fmt.Sprintf("closer's memory, draining %d", r.Orders), "128 MiB at most", fmt.Sprintf("%.0f MiB", ours.Memory/(1<<20)), ours.Memory <= 128<<20})
	}
}

func (r *report) missed() bool {
	for _, t := range r.Targets {
		if !t.Met {
			return true
		}
	}
	return len(r.Targets) == 0
}

func (r *report) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "\n%s\n%v\n\n", r.Machine, r.Versions)
	r.printDrains(out)
	if len(r.Steady) > 0 {
		table(out, fmt.Sprintf("steady, %d/s\tp50 late\tp99 late\tmax late\t", steadyRate), r.Steady, func(s steadyRow) []any {
			return []any{s.Way, seconds(s.P50), seconds(s.P99), seconds(s.Max)}
		})
	}
	if len(r.Placing) > 0 {
		table(out, "placing, lines\torders/s by HTTP\tpgbench\tratio\toutbox p99\t", r.Placing, func(p placingRow) []any {
			return []any{p.Lines, whole(p.Rate), whole(p.PgBench), fmt.Sprintf("%.2f", p.Rate/p.PgBench), seconds(p.OutboxP99)}
		})
	}
	if len(r.Growth) > 0 {
		table(out, "pending\tclosed/s\tplaced/s\tbroker bytes a timer\tdatabase bytes an order\t", r.Growth, func(g growthRow) []any {
			return []any{g.Pending, whole(g.Drain), whole(g.Place), whole(g.BrokerBytes), whole(g.DatabaseBytes)}
		})
	}
	if r.Replay > 0 {
		_, _ = fmt.Fprintf(out, "replay: %.0f messages/s\n\n", r.Replay)
	}
	for _, t := range r.Targets {
		verdict := "met   "
		if !t.Met {
			verdict = "MISSED"
		}
		_, _ = fmt.Fprintf(out, "%s  %s: %s, wanted %s\n", verdict, t.Name, t.Got, t.Want)
	}
}

func (r *report) printDrains(out io.Writer) {
	if len(r.Drains) == 0 {
		return
	}
	table(out, "drain\tSKUs\truns\tclosed/s\tratio\tp50 late\tp99 late\tmax late\tCPU s/1000\tours: CPU s/1000\tmemory\t", r.Drains, func(d drainRow) []any {
		ours, _ := r.best(nameProduct, d.SKUs)
		return []any{
			d.Way, d.SKUs, d.Runs, whole(d.Rate), fmt.Sprintf("%.2f", d.Rate/ours.Rate), seconds(d.P50), seconds(d.P99), seconds(d.Max),
			fmt.Sprintf("%.3f", d.CPU), dash(d.Program, "%.3f"), dash(d.Memory/(1<<20), "%.0f MiB"),
		}
	})
}

func table[R any](out io.Writer, head string, rows []R, cells func(R) []any) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, head)
	for _, row := range rows {
		for _, cell := range cells(row) {
			_, _ = fmt.Fprintf(w, "%v\t", cell)
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush() // nothing is buffered for good: out is the terminal
	_, _ = fmt.Fprintln(out)
}

func whole(v float64) string { return fmt.Sprintf("%.0f", v) }

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.0f ms", s*1000)
	}
	return fmt.Sprintf("%.2f s", s)
}

func dash(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func (r *report) save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bench.json"), append(text, '\n'), 0o644)
}

func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d processors, %s", model, runtime.NumCPU(), runtime.GOOS)
}
