// Command ordertimeout closes unpaid orders on time. Each of its services runs as a
// process of its own, or all of them in one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker.
var version = "devel"

// cli is the command line. What a service needs beyond it comes from the environment.
type cli struct {
	Order      serveCmd `cmd:"" help:"Serve the HTTP API: place, look up, pay and extend orders. Needs Postgres only."`
	Relay      serveCmd `cmd:"" help:"Publish the outbox to RabbitMQ."`
	Closer     serveCmd `cmd:"" help:"Close unpaid orders when their timers come."`
	Notifier   serveCmd `cmd:"" help:"Mail buyers what became of their orders."`
	Reconciler serveCmd `cmd:"" help:"Store what failed for people to repair, replay it, and close orders that lost their timer."`
	All        serveCmd `cmd:"" help:"Run all services in this process, for a laptop or a test."`

	Migrate     migrateCmd     `cmd:"" help:"Bring the database schema up to date."`
	Topology    topologyCmd    `cmd:"" help:"Show every queue with its live depth, and the queues of dropped windows."`
	Outbox      outboxCmd      `cmd:"" help:"List the messages that cannot be published, with their errors."`
	Parked      parkedCmd      `cmd:"" help:"Look at what failed, replay it, edit it, discard it."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask this container's service whether it is ready; exit 1 if not."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

const description = `Closes unpaid orders on time, without losing one.

Configuration comes from the environment; a bad value stops the start and names
itself. DATABASE_URL and AMQP_URL are required, OPERATOR_TOKEN and
PAYMENT_WEBHOOK_SECRET by the order service, SMTP_URL and MAIL_FROM by the
notifier. The README lists them all.

SIGTERM drains: no new work, work in hand is finished, exit 0. A second signal
ends the process at once.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from now on a second signal ends the process
	os.Exit(realMain(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// realMain returns the exit status: 0 done or drained, 1 failed, 2 misused.
func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	exit := -1
	parser, err := kong.New(&cli{},
		kong.Name("ordertimeout"),
		kong.Description(description),
		kong.Vars{"version": version},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.BindTo(stdout, (*io.Writer)(nil)),
	)
	if err != nil {
		return fail(stderr, err, 1)
	}
	command, err := parser.Parse(args)
	if exit >= 0 { // --help and --version have done their work
		return exit
	}
	if err != nil {
		return fail(stderr, fmt.Errorf("%w; see ordertimeout --help", err), 2)
	}
	if err := command.Run(command.Command()); err != nil && !errors.Is(err, context.Canceled) {
		return fail(stderr, err, 1)
	}
	return 0
}

func fail(stderr io.Writer, err error, code int) int {
	_, _ = fmt.Fprintln(stderr, "ordertimeout:", err)
	return code
}
