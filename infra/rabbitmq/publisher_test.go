package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

func outgoing(route rabbitmq.Route, body string) rabbitmq.Outgoing {
	return rabbitmq.Outgoing{Route: route, Message: message.NewMessage(watermill.NewUUID(), []byte(body))}
}

func TestPublishReportsWhatNoQueueTook(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	parking := f.topology.ParkingRoute(rabbitmq.Closer)
	var out []rabbitmq.Outgoing
	for i := range 200 {
		if i%3 == 0 {
			out = append(out, outgoing(f.topology.EventRoute("nobody.listens"), "lost"))
		} else {
			out = append(out, outgoing(parking, "kept"))
		}
	}
	for i, err := range f.publisher.PublishAll(f.ctx(), out) {
		var unroutable *rabbitmq.UnroutableError
		if i%3 == 0 != errors.As(err, &unroutable) || i%3 != 0 && err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	f.awaitDepth(f.topology.ParkingQueue(), 133)
}

func TestPublishNamesTheOneMessageThatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	parking := f.topology.ParkingRoute(rabbitmq.Closer)
	out := []rabbitmq.Outgoing{
		outgoing(parking, "one"),
		outgoing(rabbitmq.Route{Exchange: "no.such.exchange", Key: "x"}, "bad"),
		outgoing(parking, strings.Repeat("x", rabbitmq.MaxMessageSize+1)),
		outgoing(parking, "two"),
	}
	errs := f.publisher.PublishAll(f.ctx(), out)
	var refused *rabbitmq.RefusedError
	if errs[0] != nil || errs[3] != nil {
		t.Errorf("good messages: %v, %v", errs[0], errs[3])
	}
	if !errors.As(errs[1], &refused) || refused.Code != 404 {
		t.Errorf("unknown exchange: %v", errs[1])
	}
	if !errors.Is(errs[2], rabbitmq.ErrTooLarge) {
		t.Errorf("large body: %v", errs[2])
	}
}

// Many callers share one channel; nobody waits for a part of the window that another
// one holds.
func TestPublishFromManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const callers, each = 12, 700
	var wg sync.WaitGroup
	failed := make(chan error, callers*each)
	for range callers {
		wg.Go(func() {
			out := make([]rabbitmq.Outgoing, each)
			for i := range out {
				out[i] = outgoing(f.topology.ParkingRoute(rabbitmq.Closer), "x")
			}
			for _, err := range f.publisher.PublishAll(f.ctx(), out) {
				if err != nil {
					failed <- err
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
	f.awaitDepth(f.topology.ParkingQueue(), callers*each)
}

func TestPublishWithoutABrokerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	conn := rabbitmq.Connect(rabbitmq.Config{URL: "amqp://guest:guest@127.0.0.1:1/"}, "nowhere", discard())
	t.Cleanup(conn.Close)
	publisher := rabbitmq.NewPublisher(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := publisher.PublishAll(ctx, []rabbitmq.Outgoing{outgoing(rabbitmq.Route{Key: "q"}, "x")})[0]
	if !errors.Is(err, domain.ErrUnavailable) {
		t.Fatalf("got %v, want unavailable", err)
	}
}

// Headers that would not fit a frame must never cost the connection.
func TestPublishBoundsHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := outgoing(f.topology.ParkingRoute(rabbitmq.Closer), "x")
	for i := range 100 {
		o.Message.Metadata.Set(fmt.Sprintf("foreign-%d", i), strings.Repeat("ä", 10_000))
	}
	o.Message.Metadata.Set(rabbitmq.MetaError, "the story")
	o.Message.Metadata.Set("x-death", "must not go out")
	if err := f.publisher.PublishAll(f.ctx(), []rabbitmq.Outgoing{o})[0]; err != nil {
		t.Fatal(err)
	}
	got := f.get(f.topology.ParkingQueue())
	if got.Headers[rabbitmq.MetaError] != "the story" {
		t.Errorf("the application's own header is gone: %v", got.Headers[rabbitmq.MetaError])
	}
	if _, ok := got.Headers["x-death"]; ok {
		t.Error("x-death was sent")
	}
}

// After Close nothing is sent, and what was under way is not cut off.
func TestPublisherClosesAfterItsConfirms(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	done := make(chan []error)
	go func() {
		out := make([]rabbitmq.Outgoing, 500)
		for i := range out {
			out[i] = outgoing(f.topology.ParkingRoute(rabbitmq.Closer), "x")
		}
		done <- f.publisher.PublishAll(context.Background(), out)
	}()
	if err := f.publisher.Close(); err != nil {
		t.Fatal(err)
	}
	first := (<-done)[0]
	if first != nil && !errors.Is(first, domain.ErrUnavailable) {
		t.Fatal(first)
	}
	if err := f.publisher.Publish("q", message.NewMessage("1", nil)); !errors.Is(err, domain.ErrUnavailable) {
		t.Fatalf("after close: %v", err)
	}
}
