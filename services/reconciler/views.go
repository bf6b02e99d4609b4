package reconciler

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/ordertimeout/infra/postgres"
)

// ParkedSummaryJSON is a parked message in a list, as operators see it in the API and on
// the command line.
type ParkedSummaryJSON struct {
	ID            string     `json:"id" doc:"Of this parking."`
	Status        string     `json:"status" enum:"parked,replaying,handled,failed_again,resolved,discarded"`
	Consumer      string     `json:"consumer" doc:"Whose handler failed; empty when nothing tells."`
	Type          string     `json:"type"`
	MessageID     string     `json:"message_id"`
	OrderID       string     `json:"order_id,omitempty"`
	Class         string     `json:"class"`
	Error         string     `json:"error"`
	GroupID       string     `json:"group_id" doc:"Of the failures that look alike."`
	Attempts      int        `json:"attempts"`
	Queue         string     `json:"queue" doc:"Where the message first came from."`
	Exchange      string     `json:"exchange"`
	RoutingKey    string     `json:"routing_key"`
	FirstFailedAt time.Time  `json:"first_failed_at"`
	LastFailedAt  time.Time  `json:"last_failed_at"`
	ParkedAt      time.Time  `json:"parked_at"`
	Replays       int        `json:"replays" doc:"How often this message was replayed, over all its parkings."`
	PreviousID    string     `json:"previous_id,omitempty" doc:"The parking that a replay had taken it from."`
	NextID        string     `json:"next_id,omitempty" doc:"The parking that its own replay ended in."`
	SettledAt     *time.Time `json:"settled_at,omitempty"`
	Reason        string     `json:"reason,omitempty" doc:"Why it was resolved or discarded."`
}

// ParkedJSON is a parked message whole.
type ParkedJSON struct {
	ParkedSummaryJSON

	Payload       string            `json:"payload" doc:"As it was parked; in base64 where payload_encoding says so."`
	Encoding      string            `json:"payload_encoding" enum:"text,base64" doc:"base64 for what is not valid UTF-8."`
	EditedPayload string            `json:"edited_payload,omitempty" doc:"What a replay sends instead."`
	Headers       map[string]string `json:"headers" doc:"The sender's own; a replay sends them again."`
	Story         map[string]string `json:"story" doc:"What else came with it, the broker's death history among it."`
}

// ShowSummary writes a message of a list for operators.
func ShowSummary(m postgres.ParkedMessage) ParkedSummaryJSON {
	return ParkedSummaryJSON{
		ID: m.ID, Status: string(m.Status), Consumer: m.Consumer, Type: m.Type, MessageID: m.MessageID, OrderID: string(m.OrderID),
		Class: m.Class, Error: m.Error, GroupID: m.GroupID, Attempts: m.Attempts,
		Queue: m.Queue, Exchange: m.Exchange, RoutingKey: m.RoutingKey,
		FirstFailedAt: m.FirstFailedAt.UTC(), LastFailedAt: m.LastFailedAt.UTC(), ParkedAt: m.ParkedAt.UTC(),
		Replays: m.Replays, PreviousID: m.PreviousID, NextID: m.NextID, SettledAt: timeOrNil(m.SettledAt), Reason: m.Reason,
	}
}

// ShowParked writes a message for operators.
func ShowParked(m postgres.ParkedMessage) ParkedJSON {
	v := ParkedJSON{
		ParkedSummaryJSON: ShowSummary(m),
		Payload:           string(m.Payload), Encoding: "text", EditedPayload: string(m.EditedPayload), Headers: m.Headers, Story: m.Story,
	}
	if !utf8.Valid(m.Payload) {
		v.Payload, v.Encoding = base64.StdEncoding.EncodeToString(m.Payload), "base64"
	}
	return v
}

// GroupJSON is a group of open messages that failed in the same way.
type GroupJSON struct {
	ID            string    `json:"id"`
	Consumer      string    `json:"consumer"`
	Type          string    `json:"type"`
	Class         string    `json:"class"`
	Error         string    `json:"error" doc:"Of the newest message."`
	Messages      int       `json:"messages" doc:"How many are open."`
	Replaying     int       `json:"replaying" doc:"How many of these are part of an open run."`
	FirstFailedAt time.Time `json:"first_failed_at"`
	LastFailedAt  time.Time `json:"last_failed_at"`
}

// ShowGroup writes a group for operators.
func ShowGroup(g postgres.ParkedGroup) GroupJSON {
	return GroupJSON{
		ID: g.ID, Consumer: g.Consumer, Type: g.Type, Class: g.Class, Error: g.Error, Messages: g.Messages, Replaying: g.Replaying,
		FirstFailedAt: g.FirstFailedAt.UTC(), LastFailedAt: g.LastFailedAt.UTC(),
	}
}

