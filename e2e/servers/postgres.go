package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout is how long a server may take to come up on a busy machine.
const startTimeout = 2 * time.Minute

const postgresUser = "postgres" // who runs it when we are root

// Postgres is a private server with its data in Dir.
type Postgres struct {
	Dir     string
	Port    int
	Process Process
}

// StartPostgres starts a private server in dir, or returns the one that runs there.
// Its port is kept over restarts. Only this machine can reach it, without a password.
func StartPostgres(ctx context.Context, dir string) (*Postgres, error) {
	dir, err := reachable(dir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{Dir: dir}
	if err := restore(dir, p); err != nil {
		if p.Port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	return p, p.Start(ctx)
}

// URL of the database that every server has.
func (p *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.Port)
}

// Start brings the server up, again after Stop or Kill.
func (p *Postgres) Start(ctx context.Context) error {
	if p.Process.Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	data := filepath.Join(p.Dir, "data")
	if err := p.initialize(ctx, data); err != nil {
		return err
	}
	log := filepath.Join(p.Dir, "postgres.log")
	err := poll(ctx, func() error {
		// A killed server's children hold the data until they notice, so the first start
		// after a kill may end at once.
		if !p.Process.Alive() {
			var err error
			if p.Process, err = Detach(p.command(data), log, postgresUser); err != nil {
				return err
			}
		}
		return pingPostgres(ctx, p.URL())
	})
	if err != nil {
		return fmt.Errorf("postgres did not come up, see %s: %w", log, err)
	}
	return save(p.Dir, p)
}

func (p *Postgres) command(data string) *exec.Cmd {
	cmd := exec.Command(postgresBinary("postgres"), "-D", data, "-p", strconv.Itoa(p.Port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300")
	cmd.Dir = p.Dir
	return cmd
}

func (p *Postgres) initialize(ctx context.Context, data string) error {
	if err := own(p.Dir, postgresUser); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, postgresBinary("initdb"), "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")
	cmd.Dir = p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(postgresUser)}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// Stop shuts the server down; its data stays.
func (p *Postgres) Stop(ctx context.Context) error { return p.Process.End(ctx, syscall.SIGINT) }

// Kill ends it as a power cut would.
func (p *Postgres) Kill(ctx context.Context) error { return p.Process.End(ctx, syscall.SIGKILL) }

// postgresBinary finds a program in the PATH or where Debian and others keep them.
func postgresBinary(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/opt/homebrew/opt/postgresql@*/bin/"} {
		paths, _ := filepath.Glob(pattern + name) // the pattern is well-formed
		found = append(found, paths...)
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Max(found)
}

func pingPostgres(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var may bool
	err = conn.QueryRow(ctx, "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&may)
	if err == nil && !may {
		return errors.New("its user may not create databases")
	}
	return err
}
