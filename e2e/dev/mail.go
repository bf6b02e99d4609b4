package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"example.com/ordertimeout/e2e/servers"
)

// mailpit catches mails and shows them.
const mailpit = "github.com/axllent/mailpit@v1.33.1"

type mailServer struct {
	Process servers.Process `json:"process"`
	SMTP    string          `json:"smtp"`
	HTTP    string          `json:"http"`
}

// startMail starts Mailpit, built on first use; its pages work in the image of the
// compose file, a build from source has the API only.
func (s *stack) startMail(ctx context.Context) (mailServer, error) {
	var m mailServer
	if s.restore("mail", &m) == nil && m.Process.Alive() {
		return m, nil
	}
	bin := filepath.Join(s.dir, "bin")
	program := filepath.Join(bin, "mailpit")
	if _, err := os.Stat(program); err != nil {
		fmt.Println("building the mail server, once")
		install := exec.CommandContext(ctx, "go", "install", mailpit)
		install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=-mod=mod")
		install.Dir = os.TempDir() // outside of this module
		if out, err := install.CombinedOutput(); err != nil {
			return m, fmt.Errorf("%s: %w: %s", mailpit, err, out)
		}
	}
	var err error
	if m.SMTP, err = address(1025); err != nil {
		return m, err
	}
	if m.HTTP, err = address(8025); err != nil {
		return m, err
	}
	cmd := exec.Command(program, "--smtp", m.SMTP, "--listen", m.HTTP)
	if m.Process, err = servers.Detach(cmd, filepath.Join(s.dir, "mail.log"), ""); err != nil {
		return m, err
	}
	return m, s.save("mail", m)
}
