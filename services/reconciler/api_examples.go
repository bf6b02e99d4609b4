package reconciler

import "time"

// The examples of the document.
var (
	exampleFailed = time.Date(2026, time.January, 1, 12, 30, 0, 0, time.UTC)
	exampleParkAt = exampleFailed.Add(6*time.Minute + 10*time.Second)

	exampleReason = "test data of last week"

	exampleGroup = GroupJSON{
		ID: "3d0c5f0c7a1b2e4f", Consumer: "closer", Type: "order.timeout", Class: "transient", Error: "closing order 0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d: boom",
		Messages: 12, FirstFailedAt: exampleFailed, LastFailedAt: exampleParkAt,
	}

	exampleParked = ParkedJSON{
		ParkedSummaryJSON: ParkedSummaryJSON{
			ID: "0193b1f8-1111-7c0e-9d0c-0d2f6a7b8c9d", Status: "parked", Consumer: "closer", Type: "order.timeout",
			MessageID: "0193b1f2-7c53-7000-8000-0d2f6a7b8c9d", OrderID: "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d",
			Class: exampleGroup.Class, Error: exampleGroup.Error, GroupID: exampleGroup.ID, Attempts: 4,
			Queue: "order.timeout.queue", Exchange: "order.dlx.exchange", RoutingKey: "order.timeout.key",
			FirstFailedAt: exampleFailed, LastFailedAt: exampleParkAt, ParkedAt: exampleParkAt,
		},
		Payload: `{"type":"order.timeout","version":1,"order_id":"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"}`, Encoding: "text",
		Headers: map[string]string{}, Story: map[string]string{},
	}

	exampleRun = RunJSON{
		ID: "0193b200-2222-7c0e-9d0c-0d2f6a7b8c9d", Status: "running", WorkedOn: true, RequestedBy: "ada", Selection: "group=" + exampleGroup.ID,
		Rate: 50, Canaries: 1, Total: 12, Waiting: 7, Sent: 1, Handled: 3, Resolved: 1, CreatedAt: exampleParkAt.Add(time.Hour),
	}

	exampleItem = ItemJSON{
		ParkedID: exampleParked.ID, MessageID: exampleParked.MessageID, OrderID: exampleParked.OrderID, Consumer: "closer",
		Outcome: "resolved", Reason: "the order is paid",
	}

	exampleAudit = AuditJSON{
		ID: 7, At: exampleRun.CreatedAt, Operator: "ada", Action: "replay", Subject: exampleRun.ID, Messages: 12, Outcome: "started",
		Detail: map[string]any{"selection": exampleRun.Selection, "rate": 50, "canaries": 1},
	}
)
