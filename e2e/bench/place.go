package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/e2e/servers"
)

const placeClients = 32 // connections of the load, over HTTP and of pgbench

// placed is what placing orders measured.
type placed struct {
	Rate      float64 `json:"placed_per_second"`  // through HTTP
	PgBench   float64 `json:"pgbench_per_second"` // the same statements, sent by pgbench
	OutboxP99 float64 `json:"outbox_p99_seconds"` // age of the oldest row, while the load lasts
}

// placing loads the order service through HTTP, with the relay beside it, and then the
// database alone with the same statements.
func (l *lab) placing(ctx context.Context, lines, pending int, length time.Duration) (p placed, err error) {
	w, err := l.newWorld(ctx, load{skus: manySKUs, pending: pending}, time.Now())
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	if _, err := w.pool.Exec(ctx, `UPDATE stock SET available = 1000000000`); err != nil {
		return p, err
	}
	if p.PgBench, err = w.pgbench(ctx, lines, length); err != nil {
		return p, fmt.Errorf("pgbench: %w", err)
	}
	conn := w.connect("bench")
	err = w.topology().Declare(ctx, conn)
	conn.Close()
	if err != nil {
		return p, err
	}
	api, err := servers.FreePort()
	if err != nil {
		return p, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(api)
	order, err := w.run("order", "ORDER_ADDR="+addr)
	if err != nil {
		return p, err
	}
	relay, err := w.run("relay")
	if err != nil {
		order.stop()
		return p, err
	}
	p.Rate, p.OutboxP99, err = w.loadHTTP(ctx, "http://"+addr+"/v1/orders", lines, length)
	order.stop()
	relay.stop()
	return p, errors.Join(err, w.removeQueues())
}

// loadHTTP places orders from many connections and returns how many a second, and the 99th
// percentile of the age of the oldest row in the outbox, read ten times a second.
func (w *world) loadHTTP(ctx context.Context, url string, lines int, length time.Duration) (rate, lag float64, err error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: placeClients}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var done atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, placeClients)
	began := time.Now()
	for k := range placeClients {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := placeOne(ctx, &client, url, k*7919+i*31, lines); err != nil {
					if ctx.Err() == nil {
						errs[k] = err
					}
					return
				}
				done.Add(1)
			}
		})
	}
	var lags []float64
	group.Go(func() { lags = w.watchOutbox(ctx) })
	group.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), percentile(lags, 0.99), errors.Join(errs...)
}

func placeOne(ctx context.Context, client *http.Client, url string, seed, lines int) error {
	var body strings.Builder
	fmt.Fprintf(&body, `{"customer": {"id": "c-%d", "email": "c@example.com"}, "currency": "EUR", "lines": [`, seed)
	for i := range lines {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"sku": "sku-%d", "quantity": 1, "unit_price": 500}`, (seed+i*199)%1000)
	}
	body.WriteString("]}")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewBufferString(body.String()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	return err
}

func (w *world) watchOutbox(ctx context.Context) []float64 {
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var ages []float64
	for ctx.Err() == nil {
		var age float64
		if conn.QueryRow(ctx, "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 FROM outbox").Scan(&age) == nil {
			ages = append(ages, age)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return ages
}

// pgbench runs the statements of one placement, as the order service sends them.
func (w *world) pgbench(ctx context.Context, lines int, length time.Duration) (float64, error) {
	path, err := pgbenchPath()
	if err != nil {
		return 0, err
	}
	var script strings.Builder
	var skus, quantities, prices, held, less, zeros []string
	for i := range lines {
		fmt.Fprintf(&script, "\\set sku%d (:base + %d) %% 1000\n", i, i*199)
		skus = append(skus, fmt.Sprintf("'sku-' || :sku%d::text", i))
		quantities, prices, held, less = append(quantities, "1"), append(prices, "500"), append(held, "1"), append(less, "-1")
		zeros = append(zeros, "0")
	}
	array := func(items []string, typ string) string {
		return "ARRAY[" + strings.Join(items, ",") + "]::" + typ + "[]"
	}
	const id = "(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || lpad(to_hex(:n::bigint), 20, '0'))::uuid" // ascending, as the product's
	text := "\\set base random(0, 999)\n\\set n random(1, 9000000000000000)\n" + script.String() + fmt.Sprintf(`
BEGIN;
SELECT sku, coalesce(available, 0), available IS NULL, now() FROM stock WHERE sku = ANY(%[1]s) ORDER BY sku FOR NO KEY UPDATE;
INSERT INTO orders (id, status, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
VALUES (%[7]s, 'pending', 'c', 'c@example.com', 'EUR', 1800000, now() + interval '30 minutes', now());
INSERT INTO order_lines (order_id, position, sku, quantity, unit_price, held)
SELECT %[7]s, position, sku, quantity, unit_price, held
FROM unnest(%[1]s, %[2]s, %[3]s, %[4]s) WITH ORDINALITY AS l (sku, quantity, unit_price, held, position);
UPDATE stock s SET available = s.available + m.available, held = s.held + m.held, sold = s.sold + m.sold, updated_at = now()
FROM unnest(%[1]s, %[5]s, %[4]s, %[6]s) AS m (sku, available, held, sold) WHERE s.sku = m.sku;
INSERT INTO outbox (message_id, order_id, type, payload, due_at)
VALUES (gen_random_uuid(), %[7]s, 'order.timeout', '{"type":"order.timeout","version":1}', now() + interval '30 minutes');
COMMIT;
`, array(skus, "text"), array(quantities, "bigint"), array(prices, "bigint"), array(held, "bigint"), array(less, "bigint"), array(zeros, "bigint"), id)
	file := filepath.Join(w.root, ".dev", "bench", "place.sql")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, "-n", "-M", "prepared", "-c", strconv.Itoa(placeClients), "-j", "2", "-T", strconv.Itoa(int(length.Seconds())), "-f", file, w.url)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		var tps float64
		if _, err := fmt.Sscanf(line, "tps = %f", &tps); err == nil {
			_, err := w.pool.Exec(ctx, "TRUNCATE outbox")
			return tps, err
		}
	}
	return 0, fmt.Errorf("no rate in: %s", out)
}

func pgbenchPath() (string, error) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if len(found) == 0 {
		return "", errors.Join(errors.New("pgbench is not there: it comes with PostgreSQL"), err)
	}
	return found[len(found)-1], nil
}
