package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
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
	byIDs, conditions := filter, filter
	byIDs, conditions.IDs = postgres.ParkedFilter{IDs: filter.IDs}, nil
	for _, picks := range []bool{!byIDs.All(), !conditions.All(), all} {
		if picks {
			given++
		}
	}
	if given != 1 {
		return filter, errors.New("name ids, or pick with --group, --consumer, --class, --type, --order, --text, --from and --to, or say --all: one of these three")
	}
	return filter, nil
}

// checkLimit returns a domain.FieldError.
func checkLimit(limit int) error {
	if limit < 1 {
		return &domain.FieldError{Field: "--limit", Got: limit, Allowed: "1 or more"}
	}
	return nil
}

func parseID(field, text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != len(id.String()) {
		return "", &domain.FieldError{Field: field, Got: text, Allowed: "a UUID"}
	}
	return id.String(), nil
}

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

type parkedReplayCmd struct {
	selection

	All     bool          `help:"Everything that is parked."`
	Canary  int           `help:"Send this many first, and the rest only once all of them were handled; 0 sends all at once." default:"1"`
	Rate    float64       `help:"At most this many messages a second; 0 is as fast as it can." default:"0"`
	Detach  bool          `help:"Do not wait for the end of the run."`
	JSON    bool          `help:"Print JSON."`
	Who     who           `embed:""`
	Timeout time.Duration `help:"Stop waiting, not the run, after this long." default:"1h"`
}

func (cmd parkedReplayCmd) Run(ctx context.Context, out io.Writer) error {
	filter, err := cmd.chosen(cmd.All)
	if err != nil {
		return err
	}
	request := postgres.ReplayRequest{Operator: cmd.Who.name(), Filter: filter, Rate: cmd.Rate, Canaries: cmd.Canary}
	if err := reconciler.CheckReplay(request); err != nil {
		return err
	}
	var run postgres.Run
	err = withDatabase(ctx, func(ctx context.Context, db *postgres.DB) (err error) {
		run, err = postgres.NewReplays(db).Start(ctx, request)
		return err
	})
	if err != nil {
		return err
	}
	if !cmd.Detach {
		if run, err = cmd.follow(ctx, out, run); err != nil {
			return err
		}
	}
	if cmd.JSON {
		return printJSON(out, reconciler.ShowRun(run))
	}
	if _, err := fmt.Fprintln(out, runWords(run)); err != nil {
		return err
	}
	if left := run.FailedAgain + run.Skipped + run.Unknown; left > 0 {
		return fmt.Errorf("%s still parked or parked again; ordertimeout parked runs %s tells why", messages(left), run.ID)
	}
	return nil
}

// follow prints progress until the run is finished.
func (cmd parkedReplayCmd) follow(ctx context.Context, out io.Writer, run postgres.Run) (postgres.Run, error) {
	db, err := openDatabase(ctx)
	if err != nil {
		return run, err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	replays := postgres.NewReplays(db)
	for last := ""; !run.Finished(); {
		if text := runWords(run); text != last && !cmd.JSON {
			_, _ = fmt.Fprintln(out, text)
			last = text
		}
		select {
		case <-time.After(time.Second / 4):
		case <-ctx.Done():
			return run, fmt.Errorf("stopped waiting, the run goes on: ordertimeout parked runs %s", run.ID)
		}
		if run, err = replays.Get(ctx, run.ID); err != nil {
			return run, err
		}
	}
	return run, nil
}

type parkedEditCmd struct {
	ID     string `arg:"" help:"Id of a parked message."`
	File   string `help:"File with the new payload; - is standard input." required:"" placeholder:"FILE"`
	Replay bool   `help:"Replay it at once and wait for the outcome."`
	Who    who    `embed:""`
}

func (cmd parkedEditCmd) Run(ctx context.Context, out io.Writer) error {
	id, err := parseID("id", cmd.ID)
	if err != nil {
		return err
	}
	payload, err := readPayload(cmd.File)
	if err != nil {
		return err
	}
	err = withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		parked := postgres.NewParked(db)
		m, err := parked.Get(ctx, id)
		if err != nil {
			return err
		}
		order, err := reconciler.CheckPayload(m.Consumer, payload)
		if err != nil {
			return err
		}
		return parked.Edit(ctx, cmd.Who.name(), id, order, payload)
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "edited %s; the original payload is kept\n", id); err != nil || !cmd.Replay {
		return err
	}
	return parkedReplayCmd{selection: selection{IDs: []string{id}}, Who: cmd.Who, Timeout: time.Hour}.Run(ctx, out)
}

func readPayload(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

type parkedDiscardCmd struct {
	selection

	All    bool   `help:"Everything that is parked."`
	Reason string `help:"Why. It is kept with each message and in the audit." required:"" placeholder:"TEXT"`
	Who    who    `embed:""`
}

func (cmd parkedDiscardCmd) Run(ctx context.Context, out io.Writer) error {
	filter, err := cmd.chosen(cmd.All)
	if err != nil {
		return err
	}
	if strings.TrimSpace(cmd.Reason) == "" {
		return &domain.FieldError{Field: "--reason", Got: cmd.Reason, Allowed: "a text"}
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		n, err := postgres.NewParked(db).Discard(ctx, cmd.Who.name(), filter, cmd.Reason)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, "discarded", messages(n))
		return err
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

type parkedStopCmd struct {
	ID  string `arg:"" help:"Id of a replay run."`
	Who who    `embed:""`
}

func (cmd parkedStopCmd) Run(ctx context.Context, out io.Writer) error {
	id, err := parseID("id", cmd.ID)
	if err != nil {
		return err
	}
	return withDatabase(ctx, func(ctx context.Context, db *postgres.DB) error {
		replays := postgres.NewReplays(db)
		if err := replays.Stop(ctx, cmd.Who.name(), id); err != nil {
			return err
		}
		run, err := replays.Get(ctx, id)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, runWords(run))
		return err
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

// who is written into the audit.
type who struct {
	As string `help:"Your name in the audit. Default: the user who runs this command." placeholder:"NAME"`
}

func (w who) name() string {
	if w.As != "" {
		return w.As
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "command line"
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
