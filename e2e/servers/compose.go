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
	"time"
)

var errNoDocker = errors.New("no Docker engine")

// compose brings up a service of the project's compose file, on a free port where
// another program has its own. One that runs already is used and left alone.
func compose(ctx context.Context, k kind, root string, env map[string]string, say func(string, ...any)) (Server, error) {
	if !dockerAnswers(ctx) {
		return Server{}, errNoDocker
	}
	if env == nil {
		return Server{}, errors.New("there is no .env")
	}
	running, err := dockerCompose(ctx, root, nil, "ps", "--status", "running", "--quiet", k.name)
	if err != nil {
		return Server{}, err
	}
	if running == "" {
		say("starting it with docker compose; the first time this downloads its image")
		if err := composeUp(ctx, k, root, env); err != nil {
			return Server{}, errors.Join(err, composeRemove(context.WithoutCancel(ctx), root, k.name))
		}
	}
	addr, err := dockerCompose(ctx, root, nil, "port", k.name, strconv.Itoa(k.port))
	if err != nil {
		return Server{}, err
	}
	url := k.composeURL(env, addr)
	if err := k.ping(ctx, url); err != nil {
		return Server{}, err
	}
	if running == "" {
		say("using docker compose's on %s; make down stops it", addr)
	} else {
		say("using docker compose's on %s, which runs already", addr)
	}
	return Server{URL: url}, nil
}

func composeUp(ctx context.Context, k kind, root string, env map[string]string) error {
	var extra []string
	if port, err := strconv.Atoi(env[k.portVariable]); err == nil && Answers(port) {
		free, err := FreePort()
		if err != nil {
			return err
		}
		extra = []string{k.portVariable + "=" + strconv.Itoa(free)}
	}
	if err := os.MkdirAll(filepath.Dir(composeMark(root, k.name)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(composeMark(root, k.name), nil, 0o644); err != nil {
		return err
	}
	_, err := dockerCompose(ctx, root, extra, "up", "--wait", "--detach", "--quiet-pull", k.name)
	return err
}

// composeMark is a file that says that we started a compose service.
func composeMark(root, name string) string {
	return filepath.Join(root, ".dev", "compose-"+name)
}

// composeRemove removes a service's container that composeUp made, and the project's
// network with the last one. The data stays in its volume.
func composeRemove(ctx context.Context, root, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stopTimeout)
	defer cancel()
	if _, err := dockerCompose(ctx, root, nil, "rm", "--stop", "--force", name); err != nil {
		return err
	}
	if left, err := dockerCompose(ctx, root, nil, "ps", "--all", "--quiet"); err == nil && left == "" {
		if _, err := dockerCompose(ctx, root, nil, "down"); err != nil {
			return err
		}
	}
	if err := os.Remove(composeMark(root, name)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil &&
		exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil
}

// dockerCompose returns what the command prints.
func dockerCompose(ctx context.Context, root string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker compose %s: %w: %s", args[0], err, lastLine([]byte(complaints.String())))
	}
	return strings.TrimSpace(string(out)), nil
}
