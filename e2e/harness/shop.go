// Package harness runs the built binary as a shop would: one process a service, real
// Postgres, real RabbitMQ, a mail server that keeps what it gets.
package harness

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/e2e/servers"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/infra/rabbitmq/rabbitmqtest"
	"example.com/ordertimeout/infra/smtp/smtptest"
)

// Patience is how long a test waits for what must happen. It decides nothing about
// speed: only a broken program is still not done by then.
const Patience = 60 * time.Second

// The clocks of a test's shop.
const (
	DefaultWindows = "3s,300ms,30m"
	Tiers          = "100ms,1s,10s"
	Ladder         = "200ms,500ms,1s"
)

// OperatorToken signs operators in.
const OperatorToken = "token-of-the-operator"

// Shop is one deployment with a database and a namespace of its own.
type Shop struct {
	t         testing.TB
	DB        *pgxpool.Pool
	Mail      *smtptest.Server
	Topology  rabbitmq.Topology
	AMQPURL   string
	API       string // host and port of the order service
	Console   string // and of the reconciler
	env       map[string]string
	processes []*Process
}

// New returns a shop with nothing running. brokerURL and databaseURL may be empty: then
// they are the test run's own.
func New(t testing.TB, windows, databaseURL, brokerURL string) *Shop {
	t.Helper()
	if databaseURL == "" {
		databaseURL = postgrestest.NewURL(t)
	}
	if brokerURL == "" {
		brokerURL = rabbitmqtest.URL()
	}
	pool, err := pgxpool.New(context.Background(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &Shop{t: t, DB: pool, Mail: smtptest.New(t), AMQPURL: brokerURL, API: freeAddr(t), Console: freeAddr(t)}
	namespace := rabbitmqtest.Namespace()
	s.Topology = topology(t, namespace, windows)
	s.env = map[string]string{
		"DATABASE_URL": databaseURL, "AMQP_URL": brokerURL, "TOPOLOGY_NAMESPACE": namespace,
		"PAYMENT_WINDOWS": windows, "DELAY_TIERS": Tiers, "RETRY_LADDER": Ladder,
		"ORDER_ADDR": s.API, "CONSOLE_ADDR": s.Console, "OPERATOR_TOKEN": OperatorToken, "PAYMENT_WEBHOOK_SECRET": webhookSecret,
		"SMTP_URL": s.Mail.URL(), "MAIL_FROM": "Shop <shop@example.com>", "RELAY_POLL": "10ms",
	}
	t.Cleanup(s.removeQueues)
	t.Cleanup(func() { // first: a running service would declare its queues again
		for _, p := range s.processes {
			p.Kill()
		}
	})
	return s
}

func topology(t testing.TB, namespace, windows string) rabbitmq.Topology {
	t.Helper()
	var w domain.Windows
	var tiers domain.Tiers
	var ladder domain.Ladder
	for text, target := range map[string]interface{ UnmarshalText([]byte) error }{windows: &w, Tiers: &tiers, Ladder: &ladder} {
		if err := target.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return rabbitmq.NewTopology(namespace, domain.NewDelays(w, tiers), ladder)
}

// Setenv changes the environment of processes that are started from now on.
func (s *Shop) Setenv(key, value string) { s.env[key] = value }

// Process is one running service.
type Process struct {
	Name    string
	Metrics string // host:port of health and metrics

	t      testing.TB
	cmd    *exec.Cmd
	log    *log
	ended  chan struct{}
	status error

	expendable bool // its log tells nothing about a failure
}

// Start starts a service without waiting for it; env adds to the shop's environment.
func (s *Shop) Start(service string, env ...string) *Process {
	s.t.Helper()
	return s.start(Binary(s.t), service, env...)
}

// StartFaulty starts a closer that fails to close one order, as a release with a bug.
func (s *Shop) StartFaulty(orderID string) *Process {
	s.t.Helper()
	return s.start(faultyBinary(s.t), "closer", "FAULT_CLOSE="+orderID)
}

func (s *Shop) start(binary, service string, env ...string) *Process {
	s.t.Helper()
	p := &Process{Name: service, Metrics: freeAddr(s.t), t: s.t, log: &log{}, ended: make(chan struct{})}
	p.cmd = exec.Command(binary, service)
	for key, value := range s.env {
		p.cmd.Env = append(p.cmd.Env, key+"="+value)
	}
	p.cmd.Env = append(append(p.cmd.Env, "METRICS_ADDR="+p.Metrics), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		p.status = p.cmd.Wait()
		close(p.ended)
	}()
	s.processes = append(s.processes, p)
	s.t.Cleanup(func() {
		if s.t.Failed() && !p.expendable {
			s.t.Logf("the end of the log of %s:\n%s", service, p.log.tail())
		}
	})
	return p
}

// Run starts services and waits until they are ready.
func (s *Shop) Run(services ...string) []*Process {
	s.t.Helper()
	var started []*Process
	for _, service := range services {
		started = append(started, s.Start(service))
	}
	for _, p := range started {
		p.AwaitReady()
	}
	return started
}

// Command runs the binary to its end and returns what it printed and its exit status.
func (s *Shop) Command(args ...string) (string, int) {
	s.t.Helper()
	cmd := exec.Command(Binary(s.t), args...)
	for key, value := range s.env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// Ready returns nil while the service answers that it is ready.
func (p *Process) Ready() error { return get("http://" + p.Metrics + "/readyz") }

// AwaitReady waits for it.
func (p *Process) AwaitReady() {
	p.t.Helper()
	Eventually(p.t, func() error {
		select {
		case <-p.ended:
			p.t.Fatalf("%s ended: %v\n%s", p.Name, p.status, p.log.tail())
		default:
		}
		return p.Ready()
	})
}

// Kill ends the process without a warning and waits until it is gone.
func (p *Process) Kill() {
	select {
	case <-p.ended:
	default:
		p.expendable = p.t != nil && !p.t.Failed() // killed on purpose: its log tells nothing
	}
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.ended
	client.CloseIdleConnections() // the next process on this port must not be asked on a dead one
}

// Terminate asks the process to drain and returns its exit status.
func (p *Process) Terminate() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(Patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the log then shows where it hangs
		<-p.ended
		p.t.Fatalf("%s does not drain:\n%s", p.Name, p.log.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// OnLine calls fn with every line that the process writes from now on, one at a time.
func (p *Process) OnLine(fn func(line []byte)) {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	p.log.onLine = fn
}

// Log returns what the process wrote so far.
func (p *Process) Log() string { return p.log.String() }

// Binary builds the program once for all tests of a run.
func Binary(t testing.TB) string {
	t.Helper()
	return built(t, build)
}

// faultyBinary is the same program, built so that it can be made to fail.
func faultyBinary(t testing.TB) string {
	t.Helper()
	return built(t, buildFaulty)
}

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	build       = sync.OnceValues(func() (string, error) { return compile("ordertimeout") })
	buildFaulty = sync.OnceValues(func() (string, error) { return compile("ordertimeout-faulty", "-tags=faults") })

	binaries = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "ordertimeout-e2e-") })
)

func compile(name string, flags ...string) (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	args := append(append([]string{"build"}, flags...), "-o", path, "example.com/ordertimeout/services")
	out, err := exec.Command("go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return path, nil
}

// RemoveBinary removes what was built; a TestMain calls it at the end.
func RemoveBinary() {
	if dir, err := binaries(); err == nil {
		_ = os.RemoveAll(dir)
	}
}

// Eventually polls until check returns nil.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", Patience, err)
		}
		<-time.After(25 * time.Millisecond)
	}
}

