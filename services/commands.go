package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/telemetry"
)

// commandTimeout bounds the commands that look and leave.
const commandTimeout = 30 * time.Second

type migrateCmd struct{}

func (migrateCmd) Run(ctx context.Context, out io.Writer) error {
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	from, to, err := db.Migrate(ctx)
	if err != nil {
		return err
	}
	if from == to {
		_, err = fmt.Fprintf(out, "schema is up to date at version %d\n", to)
		return err
	}
	_, err = fmt.Fprintf(out, "schema migrated from version %d to %d\n", from, to)
	return err
}

type topologyCmd struct {
	Prune bool `help:"Remove the queues of dropped windows that are empty."`
}

func (cmd topologyCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	config, err := load[rabbitmq.Config]()
	delays, delaysErr := load[delaysConfig]()
	if err := errors.Join(err, delaysErr); err != nil {
		return err
	}
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	conn := rabbitmq.Connect(config, "ordertimeout topology", slog.New(slog.DiscardHandler))
	defer conn.Close()
	topology := delays.topology(config.Namespace)
	states, err := topology.States(ctx, conn)
	if err != nil {
		return err
	}
	if err := printStates(out, states); err != nil {
		return err
	}
	d := dropped{topology: topology, conn: conn, store: postgres.NewDelayQueues(db), out: out, prune: cmd.Prune}
	return d.run(ctx, delays.delays().All())
}

func printStates(out io.Writer, states []rabbitmq.QueueState) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "QUEUE\tMESSAGES\tCONSUMERS")
	for _, s := range states {
		if !s.Exists {
			_, _ = fmt.Fprintf(table, "%s\tmissing\t\n", s.Name)
			continue
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\n", s.Name, s.Messages, s.Consumers)
	}
	return table.Flush()
}

// dropped deals with the queues of delays that are no longer configured.
type dropped struct {
	topology rabbitmq.Topology
	conn     *rabbitmq.Connection
	store    *postgres.DelayQueues
	out      io.Writer
	prune    bool
}

func (d dropped) run(ctx context.Context, current []time.Duration) error {
	recorded, err := d.store.List(ctx, d.topology.Namespace())
	if err != nil {
		return err
	}
	for _, delay := range recorded {
		if slices.Contains(current, delay) {
			continue
		}
		verdict, err := d.look(ctx, delay)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(d.out, "dropped: %s: %s\n", d.topology.DelayQueue(delay), verdict); err != nil {
			return err
		}
	}
	return nil
}

// look removes a dropped queue if it may. Messages that the broker has begun to
// dead-letter are in no count, so an order that may still wait for its timer keeps the
// queue too.
func (d dropped) look(ctx context.Context, delay time.Duration) (string, error) {
	state, err := d.topology.DelayQueueState(ctx, d.conn, delay)
	if err != nil {
		return "", err
	}
	if !state.Exists {
		return "already gone", d.store.Remove(ctx, d.topology.Namespace(), delay)
	}
	pending, err := d.store.PendingWithWindow(ctx, delay)
	switch {
	case err != nil:
		return "", err
	case state.Messages > 0:
		return fmt.Sprintf("kept, %d timers wait in it", state.Messages), nil
	case pending > 0:
		return fmt.Sprintf("kept, %d pending orders may still have their timers in it", pending), nil
	case !d.prune:
		return "empty, can be removed with --prune", nil
	}
	removed, err := d.topology.RemoveDelayQueue(ctx, d.conn, delay)
	if err != nil {
		return "", err
	}
	if !removed {
		return "kept, a timer came in just now", nil
	}
	return "removed", d.store.Remove(ctx, d.topology.Namespace(), delay)
}

type outboxCmd struct {
	Limit int `help:"At most this many rows." default:"50"`
}

func (cmd outboxCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if err := checkLimit(cmd.Limit); err != nil {
		return err
	}
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	outbox := postgres.NewOutbox(db)
	backlog, err := outbox.Backlog(ctx)
	if err != nil {
		return err
	}
	rows, err := outbox.Failing(ctx, cmd.Limit)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "%d rows wait, the oldest for %s, %d of them failing\n", backlog.Rows, backlog.Oldest.Round(time.Millisecond), backlog.Failing)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(rows) > 0 {
		_, _ = fmt.Fprintln(table, "ID\tORDER\tTYPE\tATTEMPTS\tNEXT ATTEMPT\tERROR")
	}
	for _, r := range rows {
		_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\n", r.ID, r.OrderID, r.Type, r.Attempts, r.NextAttemptAt.UTC().Format(time.RFC3339), r.LastError)
	}
	return table.Flush()
}

type healthcheckCmd struct{}

func (healthcheckCmd) Run(ctx context.Context) error {
	config, err := load[telemetry.Config]()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(config.MetricsAddr)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1" // listens everywhere
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 3 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		return fmt.Errorf("not ready: %s", body)
	}
	return nil
}

func openDatabase(ctx context.Context) (*postgres.DB, error) {
	config, err := load[postgres.Config]()
	if err != nil {
		return nil, err
	}
	return postgres.Open(ctx, config)
}
