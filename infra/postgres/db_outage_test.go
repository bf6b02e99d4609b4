package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3/lock"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

// A database that is dropped under an open pool is away for every store, also for those
// that find a dead connection in the pool and for those that have to connect.
func TestDroppedDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	order := w.place(time.Hour, line("a", 1))
	database := w.db.Pool().Config().ConnConfig.Database
	server := w.db.Pool().Config().ConnConfig.Copy()
	server.Database = "postgres"
	admin, err := pgx.ConnectConfig(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(ctx) }()
	if _, err := admin.Exec(ctx, "DROP DATABASE "+pgx.Identifier{database}.Sanitize()+" WITH (FORCE)"); err != nil {
		t.Fatal(err)
	}
	key := postgres.NotificationKey{OrderID: order.ID(), Kind: "closed"}
	for range 2 {
		for name, call := range map[string]func() error{
			"get":   func() error { _, err := w.orders.Get(ctx, order.ID()); return err },
			"list":  func() error { _, err := w.orders.List(ctx, postgres.ListQuery{Limit: 1}); return err },
			"close": func() error { _, err := w.closeOrder(order.ID()); return err },
			"pay":   func() error { _, err := w.orders.Pay(ctx, pay(order, "p")); return err },
			"place": func() error {
				_, _, err := w.orders.Place(ctx, placement(time.Hour, line("a", 1)), postgres.IdempotencyKey{Key: "k", Hash: []byte("h")})
				return err
			},
			"stock":   func() error { _, err := w.stock.Set(ctx, "a", nil); return err },
			"backlog": func() error { _, err := w.outbox.Backlog(ctx); return err },
			"relay": func() error {
				_, err := w.outbox.Relay(ctx, 1, func(_ context.Context, rows []postgres.OutboxRow) []error { return make([]error, len(rows)) })
				return err
			},
			"claim": func() error { _, err := postgres.NewNotifications(w.db).Claim(ctx, key, time.Minute); return err },
			"queues": func() error {
				return postgres.NewDelayQueues(w.db).Record(ctx, "ns", []time.Duration{time.Second})
			},
			"schema": func() error { return w.db.CheckSchema(ctx) },
		} {
			if err := call(); !errors.Is(err, domain.ErrUnavailable) || errors.Is(err, postgres.ErrClaimed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Whoever migrates keeps the others out: they wait, for as long as their context lasts,
// and change nothing meanwhile.
func TestMigrateOneAtATime(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t)
	if _, err := db.Pool().Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
		t.Fatal(err)
	}
	rival, err := pgx.ConnectConfig(ctx, db.Pool().Config().ConnConfig.Copy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rival.Close(ctx) }()
	if _, err := rival.Exec(ctx, `SELECT pg_advisory_lock($1)`, lock.DefaultLockID); err != nil {
		t.Fatal(err)
	}
	w := worldOn(t, db)
	impatient, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, _, err := db.Migrate(impatient); err == nil {
		t.Error("migrated beside a rival")
	}
	if n := w.count(`SELECT count(*) FROM pg_class WHERE relname = 'orders'`); n != 0 {
		t.Error("the schema was changed beside a rival")
	}
	if err := rival.Close(ctx); err != nil { // a migrator that dies frees its lock
		t.Fatal(err)
	}
	if from, to, err := db.Migrate(ctx); err != nil || from != 0 || to < 1 {
		t.Errorf("from %d to %d, %v", from, to, err)
	}
	if err := db.CheckSchema(ctx); err != nil {
		t.Error(err)
	}
}

// A transaction that the server sacrificed runs again on a clean slate, and not for ever;
// any other error runs once.
func TestSacrificedTransactionRunsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		code     string
		failures int32
		runs     int32
	}{{"40P01", 2, 3}, {"40001", 4, 5}, {"40P01", 100, 5}, {"23514", 100, 1}, {"55P03", 100, 1}} {
		var runs atomic.Int32
		err := w.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO stock (sku) VALUES ($1)`, c.code); err != nil {
				return err
			}
			if runs.Add(1) <= c.failures {
				_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'sacrificed' USING ERRCODE = '`+c.code+`'; END $$`)
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE stock SET sku = sku || ' done' WHERE sku = $1`, c.code)
			return err
		})
		if runs.Load() != c.runs || (err == nil) != (c.failures < c.runs) {
			t.Errorf("%s, failing %d times: %d runs, want %d, %v", c.code, c.failures, runs.Load(), c.runs, err)
		}
		if err != nil {
			pgErr, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pgErr.Code != c.code {
				t.Errorf("%s: the error became %v", c.code, err)
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM stock`); n != 2 {
		t.Errorf("%d rows, want those of the two that came through", n)
	}
}

// What decide returns reaches the caller unchanged, and nothing is written.
func TestRefusedDecisionIsReturnedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 1)
	order := w.place(time.Hour, line("a", 1))
	_, err := w.closeOrder(order.ID())
	early, ok := errors.AsType[*domain.NotDueError](err)
	if !ok || early.OrderID != order.ID() || early.Remaining <= 0 || strings.Contains(err.Error(), "postgres") {
		t.Errorf("got %v", err)
	}
	if n := w.count(`SELECT count(*) FROM orders WHERE status = 'pending'`); n != 1 {
		t.Error("the order is not pending")
	}
	w.conserved(map[string]int64{"a": 1})
}
