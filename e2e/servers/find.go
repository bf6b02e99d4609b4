// Package servers finds, or else starts, the Postgres and RabbitMQ that development
// and tests need, and starts private ones for tests that break them.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Server is one that can be used.
type Server struct{ URL string }

// kind is what find needs to know of one kind of server.
type kind struct {
	name         string
	variable     string // environment variable with its URL
	port         int    // where it usually answers, and inside its container
	portVariable string // of the compose file
	urls         []string
	ping         func(ctx context.Context, url string) error
	composeURL   func(env map[string]string, addr string) string
	binary       func() string
	pkg          string // the package that has it on Debian and Ubuntu
	start        func(ctx context.Context, dir string) (Server, error)
}

func postgresKind() kind {
	return kind{
		name: "postgres", variable: "DATABASE_URL", port: 5432, portVariable: "POSTGRES_PORT",
		urls: []string{
			"postgres://postgres:postgres@127.0.0.1:5432/postgres?sslmode=disable",
			"postgres://127.0.0.1:5432/postgres?sslmode=disable", // as the user of the operating system
		},
		ping: pingPostgres,
		composeURL: func(env map[string]string, addr string) string {
			user := url.UserPassword(env["POSTGRES_USER"], env["POSTGRES_PASSWORD"])
			return "postgres://" + user.String() + "@" + addr + "/" + env["POSTGRES_DB"] + "?sslmode=disable"
		},
		binary: func() string { return postgresBinary("postgres") },
		pkg:    "postgresql",
		start: func(ctx context.Context, dir string) (Server, error) {
			p, err := StartPostgres(ctx, dir)
			if err != nil {
				return Server{}, err
			}
			return Server{URL: p.URL()}, nil
		},
	}
}

func rabbitKind(root string) kind {
	return kind{
		name: "rabbitmq", variable: "AMQP_URL", port: 5672, portVariable: "RABBITMQ_PORT",
		urls: []string{"amqp://guest:guest@127.0.0.1:5672/"},
		ping: func(_ context.Context, url string) error { return pingRabbitMQ(url) },
		composeURL: func(env map[string]string, addr string) string {
			return "amqp://" + url.UserPassword(env["RABBITMQ_USER"], env["RABBITMQ_PASSWORD"]).String() + "@" + addr + "/"
		},
		binary: rabbitBinary,
		pkg:    "rabbitmq-server",
		start: func(ctx context.Context, dir string) (Server, error) {
			advanced, err := AdvancedConfig(root)
			if err != nil {
				return Server{}, err
			}
			b, err := startPackaged(ctx, dir, advanced)
			if err != nil {
				return Server{}, err
			}
			return Server{URL: b.URL()}, nil
		},
	}
}

// AdvancedConfig is the broker configuration that the project ships.
func AdvancedConfig(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "infra", "rabbitmq", "config", "advanced.config"))
	return string(text), err
}

// FindPostgres and FindRabbitMQ look in this order: the URL in the environment; a
// server on the default port that lets us in, the compose file's included; the compose
// file, where a Docker engine answers; a private one under .dev in root, from the
// machine's packages, which on Debian and Ubuntu are installed if need be. A private
// one that runs already goes before Docker. They tell log which one they took. What ran
// before is neither stopped nor reconfigured.
func FindPostgres(ctx context.Context, root string, log io.Writer) (Server, error) {
	return find(ctx, postgresKind(), root, log)
}

// FindRabbitMQ is FindPostgres for the broker.
func FindRabbitMQ(ctx context.Context, root string, log io.Writer) (Server, error) {
	return find(ctx, rabbitKind(root), root, log)
}

