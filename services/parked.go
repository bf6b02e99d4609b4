package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

// parkedCmd works on Postgres alone; replays are carried out by a running reconciler.
type parkedCmd struct {
	Ls      parkedLsCmd      `cmd:"" help:"List what failed, in groups that look alike, or one by one."`
	Show    parkedShowCmd    `cmd:"" help:"Show one message whole: error, payload, headers, story."`
	Replay  parkedReplayCmd  `cmd:"" help:"Send messages back to the consumer that failed, a canary first, and follow the run."`
	Edit    parkedEditCmd    `cmd:"" help:"Replace the payload that a replay sends; the original is kept."`
	Discard parkedDiscardCmd `cmd:"" help:"Settle messages for good without sending them."`
	Runs    parkedRunsCmd    `cmd:"" help:"List replay runs, or show one with its messages."`
	Stop    parkedStopCmd    `cmd:"" help:"Stop a replay run: what was not sent stays parked. One that is finished stays as it is."`
	Audit   parkedAuditCmd   `cmd:"" help:"List who did what."`
}

// selection is what a command works on.
type selection struct {
	IDs      []string  `arg:"" optional:"" name:"id" help:"Ids of parked messages."`
	Group    string    `help:"Only this group." placeholder:"ID"`
	Consumer string    `help:"Only what this consumer failed on: closer or notifier." placeholder:"NAME"`
	Class    string    `help:"Only this class of error: transient, panic, permanent, malformed, unsupported_event, unknown_order, delivery_limit or unknown." placeholder:"NAME"`
	Type     string    `help:"Only this type of event." placeholder:"NAME"`
	Order    string    `help:"Only this order's." placeholder:"ID"`
	Text     string    `help:"Only those with this text in error or payload." placeholder:"TEXT"`
	From     time.Time `help:"Only those that last failed at or after this time (RFC 3339, such as 2026-01-31T12:00:00Z)." placeholder:"TIME"`
	To       time.Time `help:"Only those that last failed before this time." placeholder:"TIME"`
}

func (s selection) filter() (postgres.ParkedFilter, error) {
	f := postgres.ParkedFilter{Consumer: s.Consumer, Class: s.Class, Type: s.Type, GroupID: s.Group, Text: s.Text, From: s.From, To: s.To}
	for _, text := range s.IDs {
		id, err := parseID("id", text)
		if err != nil {
			return f, err
		}
		f.IDs = append(f.IDs, id)
	}
	if s.Order != "" {
		id, err := domain.ParseOrderID(s.Order)
		if err != nil {
			return f, &domain.FieldError{Field: "--order", Got: s.Order, Allowed: "a UUID"}
		}
		f.OrderID = id
	}
	return f, reconciler.CheckFilter(f)
}

// chosen refuses to work on everything unless all says so: a forgotten flag is no wish.
func (s selection) chosen(all bool) (postgres.ParkedFilter, error) {
	filter, err := s.filter()
	if err != nil {
		return filter, err
	}
	given := 0
	conditions := filter
	conditions.IDs = nil
	for _, picks := range []bool{len(filter.IDs) > 0, !conditions.All(), all} {
		if picks {
			given++
		}
	}
	if given != 1 {
		return filter, errors.New("name ids, or pick with --group, --consumer, --class, --type, --order, --text, --from and --to, or say --all: one of these three")
	}
	return filter, nil
}

func parseID(field, text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != len(id.String()) {
		return "", &domain.FieldError{Field: field, Got: text, Allowed: "a UUID"}
	}
	return id.String(), nil
}

// checkLimit returns a domain.FieldError.
func checkLimit(limit int) error {
	if limit < 1 {
		return &domain.FieldError{Field: "--limit", Got: limit, Allowed: "1 or more"}
	}
	return nil
}

func withDatabase(ctx context.Context, fn func(context.Context, *postgres.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.CheckSchema(ctx); err != nil {
		return err
	}
	return fn(ctx, db)
}
