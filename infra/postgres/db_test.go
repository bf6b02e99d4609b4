package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

// Whatever way the database is away, the error says so.
func TestAbsentDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	nowhere := postgrestest.Open(t, "postgres://nobody@127.0.0.1:1/none", 1)
	if err := nowhere.Ping(ctx); !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("closed port: %v", err)
	}
	w := newWorld(t)
	if err := w.db.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	cutOff := w.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var pid int
		if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		if _, err := w.db.Pool().Exec(ctx, `SELECT pg_terminate_backend($1)`, pid); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT pg_sleep(1)`)
		return err
	})
	if !errors.Is(cutOff, domain.ErrUnavailable) {
		t.Errorf("terminated: %v", cutOff)
	}
	small := postgrestest.Open(t, postgrestest.NewURL(t), 1)
	held := small.Transact(ctx, func(context.Context, pgx.Tx) error {
		impatient, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return small.Ping(impatient)
	})
	if !errors.Is(held, domain.ErrUnavailable) {
		t.Errorf("exhausted pool: %v", held)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := w.db.Ping(cancelled); !errors.Is(err, context.Canceled) || errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("cancelled: %v", err)
	}
}

// No flow takes a second connection while it holds one, so one is enough for all.
func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	w := worldOn(t, postgrestest.Open(t, postgrestest.NewURL(t), 1))
	w.setStock("a", 100)
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	n := postgres.NewNotifications(w.db)
	together(10, func(i int) {
		order, _, err := w.orders.Place(bounded, placement(time.Millisecond, line("a", 1)), postgres.IdempotencyKey{Key: string(rune('a' + i)), Hash: []byte("h")})
		if err != nil {
			t.Error(err)
			return
		}
		_, closeErr := w.closeOrder(order.ID())
		_, payErr := w.orders.Pay(bounded, pay(order, string(order.ID())))
		_, claimErr := n.Claim(bounded, postgres.NotificationKey{OrderID: order.ID(), Kind: "closed"}, time.Minute)
		_, relayErr := w.outbox.Relay(bounded, 5, func(_ context.Context, rows []postgres.OutboxRow) []error { return make([]error, len(rows)) })
		if err := errors.Join(closeErr, payErr, claimErr, relayErr); err != nil {
			t.Error(err)
		}
	})
	w.conserved(map[string]int64{"a": 100})
}

// An outage while a lock is held is bounded, and its error is an outage.
func TestLockedRowIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1)
	order := w.place(time.Millisecond, line("a", 1))
	tx, err := w.db.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, `SELECT FROM orders FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.closeOrder(order.ID()); !errors.Is(err, domain.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestMigrations(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewURL(t)
	db := postgrestest.Open(t, url, 8)
	if err := db.CheckSchema(ctx); err != nil {
		t.Errorf("migrated database: %v", err)
	}
	together(3, func(int) {
		if from, to, err := db.Migrate(ctx); err != nil || from != to {
			t.Errorf("again: from %d to %d, %v", from, to, err)
		}
	})
	if _, err := db.Pool().Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
		t.Fatal(err)
	}
	if err := db.CheckSchema(ctx); err == nil || !strings.Contains(err.Error(), "ordertimeout migrate") {
		t.Errorf("empty database: %v", err)
	}
}

// The schema refuses what the domain cannot build.
func TestSchemaRefusesIllegalStates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 5)
	w.place(time.Hour, line("a", 1))
	for name, sql := range map[string]string{
		"paid and closed":     `UPDATE orders SET status = 'paid', paid_at = now(), closed_at = due_at, closed_by = 'timer'`,
		"closed early":        `UPDATE orders SET status = 'closed', closed_at = due_at - interval '1 microsecond', closed_by = 'timer'`,
		"closed by nobody":    `UPDATE orders SET status = 'closed', closed_at = due_at`,
		"pending and paid":    `UPDATE orders SET paid_at = now()`,
		"another status":      `UPDATE orders SET status = 'lost'`,
		"negative stock":      `UPDATE stock SET available = -1`,
		"negative hold":       `UPDATE stock SET held = -1`,
		"half a hold":         `UPDATE order_lines SET quantity = 2`,
		"two accepted":        `INSERT INTO payments SELECT x, id, 1, 'EUR', now() FROM orders, unnest(ARRAY['p', 'q']) AS x`,
		"hash without a key":  `UPDATE orders SET request_hash = 'x'`,
		"unknown stock":       `UPDATE order_lines SET sku = 'b'`,
		"another refund text": `INSERT INTO payments SELECT 'p', id, 1, 'EUR', now(), 'mood' FROM orders`,
	} {
		if _, err := w.db.Pool().Exec(ctx, sql); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
