package harness

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// What tests wait for on the wire. Each is sent in one piece.
var (
	// CommitRequest is a client's COMMIT on its way to Postgres.
	CommitRequest = []byte("commit\x00")
	// CommitAnswer is Postgres' word that a transaction committed.
	CommitAnswer = []byte("COMMIT\x00")
	// AckRequest is a basic.ack: a method frame of 13 bytes, class 60, method 80. A
	// consumer sends it to RabbitMQ, and RabbitMQ to a publisher as its confirm.
	AckRequest = []byte{0, 0, 0, 13, 0, 60, 0, 80}
	// PublishRequest is a basic.publish through the default exchange on its way to
	// RabbitMQ: class 60, method 40, a reserved number and an empty name.
	PublishRequest = []byte{0, 60, 0, 40, 0, 0, 0}
)

// Proxy stands between a service and a server, passes everything on, and stops the
// world at a chosen message: the binary under test needs no hook for it.
type Proxy struct {
	Addr string

	target   string
	listener net.Listener

	mu      sync.Mutex
	pattern []byte
	skip    int // pieces with the pattern that still pass
	held    chan struct{}
	conns   map[net.Conn]struct{}
	frozen  bool // black hole: connections stay open and nothing passes
}

// NewProxy returns a proxy in front of target that ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: listener.Addr().String(), target: target, listener: listener, conns: map[net.Conn]struct{}{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Cut()
	})
	return p
}

// HoldAt keeps the first piece that contains pattern, in either direction, from being
// passed on, with everything behind it. The channel is closed when that happened.
func (p *Proxy) HoldAt(pattern []byte) <-chan struct{} { return p.HoldAtNth(pattern, 1) }

// HoldAtNth is HoldAt for the n-th such piece, counted from one over all connections.
func (p *Proxy) HoldAtNth(pattern []byte, n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pattern, p.skip, p.held = pattern, n-1, make(chan struct{})
	return p.held
}

// Freeze makes the network a black hole until Cut: nothing passes, nobody is told.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Cut closes every connection and lets new ones work.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = map[net.Conn]struct{}{}
	p.frozen = false
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		go p.pump(client, server)
		go p.pump(server, client)
	}
}

func (p *Proxy) pump(from, to net.Conn) {
	defer func() { _ = from.Close(); _ = to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.holds(buf[:n]) {
			_, _ = io.Copy(io.Discard, from) // until the connection is cut
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) holds(piece []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen {
		return true
	}
	if p.pattern == nil || !bytes.Contains(piece, p.pattern) {
		return false
	}
	if p.skip > 0 {
		p.skip--
		return false
	}
	p.pattern = nil
	close(p.held)
	return true
}
