// Command dev brings up what development and tests need, and takes it down again. The
// Makefile calls it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/e2e/servers"
)

const usage = `usage: go run ./e2e/dev exec [--] COMMAND [ARGUMENTS]   run a command with DATABASE_URL and AMQP_URL set
       go run ./e2e/dev up                              start everything and leave it running
       go run ./e2e/dev down                            stop what up and exec started`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return 1, err
	}
	s := &stack{root: root, dir: filepath.Join(root, ".dev")}
	unlock, err := s.lock(ctx)
	if err != nil {
		return 1, err
	}
	defer unlock()
	switch {
	case len(args) > 1 && args[0] == "exec" && args[len(args)-1] != "--":
		database, broker, err := s.servers(ctx)
		if err != nil {
			return 1, err
		}
		unlock()
		command := args[1:]
		if command[0] == "--" {
			command = command[1:]
		}
		return execute(command, "DATABASE_URL="+database, "AMQP_URL="+broker)
	case len(args) == 1 && args[0] == "up":
		return exitCode(s.up(ctx))
	case len(args) == 1 && args[0] == "down":
		return exitCode(s.down(ctx))
	default:
		return 2, errors.New(usage)
	}
}

func exitCode(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// stack is what runs for one checkout. What this command started is written down in
// .dev, so that down stops that and nothing else.
type stack struct{ root, dir string }

// lock keeps two commands in one checkout from starting the same servers. What it
// returns may be called again.
func (s *stack) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for waiting := false; ; waiting = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, file.Close())
		}
		if !waiting {
			fmt.Fprintln(os.Stderr, "waiting for another command that starts or stops servers of this checkout")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		}
	}
}

// execute runs a command with additions to the environment, hands signals on to it, and
// returns its exit status.
func execute(args []string, env ...string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig) // it may be gone already
		}
	}()
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), nil
	}
	return exitCode(err)
}

// servers finds or starts Postgres and RabbitMQ and notes what was started.
func (s *stack) servers(ctx context.Context) (database, broker string, err error) {
	db, err := servers.FindPostgres(ctx, s.root, os.Stderr)
	if err != nil {
		return "", "", err
	}
	mq, err := servers.FindRabbitMQ(ctx, s.root, os.Stderr)
	if err != nil {
		return "", "", err
	}
	return db.URL, mq.URL, nil
}

// The application that up starts, with the values for development that .env has too.
const (
	appDatabase   = "ordertimeout"
	operatorToken = "development-only-token"
	webhookSecret = "whsec_b3JkZXJ0aW1lb3V0LWRldmVsb3BtZW50LW9ubHkh"
)

type app struct {
	Process servers.Process `json:"process"`
	API     string          `json:"api"`
	Console string          `json:"console"`
	Metrics string          `json:"metrics"`
}

func (s *stack) up(ctx context.Context) error {
	database, broker, err := s.servers(ctx)
	if err != nil {
		return err
	}
	if database, err = createDatabase(ctx, database, appDatabase); err != nil {
		return err
	}
	mail, err := s.startMail(ctx)
	if err != nil {
		return err
	}
	a, err := s.startApp(ctx, database, broker, mail)
	if err != nil {
		return err
	}
	if err := s.writeEnv(database, broker); err != nil {
		return err
	}
	fmt.Printf(`
The application is up.
  API             http://%[1]s/docs       (OpenAPI: http://%[1]s/openapi.json)
  console         http://%[8]s/           (its API: http://%[8]s/docs)
  health          http://%[2]s/readyz
  metrics         http://%[2]s/metrics
  mail            http://%[3]s/api/v1/messages
  database        %[4]s
  broker          %[5]s
  operator token  %[6]s
  log             %[7]s
  command line    . .dev/env && ordertimeout --help
Stop it with: make down
`, a.API, a.Metrics, mail.HTTP, redacted(database), redacted(broker), operatorToken, filepath.Join(s.dir, "app.log"), a.Console)
	return nil
}

