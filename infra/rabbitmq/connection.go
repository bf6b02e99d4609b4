package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
)

const (
	dialTimeout = 5 * time.Second

	// A silent peer is noticed after three heartbeats without a word.
	heartbeat = 5 * time.Second

	// A broker that stops reading (alarm, black hole) fails a write after this long
	// instead of holding the writer for ever.
	writeTimeout = 10 * time.Second

	closeTimeout = 3 * time.Second // for the broker's answer to a goodbye

	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = 3 * time.Second
)

// Connection keeps one AMQP connection alive: it connects in the background and
// again whenever the connection is lost, until it is closed.
//
// Use one for publishing and another for consuming: a broker under a memory alarm
// stops reading from connections that publish, and acks must still get through.
type Connection struct {
	url    string
	name   string
	logger *slog.Logger
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	live    *amqp.Connection // nil while there is none
	upSince time.Time        // when live was connected
	blocked string           // the broker's reason while it blocks publishers
	lastErr error            // why there is no live connection
	changed chan struct{}    // closed and replaced when live changes
}

// Connect returns at once; the connection comes up in the background. name is what
// operators see in the broker's list of connections. Close ends it.
func Connect(cfg Config, name string, logger *slog.Logger) *Connection {
	ctx, stop := context.WithCancel(context.Background())
	c := &Connection{
		url:     cfg.URL,
		name:    name,
		logger:  logger.With("connection", name),
		stop:    stop,
		done:    make(chan struct{}),
		lastErr: errors.New("not connected yet"),
		changed: make(chan struct{}),
	}
	go c.keepAlive(ctx)
	return c
}

// Close closes the connection and waits until it is gone. It is safe to call twice.
func (c *Connection) Close() {
	c.stop()
	<-c.done
}

// Channel opens a channel, waiting for a live connection as long as ctx allows. It
// returns an error that is domain.ErrUnavailable when there is none by then.
func (c *Connection) Channel(ctx context.Context) (*amqp.Channel, error) {
	conn, err := c.await(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, unavailable(err)
	}
	return ch, nil
}

// Ready returns nil while the connection is up and publishers are not blocked.
func (c *Connection) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.live == nil || c.live.IsClosed():
		return unavailable(c.lastErr)
	case c.blocked != "":
		return blockedError(c.blocked)
	default:
		return nil
	}
}

// up returns how long the connection has been there, 0 while there is none.
func (c *Connection) up() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil || c.live.IsClosed() {
		return 0
	}
	return time.Since(c.upSince)
}

// blockedError returns an error while the broker blocks publishers.
func (c *Connection) blockedError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked == "" {
		return nil
	}
	return blockedError(c.blocked)
}

func blockedError(reason string) error {
	return unavailable(fmt.Errorf("broker blocks publishers: %s", reason))
}

// await returns the live connection.
func (c *Connection) await(ctx context.Context) (*amqp.Connection, error) {
	for {
		c.mu.Lock()
		live, changed, lastErr := c.live, c.changed, c.lastErr
		c.mu.Unlock()
		if live != nil && !live.IsClosed() {
			return live, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, unavailable(fmt.Errorf("%w: %w", ctx.Err(), lastErr))
		case <-c.done:
			return nil, unavailable(errors.New("connection is closed"))
		}
	}
}

func (c *Connection) keepAlive(ctx context.Context) {
	defer close(c.done)
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = reconnectFirst, reconnectMost
	for ctx.Err() == nil {
		conn, socket, err := c.dial(ctx)
		if err != nil {
			c.set(nil, err)
			c.logger.Warn("cannot connect to the broker, trying again", "error", err)
			select {
			case <-time.After(wait.NextBackOff()):
			case <-ctx.Done():
			}
			continue
		}
		wait.Reset()
		c.logger.Info("connected to the broker")
		c.hold(ctx, conn, socket)
	}
}

// dial returns the connection and the socket below it.
func (c *Connection) dial(ctx context.Context) (*amqp.Connection, net.Conn, error) {
	var socket net.Conn
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(c.name)
	conn, err := amqp.DialConfig(c.url, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: properties,
		Dial: func(network, addr string) (net.Conn, error) {
			dialer := net.Dialer{Timeout: dialTimeout}
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			socket = conn
			// Bounds the handshake; the client clears it afterwards.
			if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return boundedWrites{conn}, nil
		},
	})
	return conn, socket, err
}

// hold publishes conn as the live connection until it is lost or ctx ends.
func (c *Connection) hold(ctx context.Context, conn *amqp.Connection, socket net.Conn) {
	// Buffered: the client must never wait for us to read a notification.
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	blockings := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	c.set(conn, nil)
	for {
		select {
		case b, ok := <-blockings:
			if !ok {
				blockings = nil // the connection is going; lost tells why
				continue
			}
			c.setBlocked(b)
		case err := <-lost:
			c.set(nil, fmt.Errorf("connection lost: %w", closeReason(err)))
			c.logger.Warn("connection to the broker lost", "error", closeReason(err))
			return
		case <-ctx.Done():
			c.set(nil, errors.New("connection is closed"))
			closeWithin(conn, socket, closeTimeout)
			return
		}
	}
}

// closeWithin says goodbye, and hangs up when nobody answers. A broker under an alarm
// does not read the goodbye of a publisher but still sends heartbeats, and each of them
// moves the deadline that the client's own CloseDeadline sets.
func closeWithin(conn *amqp.Connection, socket net.Conn, timeout time.Duration) {
	hangUp := time.AfterFunc(timeout, func() { _ = socket.Close() })
	defer hangUp.Stop()
	_ = conn.Close() // lost already, or hung up
}

func (c *Connection) set(live *amqp.Connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live, c.lastErr, c.blocked, c.upSince = live, err, "", time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Connection) setBlocked(b amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.Active {
		c.blocked = b.Reason
		c.logger.Warn("broker blocks publishers", "reason", b.Reason)
		return
	}
	c.blocked = ""
	c.logger.Info("broker takes publishes again")
}

// boundedWrites gives every write a deadline of its own.
type boundedWrites struct{ net.Conn }

func (c boundedWrites) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func closeReason(err *amqp.Error) error {
	if err == nil {
		return errors.New("closed")
	}
	return err
}

func unavailable(err error) error {
	return fmt.Errorf("rabbitmq: %w: %w", domain.ErrUnavailable, err)
}
