package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/ordertimeout/e2e/servers"
	"example.com/ordertimeout/infra/postgres"
)

// lab is what every measurement shares: private servers, started with what the project
// ships, and the program.
type lab struct {
	root     string
	postgres *servers.Postgres
	broker   *servers.RabbitMQ
	redis    *redisServer
	binary   string
	runs     int
}

func openLab(ctx context.Context, root string) (*lab, error) {
	if err := os.Chdir(root); err != nil { // what is started is noted in this checkout
		return nil, err
	}
	l := &lab{root: root, binary: filepath.Join(root, ".dev", "bench", "ordertimeout")}
	dir := func(name string) string { return filepath.Join(root, ".dev", "bench", name) }
	if err := os.MkdirAll(dir(""), 0o755); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", l.binary, "./services")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	advanced, err := servers.AdvancedConfig(root)
	if err != nil {
		return nil, err
	}
	if l.postgres, err = servers.StartPostgres(ctx, dir("postgres")); err != nil {
		return nil, err
	}
	if err := l.keepCommitTimes(ctx); err != nil {
		return l, err
	}
	if l.broker, err = servers.StartRabbitMQ(ctx, dir("rabbitmq"), advanced); err != nil {
		return l, err
	}
	if err := l.makeTemplate(ctx); err != nil {
		return l, err
	}
	l.redis, err = startRedis(ctx, dir("redis"))
	return l, err
}

func (l *lab) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if l.redis != nil {
		l.redis.stop()
	}
	if l.broker != nil {
		_ = l.broker.Stop(ctx) // nothing else can be done about it here
	}
	if l.postgres != nil {
		_ = l.postgres.Stop(ctx)
	}
}

// keepCommitTimes lets PostgreSQL remember when each transaction committed: the one
// clock by which every way is measured.
func (l *lab) keepCommitTimes(ctx context.Context) error {
	var on string
	err := l.onServer(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SHOW track_commit_timestamp").Scan(&on)
	})
	if err != nil || on == "on" {
		return err
	}
	err = l.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER SYSTEM SET track_commit_timestamp = on")
		return err
	})
	return errors.Join(err, l.postgres.Stop(ctx), l.postgres.Start(ctx))
}

func (l *lab) onServer(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, l.postgres.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return fn(conn)
}

const templateName = "bench_template"

func (l *lab) makeTemplate(ctx context.Context) error {
	err := l.onServer(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT datname FROM pg_database WHERE datname LIKE 'bench%'")
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, name := range names { // of a run that was interrupted
			if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
				return err
			}
		}
		_, err = conn.Exec(ctx, "CREATE DATABASE "+templateName)
		return err
	})
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, postgres.Config{URL: l.databaseURL(templateName), MaxConns: 2})
	if err != nil {
		return err
	}
	defer db.Close()
	_, _, err = db.Migrate(ctx)
	return err
}

func (l *lab) databaseURL(name string) string {
	u, err := url.Parse(l.postgres.URL())
	if err != nil {
		panic(err) // our own
	}
	u.Path = "/" + name
	return u.String()
}

// world is the data of one run: a database and a namespace of its own.
type world struct {
	*lab

	load

	name string
	url  string
	pool *pgxpool.Pool
	due  time.Time
}

// load is how much there is in a world.
type load struct {
	orders  int // of the run
	skus    int
	pending int                // others, due much later, with their timers
	loaded  func(*world) error // called when these are there
}

// newWorld stores orders that are all due at the same time.
func (l *lab) newWorld(ctx context.Context, load load, due time.Time) (*world, error) {
	l.runs++
	w := &world{lab: l, load: load, name: fmt.Sprintf("bench_%d", l.runs), due: due}
	w.url = l.databaseURL(w.name)
	err := l.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", w.name, templateName))
		return err
	})
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(w.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 100
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if err := w.seed(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("seed: %w", err), w.close(ctx))
	}
	return w, nil
}

// farAway is when the pending orders are due, from the others on.
const farAway = 24 * time.Hour