// RunJSON is a replay run with its progress.
type RunJSON struct {
	ID          string     `json:"id"`
	Status      string     `json:"status" enum:"canary,running,stopping,done,stopped,canary_failed"`
	WorkedOn    bool       `json:"worked_on" doc:"A reconciler works on it. False on an open run is an interruption: it goes on when one is there."`
	RequestedBy string     `json:"requested_by"`
	Selection   string     `json:"selection" doc:"What was picked, in words."`
	Rate        float64    `json:"rate,omitempty" doc:"Messages a second; absent is as fast as it can."`
	Canaries    int        `json:"canaries" doc:"How many must be handled before the rest is sent."`
	Total       int        `json:"total"`
	Waiting     int        `json:"waiting" doc:"Not sent yet."`
	Sent        int        `json:"sent" doc:"Sent, outcome awaited."`
	Handled     int        `json:"handled" doc:"The consumer is done with it."`
	FailedAgain int        `json:"failed_again" doc:"Back in parking, linked to its earlier story."`
	Resolved    int        `json:"resolved" doc:"Not sent: the order is paid or closed already."`
	Skipped     int        `json:"skipped" doc:"Not sent, still parked."`
	Unknown     int        `json:"unknown" doc:"Sent, and nothing was heard of it: parked as it was."`
	CreatedAt   time.Time  `json:"created_at"`
	SentAt      *time.Time `json:"sent_at,omitempty" doc:"When the last one was sent."`
	FinishedAt  *time.Time `json:"finished_at,omitempty"`
}

// ShowRun writes a run for operators.
func ShowRun(r postgres.Run) RunJSON {
	return RunJSON{
		ID: r.ID, Status: string(r.Status), WorkedOn: r.WorkedOn, RequestedBy: r.RequestedBy, Selection: r.Selection, Rate: r.Rate, Canaries: r.Canaries,
		Total: r.Total, Waiting: r.Waiting, Sent: r.Sent, Handled: r.Handled, FailedAgain: r.FailedAgain, Resolved: r.Resolved, Skipped: r.Skipped, Unknown: r.Unknown,
		CreatedAt: r.CreatedAt.UTC(), SentAt: timeOrNil(r.SentAt), FinishedAt: timeOrNil(r.FinishedAt),
	}
}

// ItemJSON is what became of one message of a run.
type ItemJSON struct {
	ParkedID  string     `json:"parked_id"`
	MessageID string     `json:"message_id"`
	OrderID   string     `json:"order_id,omitempty"`
	Consumer  string     `json:"consumer"`
	Outcome   string     `json:"outcome" enum:"waiting,sent,handled,failed_again,resolved,skipped,unknown"`
	Reason    string     `json:"reason,omitempty"`
	NextID    string     `json:"next_id,omitempty" doc:"The parking that it ended in."`
	SentAt    *time.Time `json:"sent_at,omitempty"`
	SettledAt *time.Time `json:"settled_at,omitempty"`
}

// ShowItem writes one message of a run for operators.
func ShowItem(o postgres.ReplayOutcome) ItemJSON {
	return ItemJSON{
		ParkedID: o.Parked.ID, MessageID: o.Parked.MessageID, OrderID: string(o.Parked.OrderID), Consumer: o.Parked.Consumer,
		Outcome: o.Outcome, Reason: o.Reason, NextID: o.Parked.NextID, SentAt: timeOrNil(o.SentAt), SettledAt: timeOrNil(o.SettledAt),
	}
}

// AuditJSON is one line of the audit.
type AuditJSON struct {
	ID       int64          `json:"id"`
	At       time.Time      `json:"at"`
	Operator string         `json:"operator"`
	Action   string         `json:"action"`
	Subject  string         `json:"subject"`
	Messages int            `json:"messages"`
	Outcome  string         `json:"outcome"`
	Detail   map[string]any `json:"detail"`
}

// ShowAudit writes a line of the audit for operators.
func ShowAudit(e postgres.AuditEntry) AuditJSON {
	return AuditJSON{ID: e.ID, At: e.At.UTC(), Operator: e.Operator, Action: e.Action, Subject: e.Subject, Messages: e.Messages, Outcome: e.Outcome, Detail: e.Detail}
}

// DetailWords writes what an audit line tells beside its columns, in a stable order and
// without what says nothing.
func DetailWords(detail map[string]any) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(detail)) {
		if value := fmt.Sprint(detail[key]); value != "" && value != "0" {
			parts = append(parts, strings.ReplaceAll(key, "_", " ")+": "+value)
		}
	}
	return strings.Join(parts, ", ")
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}
