package reconciler

import (
	"context"
	"time"
)

// Observe is Run with ticks of the test's own.
func (m *Meter) Observe(ctx context.Context, ticks <-chan time.Time) { m.observe(ctx, ticks) }