func (s *Shop) removeQueues() {
	conn, err := amqp.Dial(s.AMQPURL)
	if err != nil {
		return // a broker of the test's own is gone, with its queues
	}
	defer func() { _ = conn.Close() }()
	queues, exchanges := s.Topology.Names()
	for _, name := range queues {
		if ch, err := conn.Channel(); err == nil {
			_, _ = ch.QueueDelete(name, false, false, false)
			_ = ch.Close()
		}
	}
	for _, name := range exchanges {
		if ch, err := conn.Channel(); err == nil {
			_ = ch.ExchangeDelete(name, false, false)
			_ = ch.Close()
		}
	}
}

// Via returns the shop's variable with another host and port, for a proxy in between.
func (s *Shop) Via(variable, addr string) string {
	u, err := url.Parse(s.env[variable])
	if err != nil {
		s.t.Fatal(err)
	}
	u.Host = addr
	return variable + "=" + u.String()
}

// Addr is the host and port that a variable of the shop names.
func (s *Shop) Addr(variable string) string {
	u, err := url.Parse(s.env[variable])
	if err != nil {
		s.t.Fatal(err)
	}
	return u.Host
}

func freeAddr(t testing.TB) string {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// log keeps what a process writes.
type log struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	onLine func([]byte)
	rest   []byte // of a line that is not whole yet
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.onLine != nil {
		l.rest = append(l.rest, p...)
		for {
			line, rest, found := bytes.Cut(l.rest, []byte("\n"))
			if !found {
				break
			}
			l.onLine(line)
			l.rest = rest
		}
	}
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *log) tail() string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// Environment returns a view of the shop in which one variable differs.
func Environment(s *Shop, variable, value string) *Shop {
	other := *s
	other.env = maps.Clone(s.env)
	other.env[variable] = value
	return &other
}
