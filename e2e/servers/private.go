package servers

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// private returns where a server keeps what is in dir: dir itself, or, where its user
// could not get there, a directory outside that dir becomes a link to. Servers that
// refuse to run as root cannot read a checkout in root's home.
func private(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if place, err := filepath.EvalSymlinks(dir); err == nil {
		return place, nil
	}
	if os.Geteuid() != 0 || anyoneReaches(filepath.Dir(dir)) {
		return dir, os.MkdirAll(dir, 0o755)
	}
	// Neither is there, or only a link whose end is gone.
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.RemoveAll(dir)); err != nil {
		return "", err
	}
	// Unlike /tmp, /var/tmp keeps its files over a reboot.
	place, err := os.MkdirTemp("/var/tmp", "ordertimeout-"+filepath.Base(dir)+"-")
	if err != nil {
		return "", err
	}
	return place, os.Symlink(place, dir)
}

// anyoneReaches reports whether every user may enter dir; what does not exist yet will
// be made so.
func anyoneReaches(dir string) bool {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// own gives a directory to the user that a server runs as.
func own(dir, asUser string) error {
	if c := credential(asUser); c != nil {
		return os.Chown(dir, int(c.Uid), int(c.Gid))
	}
	return nil
}

// save and restore keep what a server is known by in a file of its directory.
func save(dir string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "server.json"), text, 0o644)
}

func restore(dir string, v any) error {
	text, err := os.ReadFile(filepath.Join(dir, "server.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// register notes a private server that runs, as a link in the checkout's .dev/running:
// StopStarted finds it there even if the test that started it was interrupted.
func register(dir string) error {
	link, err := registration(dir)
	if err != nil || link == "" {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(dir, link); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// unregister takes the note of register away.
func unregister(dir string) error {
	link, err := registration(dir)
	if err != nil || link == "" {
		return err
	}
	if err := os.Remove(link); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// registration is the link for a server in dir, or "" outside of a checkout.
func registration(dir string) (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(runningDir(at), strings.Trim(strings.ReplaceAll(dir, "/", "-"), "-")), nil
		}
		if at == filepath.Dir(at) {
			return "", nil
		}
	}
}

func runningDir(root string) string { return filepath.Join(root, ".dev", "running") }
