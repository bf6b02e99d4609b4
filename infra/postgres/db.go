package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"example.com/ordertimeout/migrations"
)

const connectTimeout = 3 * time.Second

// sessionSettings hold for every connection. They bound what one stuck statement or
// one stuck process can keep from the others.
var sessionSettings = map[string]string{
	"application_name": "ordertimeout",
	"TimeZone":         "UTC",
	"lock_timeout":     "2s", // a row that stays locked is somebody else's trouble: try again later
	// The longest statement takes milliseconds; below the relay's and closer's own limits.
	"statement_timeout": "5s",
	// The relay's transaction is idle while the broker confirms, for 5 s at most.
	"idle_in_transaction_session_timeout": "15s",
}

// DB is a pool of connections to one database.
type DB struct{ pool *pgxpool.Pool }

// Open returns a pool that connects when it is used: the server need not be there yet.
func Open(ctx context.Context, c Config) (*DB, error) {
	config, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("postgres: DATABASE_URL: %w", err)
	}
	config.MaxConns = c.MaxConns
	config.ConnConfig.ConnectTimeout = connectTimeout
	for name, value := range sessionSettings {
		if _, chosen := config.ConnConfig.RuntimeParams[name]; !chosen { // the URL wins
			config.ConnConfig.RuntimeParams[name] = value
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return &DB{pool: pool}, nil
}

// Close waits for connections in use to come back and closes them all.
func (db *DB) Close() { db.pool.Close() }

// Ping returns an error that is domain.ErrUnavailable unless the server answers.
func (db *DB) Ping(ctx context.Context) error {
	return classify(db.pool.Ping(ctx))
}

// Pool is for tests and tools that need SQL of their own.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Migrate applies what is missing and returns the schema's version before and after.
// Several processes may call it at once: an advisory lock lets one work at a time. It
// needs a direct connection, not one through a transaction pooler.
func (db *DB) Migrate(ctx context.Context) (from, to int64, err error) {
	sqlDB := stdlib.OpenDBFromPool(db.pool)
	defer func() { err = errors.Join(err, sqlDB.Close()) }()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return 0, 0, fmt.Errorf("postgres: migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		return 0, 0, fmt.Errorf("postgres: migrate: %w", err)
	}
	if from, err = provider.GetDBVersion(ctx); err != nil {
		return 0, 0, fmt.Errorf("postgres: migrate: %w", classify(err))
	}
	if _, err = provider.Up(ctx); err != nil {
		return from, from, fmt.Errorf("postgres: migrate: %w", classify(err))
	}
	if to, err = provider.GetDBVersion(ctx); err != nil {
		return from, 0, fmt.Errorf("postgres: migrate: %w", classify(err))
	}
	return from, to, nil
}

// CheckSchema returns an error unless the schema is at least as new as this program.
func (db *DB) CheckSchema(ctx context.Context) error {
	files, err := migrations.FS.ReadDir(".")
	if err != nil {
		return err
	}
	want, err := goose.NumericComponent(files[len(files)-1].Name())
	if err != nil {
		return err
	}
	var got int64
	err = db.pool.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&got)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == undefinedTable:
	case err != nil:
		return fmt.Errorf("schema version: %w", classify(err))
	}
	if got < want {
		return fmt.Errorf("schema version %d, want %d: run `ordertimeout migrate`", got, want)
	}
	return nil
}

// collect runs a query outside of a transaction and scans every row.
func collect[T any](ctx context.Context, db *DB, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, classify(err)
	}
	all, err := pgx.CollectRows(rows, scan)
	return all, classify(err)
}
