package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a process that outlives the one that started it. It is known by its pid
// and its start, so that a pid which meanwhile belongs to another is never signalled.
type Process struct {
	PID     int    `json:"pid"`
	Started string `json:"started"`
}

// identify returns the running process with this pid.
func identify(pid int) (Process, error) {
	started := startOf(pid)
	if started == "" {
		return Process{}, fmt.Errorf("no process %d", pid)
	}
	return Process{PID: pid, Started: started}, nil
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool { return p.PID > 0 && startOf(p.PID) == p.Started }

// Signal signals the process if it is still the same one.
func (p Process) Signal(sig syscall.Signal) error {
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.PID, sig)
}

// End signals the process and waits until it is gone.
func (p Process) End(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	return poll(ctx, func() error {
		if p.Alive() {
			return fmt.Errorf("process %d does not end", p.PID)
		}
		return nil
	})
}

// startOf returns what tells a process from every other that had or gets its pid: when
// it started. It returns "" when there is none; one that ended and was not waited for
// counts as none.
func startOf(pid int) string {
	if runtime.GOOS == "linux" {
		return startInProc(pid)
	}
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, started, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(started)
}

// startInProc tells it in clock ticks since this boot, which no change of the clock moves.
func startInProc(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// After the command, which stands in parentheses and may hold anything: the state,
	// and 19 fields later the start.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return bootID() + " " + fields[19]
}

var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "this boot"
	}
	return strings.TrimSpace(string(id))
})

// Detach starts a command in a session of its own, with its output in a file, as the
// given user when we are root and asUser is not empty.
func Detach(cmd *exec.Cmd, logFile, asUser string) (Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Process{}, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential(asUser)}
	if err := cmd.Start(); err != nil {
		return Process{}, err
	}
	go func() { _ = cmd.Wait() }() // how it ended is in its log
	return identify(cmd.Process.Pid)
}

// credential is that of a user, or nil when we are not root or have no such user.
func credential(name string) *syscall.Credential {
	if name == "" || os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// Ports that FreePort gives lie below those that systems take for outgoing connections
// (32768 and up on Linux): one of these could take a port between its choice and its use.
const firstPort, lastPort = 10_240, 32_000

// FreePort returns a port that nothing listens on at this moment.
func FreePort() (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// Answers reports whether something listens on a port of this machine.
func Answers(port int) bool {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// errEnded is what no waiting cures: the server ended by itself.
var errEnded = errors.New("it ended while starting")

// poll calls check until it returns nil or errEnded, or ctx ends, and returns its last
// error.
func poll(ctx context.Context, check func() error) error {
	for {
		err := check()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
