// Package rabbitmqtest gives tests a broker and names of their own in it.
package rabbitmqtest

import (
	"os"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// defaultURL is a local broker as it comes out of the box.
const defaultURL = "amqp://guest:guest@127.0.0.1:5672/"

// URL returns AMQP_URL, or the default port of this machine.
func URL() string {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	return defaultURL
}

// Namespace returns a prefix that no other test uses.
func Namespace() string { return "t" + uuid.NewString()[24:] }

// Channel returns a plain channel, closed with its connection when the test ends.
func Channel(t testing.TB) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(URL())
	if err != nil {
		t.Fatalf("no broker at AMQP_URL or the default port (make test starts one): %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // a test may have closed it already
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// Delete removes queues and exchanges when the test ends.
func Delete(t testing.TB, queues, exchanges []string) {
	t.Helper()
	t.Cleanup(func() {
		ch := Channel(t)
		for _, q := range queues {
			if _, err := ch.QueueDelete(q, false, false, false); err != nil {
				t.Logf("removing queue %s: %v", q, err)
				ch = Channel(t)
			}
		}
		for _, e := range exchanges {
			if err := ch.ExchangeDelete(e, false, false); err != nil {
				t.Logf("removing exchange %s: %v", e, err)
				ch = Channel(t)
			}
		}
	})
}
