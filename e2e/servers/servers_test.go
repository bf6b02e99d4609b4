package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
