package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/e2e/servers"
)

// busySeconds is the time that all processors were busy since the machine started; 0
// where the system does not tell.
func busySeconds() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var sum float64
	for i, field := range strings.Fields(line)[1:] {
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != 3 && i != 4 { // idle and waiting
			sum += n
		}
	}
	return sum / 100
}

func awaitReady(url string) error {
	client := http.Client{Timeout: time.Second}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		response, err := client.Get(url)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %d", response.StatusCode)
		}
		if time.Now().After(end) {
			return fmt.Errorf("not ready: %w", err)
		}
	}
}

// redisServer is a private one: asynq needs it.
type redisServer struct {
	*process

	addr string
}

func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, nil //nolint:nilerr // asynq is then left out, and said to be
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	// appendonly: a timer must outlive its server, as it does in the others.
	p, err := start(exec.CommandContext(ctx, "redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--save", ""),
		filepath.Join(dir, "redis.log"))
	if err != nil {
		return nil, err
	}
	return &redisServer{p, "127.0.0.1:" + strconv.Itoa(port)}, nil
}

// versions are those of everything that takes part.
func (l *lab) versions(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	var err error
	if all["postgres"], err = postgresVersion(ctx, l.postgres.URL()); err != nil {
		return nil, err
	}
	if all["rabbitmq"], err = rabbitVersion(l.broker.URL()); err != nil {
		return nil, err
	}
	all["go"] = runtime.Version()
	if l.redis != nil {
		all["redis"] = l.redis.version(ctx)
	}
	for module, name := range map[string]string{"github.com/riverqueue/river": "river", "github.com/hibiken/asynq": "asynq", "github.com/ThreeDotsLabs/watermill-amqp/v2": "watermill-amqp"} {
		all[name] = moduleVersion(module)
	}
	return all, nil
}

func postgresVersion(ctx context.Context, url string) (version string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	return version, conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
}

func rabbitVersion(url string) (string, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return fmt.Sprint(conn.Properties["version"]), nil
}

func (r *redisServer) version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(out), "v=")
	version, _, _ := strings.Cut(rest, " ")
	return version
}

func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	return "unknown"
}