// seed writes what placing the orders leaves in the database, without their timers. Ids
// ascend in time, as the product's do.
func (w *world) seed(ctx context.Context) error {
	if _, err := w.pool.Exec(ctx, `INSERT INTO stock (sku, available) SELECT 'sku-' || i, 0 FROM generate_series(0, $1::int - 1) AS i`, w.skus); err != nil {
		return err
	}
	for _, part := range []struct {
		orders int
		due    time.Time
	}{{w.pending, w.due.Add(farAway)}, {w.orders, w.due}} {
		_, err := w.pool.Exec(ctx, `
			WITH placed AS (
				INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
				SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint + i), 12, '0') || '7' || substr(md5(i::text), 1, 19))::uuid,
					'customer-' || i, 'customer-' || i || '@example.com', 'EUR', 1800000, $2::timestamptz, now()
				FROM generate_series(1, $1::int) AS i RETURNING id
			)
			INSERT INTO order_lines (order_id, position, sku, quantity, unit_price, held)
			SELECT id, 1, 'sku-' || (row_number() OVER (ORDER BY id)) % $3::int, 1, 500, 1 FROM placed`, part.orders, part.due, w.skus)
		if err != nil {
			return err
		}
	}
	for _, sql := range []string{
		`UPDATE stock s SET held = c.n FROM (SELECT sku, count(*) AS n FROM order_lines GROUP BY sku) c WHERE c.sku = s.sku`,
		`UPDATE stock SET available = ` + strconv.Itoa(w.units()) + ` - held`,
		`VACUUM ANALYZE`,
		`CHECKPOINT`,
	} {
		if _, err := w.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// units is how many there are of each SKU, wherever they are.
func (w *world) units() int { return w.orders + w.pending }

func (w *world) close(ctx context.Context) error {
	w.pool.Close()
	return w.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE "+w.name+" WITH (FORCE)")
		return err
	})
}

// ids are those of the orders for which a condition is true, in whatever order it says.
func (w *world) ids(ctx context.Context, which string) ([]string, error) {
	rows, err := w.pool.Query(ctx, "SELECT id::text FROM orders WHERE "+which)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// awaitClosed waits until none of the orders is pending.
func (w *world) awaitClosed(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var pending bool
		if err := w.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM orders WHERE status = 'pending' AND "+w.mine()+")").Scan(&pending); err != nil {
			return fmt.Errorf("orders are left after %s: %w", patience, err)
		}
		if !pending {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// check verifies that nothing was lost or done twice: a run with an error in it has no
// result. published is how many events have left the outbox.
func (w *world) check(ctx context.Context, published int) error {
	for what, sql := range map[string]string{
		"orders that are not closed, or were too early": `SELECT count(*) FROM orders WHERE ` + w.mine() + ` AND (status <> 'closed' OR closed_at < due_at)`,
		"orders with two events":                        `SELECT count(*) FROM (SELECT FROM outbox GROUP BY order_id HAVING count(*) > 1) t`,
		"SKUs whose stock is wrong": `
			SELECT count(*) FROM stock s WHERE available + held <> ` + strconv.Itoa(w.units()) + ` OR held <> (
				SELECT coalesce(sum(l.held), 0) FROM order_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku = s.sku AND o.status = 'pending')`,
	} {
		var n int
		if err := w.pool.QueryRow(ctx, sql).Scan(&n); err != nil {
			return fmt.Errorf("check: %w", err)
		}
		if n != 0 {
			return fmt.Errorf("check: %d %s", n, what)
		}
	}
	var events int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM outbox`).Scan(&events); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if events += published; events != w.orders {
		return fmt.Errorf("check: %d events for %d orders", events, w.orders)
	}
	return nil
}

// mine is the condition for the orders of the run, among those that only fill the table.
func (w *world) mine() string {
	if w.due.IsZero() {
		return "true"
	}
	return "due_at = '" + w.due.Format(time.RFC3339Nano) + "'"
}

// process is one of ours, or a server's.
type process struct {
	cmd *exec.Cmd
	log *os.File
}

// run starts a service of the program.
func (w *world) run(service string, env ...string) (*process, error) {
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	metrics := "127.0.0.1:" + strconv.Itoa(port)
	cmd := exec.Command(w.binary, service)
	cmd.Env = append(w.env(), "METRICS_ADDR="+metrics)
	cmd.Env = append(cmd.Env, env...)
	p, err := start(cmd, filepath.Join(w.root, ".dev", "bench", service+".log"))
	if err != nil {
		return nil, err
	}
	if err := awaitReady("http://" + metrics + "/readyz"); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s: %w", service, err)
	}
	return p, nil
}

func (w *world) env() []string {
	return append(os.Environ(),
		"DATABASE_URL="+w.url, "AMQP_URL="+w.broker.URL(), "TOPOLOGY_NAMESPACE="+w.name,
		"PAYMENT_WINDOWS="+windows, "DELAY_TIERS="+tiers, "RETRY_LADDER=10s,1m,5m",
		"OPERATOR_TOKEN=token-of-the-operator", "PAYMENT_WEBHOOK_SECRET=whsec_b3JkZXJ0aW1lb3V0LWRldmVsb3BtZW50LW9ubHkh",
		"SMTP_URL=smtp://127.0.0.1:1", "MAIL_FROM=shop@example.com",
	)
}

func start(cmd *exec.Cmd, log string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &process{cmd, file}, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = p.cmd.Wait()
	_ = p.log.Close()
}

// peakMemory is the most that the process had resident so far, in bytes; 0 where the
// system does not tell.
func (p *process) peakMemory() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
			return kb * 1024
		}
	}
	return 0
}

// cpuSeconds is what the process has used so far; 0 where the system does not tell.
func (p *process) cpuSeconds() float64 { return cpuOf(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)) }

func cpuOf(path string) float64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}
