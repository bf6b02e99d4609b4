package postgres

import (
	"slices"
	"sync"
	"time"
)

// GroupConfig has a default for everything.
type GroupConfig struct {
	// Most is how many calls share one transaction. Default 512: more gained nothing.
	Most int

	// Transactions is how many run at once. Default 2: while one waits for its commit
	// the next one is decided and written. A third gained nothing on two cores.
	Transactions int

	// Gather is how long a transaction waits for company when more than one call is there
	// already. One that is alone never waits. Default 1 ms.
	Gather time.Duration
}

func (c GroupConfig) withDefaults() GroupConfig {
	if c.Most == 0 {
		c.Most = 512
	}
	if c.Transactions == 0 {
		c.Transactions = 2
	}
	if c.Gather == 0 {
		c.Gather = time.Millisecond
	}
	return c
}

// gatherer hands calls that wait at the same time to work together. It has no goroutine
// while nobody waits, so it needs no end.
type gatherer[C comparable] struct {
	config GroupConfig
	work   func([]C) // answers every call

	mu      sync.Mutex
	waiting []C
	full    chan struct{} // has room for one: Most calls wait
	running int           // goroutines that work
}

func newGatherer[C comparable](config GroupConfig, work func([]C)) *gatherer[C] {
	return &gatherer[C]{config: config.withDefaults(), work: work, full: make(chan struct{}, 1)}
}

func (g *gatherer[C]) add(call C) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, call)
	if len(g.waiting) >= g.config.Most {
		select {
		case g.full <- struct{}{}:
		default: // was said already
		}
	}
	if g.running < g.config.Transactions {
		g.running++
		go g.run()
	}
}

// withdraw reports false when the call is being worked on, or was.
func (g *gatherer[C]) withdraw(call C) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, call)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// run works until nobody waits.
func (g *gatherer[C]) run() {
	for {
		g.linger()
		group := g.take()
		if len(group) == 0 {
			return
		}
		g.work(group)
	}
}

// linger waits a moment if there is something to gather.
func (g *gatherer[C]) linger() {
	g.mu.Lock()
	n := len(g.waiting)
	g.mu.Unlock()
	if n < 2 || n >= g.config.Most {
		return
	}
	select {
	case <-g.full:
	case <-time.After(g.config.Gather):
	}
}

// take returns the calls to work on. When there are none it counts the end of run, under
// the same lock under which add looks whether one runs.
func (g *gatherer[C]) take() []C {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), g.config.Most)
	if n == 0 {
		g.running--
		return nil
	}
	group := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	return group
}