func find(ctx context.Context, k kind, root string, log io.Writer) (Server, error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(log, k.name+": "+format+"\n", args...) }
	if url := os.Getenv(k.variable); url != "" {
		if err := k.ping(ctx, url); err != nil {
			return Server{}, fmt.Errorf("the server that %s names cannot be used: %w", k.variable, err)
		}
		say("using the one that %s names", k.variable)
		return Server{URL: url}, nil
	}
	env := dotEnv(filepath.Join(root, ".env"))
	if s, ok := listening(ctx, k, env, say); ok {
		return s, nil
	}
	if !privateRuns(root, k.name) {
		if s, err := compose(ctx, k, root, env, say); err == nil {
			return s, nil
		} else if !errors.Is(err, errNoDocker) {
			say("Docker cannot bring it up: %v", err)
		}
	}
	return native(ctx, k, root, say)
}

// listening returns the server on the usual port, or the one that was chosen for the
// compose file, if it lets us in.
func listening(ctx context.Context, k kind, env map[string]string, say func(string, ...any)) (Server, bool) {
	candidates := map[int][]string{k.port: k.urls}
	chosen, err := strconv.Atoi(env[k.portVariable])
	if err == nil {
		candidates[chosen] = append(candidates[chosen], k.composeURL(env, "127.0.0.1:"+env[k.portVariable]))
	}
	for port, urls := range candidates {
		if !Answers(port) {
			continue
		}
		var refusals []string
		for _, url := range urls {
			err := k.ping(ctx, url)
			if err == nil {
				say("using the one that answers on 127.0.0.1:%d", port)
				return Server{URL: url}, true
			}
			refusals = append(refusals, strings.Join(strings.Fields(err.Error()), " "))
		}
		say("what answers on 127.0.0.1:%d does not let us in (%s); set %s to use it", port, strings.Join(refusals, "; "), k.variable)
	}
	return Server{}, false
}

func privateDir(root, name string) string { return filepath.Join(root, ".dev", name) }

// privateRuns reports whether the checkout's private server runs.
func privateRuns(root, name string) bool {
	var s struct{ Process Process }
	return restore(privateDir(root, name), &s) == nil && s.Process.Alive()
}

func native(ctx context.Context, k kind, root string, say func(string, ...any)) (Server, error) {
	if k.binary() == "" {
		if err := install(ctx, k, say); err != nil {
			return Server{}, err
		}
	}
	dir := privateDir(root, k.name)
	s, err := k.start(ctx, dir)
	if err != nil {
		return Server{}, err
	}
	say("using a private one under %s, from %s; make down stops it", dir, k.binary())
	return s, nil
}

// StopStarted stops the private servers of a checkout, those of interrupted tests
// included, and the compose services that were started for it. It returns what it
// stopped. The data stays.
func StopStarted(ctx context.Context, root string) (stopped []string, err error) {
	links, err := filepath.Glob(filepath.Join(runningDir(root), "*"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, link := range links {
		name, err := stopRegistered(ctx, link)
		if name != "" {
			stopped = append(stopped, name)
		}
		errs = append(errs, err)
	}
	for _, name := range []string{"postgres", "rabbitmq"} {
		if _, err := os.Stat(composeMark(root, name)); err != nil {
			continue
		}
		errs = append(errs, composeRemove(ctx, root, name))
		stopped = append(stopped, name+" of docker compose")
	}
	return stopped, errors.Join(errs...)
}

// stopRegistered stops the server that a link of register leads to, and returns its
// name if it ran.
func stopRegistered(ctx context.Context, link string) (string, error) {
	dir, err := os.Readlink(link)
	if err != nil {
		return "", err
	}
	var b RabbitMQ
	if restore(dir, &b) != nil {
		return "", os.Remove(link) // its test removed the data
	}
	name, stop := "rabbitmq", b.Stop
	if b.EPMDPort == 0 {
		p := Postgres{Dir: dir, Process: b.Process}
		name, stop = "postgres", p.Stop
	}
	if !b.Process.Alive() {
		name = "" // stopping it takes away what it left behind
	}
	return name, stop(ctx)
}

// dotEnv reads KEY=VALUE lines; what the process has in its environment wins.
func dotEnv(path string) map[string]string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // then there is no compose project to talk to
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(key, "#") {
			continue
		}
		env[key] = value
		if chosen, ok := os.LookupEnv(key); ok {
			env[key] = chosen
		}
	}
	return env
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
