package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A private database keeps its data and its port over a kill.
func TestPostgresSurvivesAKill(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	p, err := StartPostgres(ctx, tempDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(context.Background()) })
	exec1(t, p.URL(), "CREATE TABLE kept AS SELECT 1")
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if p.Process.Alive() {
		t.Fatal("alive after the kill")
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	exec1(t, p.URL(), "SELECT count(*) FROM kept")
	again, err := StartPostgres(ctx, p.Dir)
	if err != nil || again.Process != p.Process {
		t.Fatalf("a second start gives %+v, %v; want the running %+v", again, err, p.Process)
	}
}

// A private broker keeps its messages and its port over a kill.
func TestRabbitMQSurvivesAKill(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	advanced, err := AdvancedConfig("../..")
	if err != nil {
		t.Fatal(err)
	}
	b, err := StartRabbitMQ(ctx, tempDir(t), advanced)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop(context.Background()) })
	queue := fmt.Sprintf("kept-over-a-kill-%d", time.Now().UnixNano())
	withChannel(t, b.URL(), func(ch *amqp.Channel) {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	})
	// A broker that is killed within seconds of a quorum queue's making forgets where the
	// queue's data is, messages and all. After a clean restart it knows.
	if err := errors.Join(b.Stop(ctx), b.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	withChannel(t, b.URL(), func(ch *amqp.Channel) {
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		if err != nil || !confirm.Wait() {
			t.Fatalf("publish: %v", err)
		}
	})
	if err := b.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	err = poll(ctx, func() error { // a quorum queue needs a moment after a start
		var q amqp.Queue
		withChannel(t, b.URL(), func(ch *amqp.Channel) {
			q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		})
		if err == nil && q.Messages == 0 {
			err = fmt.Errorf("%d messages", q.Messages)
		}
		return err
	})
	if err != nil {
		t.Fatalf("the message is gone: %v", err)
	}
}

// A pid that belongs to another process by now is never signalled.
func TestProcessIsKnownByMoreThanItsPID(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := identify(cmd.Process.Pid)
	if err != nil || !p.Alive() {
		t.Fatalf("%+v, %v", p, err)
	}
	p.Started = "Thu Jan  1 00:00:00 1970"
	if err := p.End(testContext(t), 9); err != nil {
		t.Fatal(err)
	}
	if startOf(cmd.Process.Pid) == "" {
		t.Fatal("the other process was killed")
	}
}

func TestURLThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/x")
	var log strings.Builder
	_, err := FindPostgres(testContext(t), "../..", &log)
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Fatalf("got %v", err)
	}
}

// tempDir is a directory that servers under another user can reach.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "ordertimeout-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(testContext(t), sql); err != nil {
		t.Fatal(err)
	}
}

func withChannel(t *testing.T, url string, fn func(*amqp.Channel)) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	fn(ch)
}

// A server that answers and does not let us in is named, and the next place is tried.
func TestRefusedLoginFallsThrough(t *testing.T) {
	broker := os.Getenv("AMQP_URL")
	if broker == "" {
		broker = "amqp://guest:guest@127.0.0.1:5672/"
	}
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("nobody", "wrong")
	k := rabbitKind("../..")
	k.variable = "URL_THAT_IS_NOT_SET"
	k.port, k.urls = port, []string{u.String()}
	k.binary = func() string { return "the package" }
	k.start = func(_ context.Context, dir string) (Server, error) { return Server{URL: "private in " + dir}, nil }
	t.Setenv("DOCKER_HOST", "unix:///nowhere") // no engine
	root := t.TempDir()
	var log strings.Builder
	s, err := find(testContext(t), k, root, &log)
	if err != nil {
		t.Fatal(err)
	}
	if want := "private in " + filepath.Join(root, ".dev", "rabbitmq"); s.URL != want {
		t.Errorf("found %q, want %q", s.URL, want)
	}
	for _, want := range []string{fmt.Sprintf("127.0.0.1:%d does not let us in", port), "403", "set " + k.variable, "using a private one"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "wrong") {
		t.Errorf("the log tells the password:\n%s", log.String())
	}
}

// The compose file's server counts as one that answers, with the users of .env.
func TestComposeServerIsFoundByItsPort(t *testing.T) {
	k := postgresKind()
	var tried []string
	k.urls = nil
	k.ping = func(_ context.Context, url string) error { tried = append(tried, url); return nil }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("POSTGRES_PORT", port) // goes before the file
	file := filepath.Join(t.TempDir(), ".env")
	if err := os.WriteFile(file, []byte("# x=y\nPOSTGRES_USER=shop\nPOSTGRES_PASSWORD=p@ss\nPOSTGRES_DB=orders\nPOSTGRES_PORT=5432\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.port = 1 // nothing answers on the usual one
	s, ok := listening(testContext(t), k, dotEnv(file), t.Logf)
	want := "postgres://shop:p%40ss@127.0.0.1:" + port + "/orders?sslmode=disable"
	if !ok || s.URL != want || len(tried) != 1 {
		t.Fatalf("found %v %q after trying %q, want %q", ok, s.URL, tried, want)
	}
}

// A server whose test was interrupted is stopped by make down, with what it left behind.
func TestStopStartedFindsWhatWasLeft(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.mod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	ctx := testContext(t)
	p, err := StartPostgres(ctx, tempDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(context.Background()) })
	stopped, err := StopStarted(ctx, root)
	if err != nil || !slices.Equal(stopped, []string{"postgres"}) {
		t.Fatalf("stopped %q, %v", stopped, err)
	}
	if p.Process.Alive() {
		t.Error("it still runs")
	}
	if stopped, err := StopStarted(ctx, root); err != nil || len(stopped) > 0 {
		t.Errorf("a second time stopped %q, %v", stopped, err)
	}
}

// Where a server's user cannot get, its data lies elsewhere, always at the same place.
func TestPrivateDirectoryOutsideOfAClosedOne(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		if place, err := private(filepath.Join(tempDir(t), "postgres")); err != nil || strings.Contains(place, "ordertimeout-postgres-") {
			t.Fatalf("an ordinary user's servers are its own: got %s, %v", place, err)
		}
		return
	}
	closed := tempDir(t)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, ".dev", "postgres")
	place, err := private(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(place) })
	if !anyoneReaches(filepath.Dir(place)) || strings.HasPrefix(place, closed) {
		t.Errorf("%s is not outside of %s", place, closed)
	}
	if again, err := private(dir); err != nil || again != place {
		t.Errorf("then %s, %v; first %s", again, err, place)
	}
	if err := os.RemoveAll(place); err != nil {
		t.Fatal(err)
	}
	other, err := private(dir)
	if err != nil || other == place {
		t.Fatalf("after its data was removed: %s, %v", other, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
}