// writeEnv writes what a shell needs to use the application's command line. The URLs may
// hold passwords, so nobody else may read it.
func (s *stack) writeEnv(database, broker string) error {
	quote := func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
	text := fmt.Sprintf("export DATABASE_URL=%s\nexport AMQP_URL=%s\nexport PATH=%s:$PATH\n",
		quote(database), quote(broker), quote(filepath.Join(s.root, "bin")))
	return os.WriteFile(filepath.Join(s.dir, "env"), []byte(text), 0o600)
}

func (s *stack) startApp(ctx context.Context, database, broker string, mail mailServer) (app, error) {
	var a app
	if s.restore("app", &a) == nil && a.Process.Alive() {
		fmt.Println("the application runs already")
		return a, awaitReady(ctx, a)
	}
	binary := filepath.Join(s.root, "bin", "ordertimeout")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./services")
	build.Stdout, build.Stderr, build.Dir = os.Stdout, os.Stderr, s.root
	if err := build.Run(); err != nil {
		return a, fmt.Errorf("build: %w", err)
	}
	var err error
	if a.API, err = address(8080); err != nil {
		return a, err
	}
	if a.Console, err = address(8081); err != nil {
		return a, err
	}
	if a.Metrics, err = address(9090); err != nil {
		return a, err
	}
	env := append(os.Environ(),
		"DATABASE_URL="+database, "AMQP_URL="+broker,
		"ORDER_ADDR="+a.API, "CONSOLE_ADDR="+a.Console, "METRICS_ADDR="+a.Metrics,
		"OPERATOR_TOKEN="+operatorToken, "PAYMENT_WEBHOOK_SECRET="+webhookSecret,
		"SMTP_URL=smtp://"+mail.SMTP, "MAIL_FROM=Shop <shop@example.com>",
	)
	migrate := exec.CommandContext(ctx, binary, "migrate")
	migrate.Env, migrate.Stdout, migrate.Stderr = env, os.Stdout, os.Stderr
	if err := migrate.Run(); err != nil {
		return a, fmt.Errorf("migrate: %w", err)
	}
	serve := exec.Command(binary, "all")
	serve.Env = env
	if a.Process, err = servers.Detach(serve, filepath.Join(s.dir, "app.log"), ""); err != nil {
		return a, err
	}
	if err := s.save("app", a); err != nil {
		return a, err
	}
	return a, awaitReady(ctx, a)
}

func awaitReady(ctx context.Context, a app) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.Metrics+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !a.Process.Alive() {
			return errors.New("the application ended, see .dev/app.log")
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return errors.New("the application is not ready, see .dev/app.log")
		}
	}
}

func (s *stack) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var a app
	var m mailServer
	var errs []error
	if s.restore("app", &a) == nil && a.Process.Alive() {
		errs = append(errs, a.Process.End(ctx, syscall.SIGTERM))
		fmt.Println("stopped the application")
	}
	if s.restore("mail", &m) == nil && m.Process.Alive() {
		errs = append(errs, m.Process.End(ctx, syscall.SIGTERM))
		fmt.Println("stopped the mail server")
	}
	stopped, err := servers.StopStarted(ctx, s.root)
	for _, name := range stopped {
		fmt.Println("stopped " + name)
	}
	return errors.Join(append(errs, err)...)
}

// createDatabase makes the application's own database unless it is there.
func createDatabase(ctx context.Context, server, name string) (string, error) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT exists(SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil {
		return "", err
	}
	if !exists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// address is the usual port, or a free one where that is taken.
func address(port int) (string, error) {
	if servers.Answers(port) {
		free, err := servers.FreePort()
		if err != nil {
			return "", err
		}
		fmt.Printf("port %d is taken, using %d\n", port, free)
		port = free
	}
	return "127.0.0.1:" + strconv.Itoa(port), nil
}

func (s *stack) save(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, name+".json"), text, 0o644)
}

func (s *stack) restore(name string, v any) error {
	text, err := os.ReadFile(filepath.Join(s.dir, name+".json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
