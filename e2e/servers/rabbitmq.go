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
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const rabbitUser = "rabbitmq" // who runs it when we are root

// RabbitMQ is a private broker with its data in Dir.
type RabbitMQ struct {
	Dir      string
	Port     int
	DistPort int
	EPMDPort int
	Process  Process

	command []string // another way to start and end a broker, see E2E_BROKER_COMMAND
	url     string
}

// BrokerCommandVariable names a command that starts, stops and kills a broker, for
// testing another version than the machine's packages have: it is called with start
// (which prints the URL in its last line), stop, kill, or ctl and arguments for
// rabbitmqctl.
const BrokerCommandVariable = "E2E_BROKER_COMMAND"

// StartRabbitMQ starts a private broker in dir, or returns the one that runs there, with
// the configuration that the project ships. Only this machine can reach it. Its data
// and its port stay over Stop and Kill; a port that another program took meanwhile is
// given up.
func StartRabbitMQ(ctx context.Context, dir, advancedConfig string) (*RabbitMQ, error) {
	if command := strings.Fields(os.Getenv(BrokerCommandVariable)); len(command) > 0 {
		b := &RabbitMQ{command: command}
		return b, b.Start(ctx)
	}
	return startPackaged(ctx, dir, advancedConfig)
}

// startPackaged is StartRabbitMQ with the machine's packages.
func startPackaged(ctx context.Context, dir, advancedConfig string) (*RabbitMQ, error) {
	dir, err := private(dir)
	if err != nil {
		return nil, err
	}
	b := &RabbitMQ{}
	if err := restore(dir, b); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b.Dir = dir
	if !b.Process.Alive() {
		for _, port := range []*int{&b.Port, &b.DistPort, &b.EPMDPort} {
			if *port != 0 && !Answers(*port) {
				continue
			}
			if *port, err = FreePort(); err != nil {
				return nil, err
			}
		}
		if err := b.configure(advancedConfig); err != nil {
			return nil, err
		}
	}
	return b, b.Start(ctx)
}

// URL of the broker's default virtual host.
func (b *RabbitMQ) URL() string {
	if b.url != "" {
		return b.url
	}
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", b.Port)
}

// Start brings the broker up, again after Stop or Kill.
func (b *RabbitMQ) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if b.command != nil {
		out, err := b.run(ctx, "start")
		if err == nil {
			b.url = lastLine([]byte(out))
		}
		return err
	}
	log := filepath.Join(b.Dir, "rabbitmq.log")
	if err := b.launch(ctx, log); err != nil {
		return errors.Join(fmt.Errorf("rabbitmq did not come up, see %s: %w", log, err), b.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// launch starts the broker unless it runs, and waits until it can be used.
func (b *RabbitMQ) launch(ctx context.Context, log string) error {
	usable := func() error {
		if !b.Process.Alive() {
			return errEnded
		}
		return pingRabbitMQ(b.URL())
	}
	if b.Process.Alive() {
		return poll(ctx, usable)
	}
	pidFile := filepath.Join(b.Dir, "pid")
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cmd := exec.Command(rabbitBinary())
	cmd.Dir = b.Dir
	cmd.Env = b.environment(pidFile)
	var err error
	if b.Process, err = Detach(cmd, log, rabbitUser); err != nil {
		return err
	}
	// Until the broker is there its launcher stands for it: noted before anything can go wrong.
	if err := errors.Join(save(b.Dir, b), register(b.Dir)); err != nil {
		return err
	}
	if err := poll(ctx, usable); err != nil {
		return err
	}
	if b.Process, err = fromPIDFile(pidFile); err != nil {
		return err
	}
	return save(b.Dir, b)
}

// Stop shuts the broker down; its data stays.
func (b *RabbitMQ) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if b.command != nil {
		_, err := b.run(ctx, "stop")
		return err
	}
	return errors.Join(b.Process.End(ctx, syscall.SIGTERM), b.endPortMapper(ctx), unregister(b.Dir))
}

// endPortMapper ends the helper that Erlang leaves behind; it obeys once it has noticed
// that the broker is gone.
func (b *RabbitMQ) endPortMapper(ctx context.Context) error {
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return nil // not where we can reach it: it holds nothing but a port
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return poll(ctx, func() error {
		if !Answers(b.EPMDPort) {
			return nil
		}
		return exec.CommandContext(ctx, epmd, "-port", strconv.Itoa(b.EPMDPort), "-kill").Run()
	})
}

// Kill ends it as a power cut would.
func (b *RabbitMQ) Kill(ctx context.Context) error {
	if b.command != nil {
		_, err := b.run(ctx, "kill")
		return err
	}
	return b.Process.End(ctx, syscall.SIGKILL)
}

// Control runs rabbitmqctl on the broker.
func (b *RabbitMQ) Control(ctx context.Context, args ...string) error {
	if b.command != nil {
		_, err := b.run(ctx, append([]string{"ctl"}, args...)...)
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(rabbitBinary()), "rabbitmqctl"), args...)
	cmd.Dir = b.Dir
	cmd.Env = b.environment(filepath.Join(b.Dir, "pid"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(rabbitUser)}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, lastLine(out))
	}
	return nil
}

func (b *RabbitMQ) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.command[0], append(slices.Clone(b.command[1:]), args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", strings.Join(b.command, " "), strings.Join(args, " "), err)
	}
	return string(out), nil
}

func (b *RabbitMQ) configure(advancedConfig string) error {
	if err := own(b.Dir, rabbitUser); err != nil {
		return err
	}
	conf := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nlog.console = true\nlog.file = false\n", b.Port)
	for name, text := range map[string]string{
		"rabbitmq.conf": conf, "advanced.config": advancedConfig, "enabled_plugins": "[].\n",
	} {
		if err := os.WriteFile(filepath.Join(b.Dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (b *RabbitMQ) environment(pidFile string) []string {
	in := func(name string) string { return filepath.Join(b.Dir, name) }
	inherited := slices.DeleteFunc(os.Environ(), func(entry string) bool { // settings of another broker
		return strings.HasPrefix(entry, "RABBITMQ_") || strings.HasPrefix(entry, "ERL_")
	})
	return append(inherited,
		"HOME="+b.Dir,
		"RABBITMQ_NODENAME=ordertimeout@localhost", // the port mapper is its own too
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+in("data"),
		"RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE="+pidFile,
		"RABBITMQ_DIST_PORT="+strconv.Itoa(b.DistPort),
		"ERL_EPMD_PORT="+strconv.Itoa(b.EPMDPort),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	)
}

// rabbitBinary prefers the plain script: Debian's wrapper changes the user by itself.
func rabbitBinary() string {
	for _, path := range []string{"/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return ""
	}
	return path
}

func fromPIDFile(path string) (Process, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Process{}, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Process{}, fmt.Errorf("%s: %w", path, err)
	}
	return identify(pid)
}

// pingRabbitMQ declares and removes a quorum queue, which is what everything here needs.
func pingRabbitMQ(url string) error {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(3 * time.Second)})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("ordertimeout-probe-%d-%d", os.Getpid(), time.Now().UnixNano())
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	_, err = ch.QueueDelete(name, false, false, false)
	return err
}
