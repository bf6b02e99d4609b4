package reconciler

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

type driftOutput struct {
	Body Drift
}

func (a *api) addDrift(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[struct{}, driftOutput]{
		Op: huma.Operation{
			OperationID: "getDrift", Method: http.MethodGet, Path: "/v1/drift", Tags: []string{tagHealth},
			Summary:     "Compare orders with timers",
			Description: "Pending orders against the timers that are on their way, and queues that lost what they need, with cause and cure. The counts are taken one after the other, so small differences come and go while orders flow.",
		},
		Operator: true, Response: exampleDrift,
		Do: func(ctx context.Context, _ *struct{}) (*driftOutput, error) {
			drift, err := a.deps.Drift(ctx)
			if err != nil {
				return nil, err
			}
			return &driftOutput{Body: drift}, nil
		},
	})
}

var exampleDrift = Drift{
	MeasuredAt: exampleParkAt, PendingOrders: 41, EarlySettledOrders: 2, OverdueOrders: 1, LateOrders: 1, LateSeconds: 75.2,
	LateSample: []domain.OrderID{"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"}, FailingSample: []FailingOrder{},
	Timers:         []TimerPlace{{"outbox", 0}, {"order.delay.30m.queue", 42}, {"order.timeout.queue", 0}, {"parked", 0}},
	ExpectedTimers: 43, FoundTimers: 42, MissingTimers: 1,
	Findings: []Finding{{
		Queue: "order.timeout.queue", Problem: problemNoConsumer, Cause: "No closer consumes it, and 12 messages wait in it.",
		Cure: "Start one with `ordertimeout closer`; one that runs says in its log and at /readyz why it does not consume.",
	}},
}
