package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout is how long a server may take to come up on a busy machine.
const startTimeout = 2 * time.Minute

// stopTimeout is how long it may take to write what it has in memory.
const stopTimeout = time.Minute

// maxLaunches is how often a server that ends at once is started, about every 100 ms.
const maxLaunches = 100

const postgresUser = "postgres" // who runs it when we are root

// Postgres is a private server with its data in Dir.
type Postgres struct {
	Dir     string
	Port    int
	Process Process
}

// StartPostgres starts a private server in dir, or returns the one that runs there.
// Only this machine can reach it, without a password. Its data and its port stay over
// Stop and Kill; a port that another program took meanwhile is given up.
func StartPostgres(ctx context.Context, dir string) (*Postgres, error) {
	dir, err := private(dir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{}
	if err := restore(dir, p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p.Dir = dir
	if !p.Process.Alive() && (p.Port == 0 || Answers(p.Port)) {
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
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	data := filepath.Join(p.Dir, "data")
	if err := p.initialize(ctx, data); err != nil {
		return err
	}
	log := filepath.Join(p.Dir, "postgres.log")
	launches := 0
	err := poll(ctx, func() error {
		// A killed server's children hold the data until they notice, so the first starts
		// after a kill may end at once.
		if !p.Process.Alive() {
			if launches++; launches > maxLaunches {
				return errEnded
			}
			if err := p.launch(data, log); err != nil {
				return err
			}
		}
		return pingPostgres(ctx, p.URL())
	})
	if err != nil {
		return errors.Join(fmt.Errorf("postgres did not come up, see %s: %w", log, err), p.Kill(context.WithoutCancel(ctx)))
	}
	return nil
}

// launch starts the process, and notes it before anything can go wrong.
func (p *Postgres) launch(data, log string) (err error) {
	if p.Process, err = Detach(p.command(data), log, postgresUser); err != nil {
		return err
	}
	return errors.Join(save(p.Dir, p), register(p.Dir))
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
	cmd := exec.CommandContext(ctx, postgresBinary("initdb"), "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
	cmd.Dir = p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(postgresUser)}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// Stop shuts the server down; its data stays.
func (p *Postgres) Stop(ctx context.Context) error { return p.end(ctx, syscall.SIGINT) }

// Kill ends it as a power cut would.
func (p *Postgres) Kill(ctx context.Context) error { return p.end(ctx, syscall.SIGKILL) }

func (p *Postgres) end(ctx context.Context, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return errors.Join(p.Process.End(ctx, sig), unregister(p.Dir))
}

// postgresBinary finds a program of the server in the PATH, or the newest of those
// where Debian and others keep them; it returns "" when there is none.
func postgresBinary(name string) string {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // where the others are too, of the same version
			return filepath.Join(filepath.Dir(path), name)
		}
	}
	newest, path := -1.0, ""
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/opt/homebrew/opt/postgresql@*/bin/"} {
		found, _ := filepath.Glob(pattern + name) // the pattern is well-formed
		for _, candidate := range found {
			number := strings.TrimLeft(filepath.Base(filepath.Dir(filepath.Dir(candidate))), "abcdefghijklmnopqrstuvwxyz-@")
			if version, err := strconv.ParseFloat(number, 64); err == nil && version > newest {
				newest, path = version, candidate
			}
		}
	}
	return path
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
