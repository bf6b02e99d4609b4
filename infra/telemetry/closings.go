package telemetry

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
)

// Closings measures closed orders, whichever service closed them.
type Closings struct {
	closed   *prometheus.CounterVec
	lateness prometheus.Histogram
}

// NewClosings registers the metrics with reg. Services that share a process and its
// registry share the metrics: the first one registers them, the others get the same.
func NewClosings(reg prometheus.Registerer) Closings {
	return Closings{
		closed: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ordertimeout_orders_closed_total",
			Help: "Unpaid orders closed, by the path that closed them: timer, sweep or replay.",
		}, []string{"by"})),
		lateness: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ordertimeout_close_lateness_seconds",
			Help: "Time from an order's deadline to its committed close.",
			// From the milliseconds of a healthy broker to an hour's outage.
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600},
		})),
	}
}

// Add counts one order that was closed late after its deadline. The deadline is the
// database's and the clock may be this machine's, so late can be slightly negative.
func (c Closings) Add(by domain.ClosedBy, late time.Duration) {
	c.closed.WithLabelValues(by.String()).Inc()
	c.lateness.Observe(max(0, late.Seconds()))
}

// register returns the collector that reg knows by c's name: c, or an earlier equal one.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if earlier, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return earlier.ExistingCollector.(C) //nolint:forcetypeassert // equal descriptions are made by the lines above only
	}
	if err != nil {
		panic(err) // a mistake in the lines above
	}
	return c
}
