// Package postgrestest gives each test a database of its own, cloned from a template
// that has the schema.
package postgrestest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/migrations"
)

// defaultURL is a local server as it comes out of the box.
const defaultURL = "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable"

// New returns a pool on a fresh, migrated database that is dropped when the test ends.
func New(t testing.TB) *postgres.DB {
	t.Helper()
	return Open(t, NewURL(t), 10)
}

// Open returns a pool of a given size that is closed when the test ends.
func Open(t testing.TB, url string, maxConns int32) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(context.Background(), postgres.Config{URL: url, MaxConns: maxConns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// NewURL returns the URL of a fresh, migrated database that is dropped when the test ends.
func NewURL(t testing.TB) string {
	t.Helper()
	template, err := template()
	if err != nil {
		t.Fatalf("no database server at DATABASE_URL or the default port (make test starts one): %v", err)
	}
	name := "ordertimeout_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := admin("CREATE DATABASE " + name + " TEMPLATE " + template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return databaseURL(name)
}

// template makes the template once for a state of the migrations, however many test
// binaries ask for it at once.
var template = sync.OnceValues(func() (string, error) {
	name := "ordertimeout_template_" + migrationsHash()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, serverURL())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	const templateLock = 7_265_014_411
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	defer func() { _, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", templateLock) }() // the connection's end frees it too
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT exists(SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
		return name, err
	}
	// A half-made template must never carry the name.
	building := name + "_new"
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+building+" WITH (FORCE)"); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+building); err != nil {
		return "", err
	}
	if err := migrate(ctx, databaseURL(building)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+building+" RENAME TO "+name)
	return name, err
})

func migrate(ctx context.Context, url string) error {
	db, err := postgres.Open(ctx, postgres.Config{URL: url, MaxConns: 4})
	if err != nil {
		return err
	}
	defer db.Close()
	_, _, err = db.Migrate(ctx)
	return err
}

func migrationsHash() string {
	hash := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := migrations.FS.ReadFile(path)
		_, _ = fmt.Fprintf(hash, "%s %x\n", path, content) // a hash never fails
		return err
	})
	if err != nil {
		panic(err) // embedded files can be read
	}
	return hex.EncodeToString(hash.Sum(nil))[:12]
}

func admin(sql string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, serverURL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func serverURL() string {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return url
	}
	return defaultURL
}

func databaseURL(name string) string {
	u, err := url.Parse(serverURL())
	if err != nil {
		panic(fmt.Sprintf("DATABASE_URL of a test must be a URL: %v", err))
	}
	u.Path = "/" + name
	return u.String()
}
