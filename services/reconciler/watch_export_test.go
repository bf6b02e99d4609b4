package reconciler

import (
	"context"
	"time"
)

// Look looks once, at a time of the test's own.
func (w *Watch) Look(ctx context.Context, now time.Time) { w.look(ctx, now) }
