// Package servers finds, or else starts, the Postgres and RabbitMQ that development
// and tests need, and starts private ones for tests that break them.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Server is one that can be used.
type Server struct{ URL string }

// kind is what Find needs to know of one kind of server.
type kind struct {
	name        string
	variable    string // environment variable with its URL
	port        int    // where it usually answers
	defaultURLs []string
	ping        func(ctx context.Context, url string) error
	composeURL  func(env map[string]string) string
	binary      func() string
	pkg         string // the package that has it on Debian and Ubuntu
	start       func(ctx context.Context, dir string) (Server, error)
}

func postgresKind() kind {
	return kind{
		name: "postgres", variable: "DATABASE_URL", port: 5432,
		defaultURLs: []string{
			"postgres://postgres:postgres@127.0.0.1:5432/postgres?sslmode=disable",
			"postgres://127.0.0.1:5432/postgres?sslmode=disable",
		},
		ping: pingPostgres,
		composeURL: func(env map[string]string) string {
			return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%s/%s?sslmode=disable",
				env["POSTGRES_USER"], env["POSTGRES_PASSWORD"], env["POSTGRES_PORT"], env["POSTGRES_DB"])
		},
		binary: func() string { return postgresBinary("postgres") },
		pkg:    "postgresql",
		start: func(ctx context.Context, dir string) (Server, error) {
			p, err := StartPostgres(ctx, filepath.Join(dir, "postgres"))
			if err != nil {
				return Server{}, err
			}
			return Server{URL: p.URL()}, nil
		},
	}
}

func rabbitKind(root string) kind {
	return kind{
		name: "rabbitmq", variable: "AMQP_URL", port: 5672,
		defaultURLs: []string{"amqp://guest:guest@127.0.0.1:5672/"},
		ping:        func(_ context.Context, url string) error { return pingRabbitMQ(url) },
		composeURL: func(env map[string]string) string {
			return fmt.Sprintf("amqp://%s:%s@127.0.0.1:%s/", env["RABBITMQ_USER"], env["RABBITMQ_PASSWORD"], env["RABBITMQ_PORT"])
		},
		binary: rabbitBinary,
		pkg:    "rabbitmq-server",
		start: func(ctx context.Context, dir string) (Server, error) {
			advanced, err := AdvancedConfig(root)
			if err != nil {
				return Server{}, err
			}
			b, err := StartRabbitMQ(ctx, filepath.Join(dir, "rabbitmq"), advanced)
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
// server on the default port that lets us in; the compose file's, where a Docker engine
// answers; a private one under .dev in root, from the machine's packages, which on
// Debian and Ubuntu are installed if need be. They tell log which one they took. What
// ran before is neither stopped nor reconfigured.
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
	if Answers(k.port) {
		if url, err := firstUsable(ctx, k); err == nil {
			say("using the one that answers on 127.0.0.1:%d", k.port)
			return Server{URL: url}, nil
		} else {
			say("the one on 127.0.0.1:%d does not let us in (%v); set %s to use it", k.port, err, k.variable)
		}
	} else if s, err := compose(ctx, k, root, say); err == nil {
		return s, nil
	} else if !errors.Is(err, errNoDocker) {
		say("Docker cannot bring it up: %v", err)
	}
	return native(ctx, k, root, say)
}

func firstUsable(ctx context.Context, k kind) (string, error) {
	var errs []error
	for _, url := range k.defaultURLs {
		err := k.ping(ctx, url)
		if err == nil {
			return url, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

var errNoDocker = errors.New("no Docker engine")

func compose(ctx context.Context, k kind, root string, say func(string, ...any)) (Server, error) {
	probe, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if exec.CommandContext(probe, "docker", "info").Run() != nil || exec.CommandContext(probe, "docker", "compose", "version").Run() != nil {
		return Server{}, errNoDocker
	}
	env, err := dotEnv(filepath.Join(root, ".env"))
	if err != nil {
		return Server{}, err
	}
	say("starting it with docker compose")
	up := exec.CommandContext(ctx, "docker", "compose", "up", "--wait", "--detach", k.name)
	up.Dir = root
	if out, err := up.CombinedOutput(); err != nil {
		remove := exec.CommandContext(ctx, "docker", "compose", "rm", "--stop", "--force", k.name)
		remove.Dir = root
		return Server{}, errors.Join(fmt.Errorf("%w: %s", err, lastLine(out)), remove.Run())
	}
	url := k.composeURL(env)
	if err := k.ping(ctx, url); err != nil {
		return Server{}, err
	}
	say("using docker compose's")
	return Server{URL: url}, os.WriteFile(composeMark(root, k.name), nil, 0o644)
}

// composeMark is a file that says that we started a compose service.
func composeMark(root, name string) string {
	return filepath.Join(root, ".dev", "compose-"+name)
}

// StopStarted stops the private servers of a checkout and the compose services that
// were started for it, and returns what it stopped. Their data stays.
func StopStarted(ctx context.Context, root string) (stopped []string, err error) {
	dir := filepath.Join(root, ".dev")
	var errs []error
	var p Postgres
	if at, err := reachable(filepath.Join(dir, "postgres")); err == nil && restore(at, &p) == nil && p.Process.Alive() {
		errs = append(errs, p.Stop(ctx))
		stopped = append(stopped, "postgres")
	}
	var b RabbitMQ
	if at, err := reachable(filepath.Join(dir, "rabbitmq")); err == nil && restore(at, &b) == nil && b.Process.Alive() {
		errs = append(errs, b.Stop(ctx))
		stopped = append(stopped, "rabbitmq")
	}
	for _, name := range []string{"postgres", "rabbitmq"} {
		if _, err := os.Stat(composeMark(root, name)); err != nil {
			continue
		}
		down := exec.CommandContext(ctx, "docker", "compose", "rm", "--stop", "--force", name)
		down.Dir = root
		errs = append(errs, down.Run(), os.Remove(composeMark(root, name)))
		stopped = append(stopped, name+" of docker compose")
	}
	return stopped, errors.Join(errs...)
}

func native(ctx context.Context, k kind, root string, say func(string, ...any)) (Server, error) {
	if k.binary() == "" {
		if err := install(ctx, k, say); err != nil {
			return Server{}, err
		}
	}
	dir := filepath.Join(root, ".dev")
	s, err := k.start(ctx, dir)
	if err != nil {
		return Server{}, err
	}
	say("using a private one under %s, from %s; make down stops it", dir, k.binary())
	return s, nil
}

// install gets the machine's package. The package must not start or enable a server of
// its own: a policy file, where there is none yet, keeps it from doing so.
func install(ctx context.Context, k kind, say func(string, ...any)) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s: none found, and no Docker engine; install %s, or set %s", k.name, k.name, k.variable)
	}
	sudo := ""
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return fmt.Errorf("%s: none found; run `sudo apt-get install %s`, start Docker, or set %s", k.name, k.pkg, k.variable)
		}
		sudo = "sudo -n "
	}
	say("none found; installing the package %s with apt-get", k.pkg)
	script := strings.ReplaceAll(`set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | SUDO tee $policy >/dev/null
  SUDO chmod 755 $policy
  trap 'SUDO rm -f $policy' EXIT
fi
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  SUDO mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' | SUDO tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
SUDO apt-get update -q
SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -qy -o Dpkg::Options::=--force-confold `+k.pkg, "SUDO ", sudo)
	if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: installing %s: %w: %s", k.name, k.pkg, err, lastLine(out))
	}
	return nil
}

// dotEnv reads KEY=VALUE lines; what the process has in its environment wins.
func dotEnv(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
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
	return env, nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
