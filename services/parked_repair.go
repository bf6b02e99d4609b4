package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

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
		err = printJSON(out, reconciler.ShowRun(run))
	} else {
		_, err = fmt.Fprintln(out, runWords(run))
	}
	if err != nil {
		return err
	}
	if left := run.FailedAgain + run.Skipped + run.Unknown; left > 0 && !cmd.Detach {
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
