package main

import (
	"context"
	"fmt"
	"io"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

type parkedLsCmd struct {
	selection

	One    bool   `help:"One line a message, instead of groups." short:"1"`
	Status string `help:"One by one, those that stand so: open, all, parked, replaying, handled, failed_again, resolved or discarded." default:"open"`
	Limit  int    `help:"At most this many messages." default:"50"`
	Before string `help:"Only messages before this one, for the next page." placeholder:"ID"`
	JSON   bool   `help:"Print JSON."`
}

func (cmd parkedLsCmd) Run(ctx context.Context, out io.Writer) error {
	filter, err := cmd.filter()
	if err != nil {
		return err
	}
	if err := checkLimit(cmd.Limit); err != nil {
		return err
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		parked := postgres.NewParked(db)
		if !cmd.One && cmd.Status == "open" && len(filter.IDs) == 0 && cmd.Before == "" {
			groups, err := parked.Groups(ctx, filter)
			if err != nil {
				return err
			}
			return printAll(out, cmd.JSON, groups, reconciler.ShowGroup, groupHeader, groupLine)
		}
		query := postgres.ParkedQuery{Filter: filter, Limit: cmd.Limit}
		if query.Status, query.All, err = reconciler.ParseParkedStatus(cmd.Status); err != nil {
			return err
		}
		if cmd.Before != "" {
			if query.Before, err = parseID("--before", cmd.Before); err != nil {
				return err
			}
		}
		messages, err := parked.List(ctx, query)
		if err != nil {
			return err
		}
		return printAll(out, cmd.JSON, messages, reconciler.ShowSummary, parkedHeader, parkedLine)
	})
}

type parkedShowCmd struct {
	ID   string `arg:"" help:"Id of a parked message."`
	JSON bool   `help:"Print JSON."`
}

func (cmd parkedShowCmd) Run(ctx context.Context, out io.Writer) error {
	id, err := parseID("id", cmd.ID)
	if err != nil {
		return err
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		m, err := postgres.NewParked(db).Get(ctx, id)
		if err != nil {
			return err
		}
		v := reconciler.ShowParked(m)
		if cmd.JSON {
			return printJSON(out, v)
		}
		return printParked(out, v)
	})
}

type parkedRunsCmd struct {
	ID    string `arg:"" optional:"" help:"Show this run with its messages."`
	Limit int    `help:"At most this many." default:"50"`
	JSON  bool   `help:"Print JSON."`
}

func (cmd parkedRunsCmd) Run(ctx context.Context, out io.Writer) error {
	if err := checkLimit(cmd.Limit); err != nil {
		return err
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		replays := postgres.NewReplays(db)
		if cmd.ID == "" {
			runs, err := replays.List(ctx, "", cmd.Limit)
			if err != nil {
				return err
			}
			return printAll(out, cmd.JSON, runs, reconciler.ShowRun, runHeader, runLine)
		}
		id, err := parseID("id", cmd.ID)
		if err != nil {
			return err
		}
		run, err := replays.Get(ctx, id)
		if err != nil {
			return err
		}
		if cmd.JSON {
			return printJSON(out, reconciler.ShowRun(run))
		}
		if err := printAll(out, false, []postgres.Run{run}, reconciler.ShowRun, runHeader, runLine); err != nil {
			return err
		}
		items, err := replays.Items(ctx, id, "", "", cmd.Limit)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out)
		return printAll(out, false, items, reconciler.ShowItem, itemHeader, itemLine)
	})
}

type parkedAuditCmd struct {
	Limit int  `help:"At most this many." default:"50"`
	JSON  bool `help:"Print JSON."`
}

func (cmd parkedAuditCmd) Run(ctx context.Context, out io.Writer) error {
	if err := checkLimit(cmd.Limit); err != nil {
		return err
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		entries, err := postgres.NewAudit(db).List(ctx, 0, cmd.Limit)
		if err != nil {
			return err
		}
		return printAll(out, cmd.JSON, entries, reconciler.ShowAudit, auditHeader, auditLine)
	})
}
