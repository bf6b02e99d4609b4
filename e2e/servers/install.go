package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// installScript installs a package of Debian or Ubuntu. A package that has a server
// wants to start it, now and with the machine: only private servers are to run. What
// the script changes for that, it changes back.
const installScript = `set -e
policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.conf
made_policy= made_clusters=
restore() {
  if [ -n "$made_policy" ]; then SUDO rm -f $policy; fi
  if [ -n "$made_clusters" ] && [ -e $clusters.ucf-dist ]; then SUDO mv $clusters.ucf-dist $clusters; fi
}
trap restore EXIT
trap 'exit 1' INT TERM
if [ ! -e $policy ]; then
  made_policy=1
  printf '#!/bin/sh\nexit 101\n' | SUDO tee $policy >/dev/null
  SUDO chmod 755 $policy
fi
if [ ! -e $clusters ]; then
  made_clusters=1
  SUDO mkdir -p ${clusters%/*}
  echo 'create_main_cluster = false' | SUDO tee $clusters >/dev/null
fi
SUDO apt-get update -q || true # one broken source must not keep the others from working
SUDO env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 apt-get install -qy --no-install-recommends -o DPkg::Lock::Timeout=120 PACKAGE
if command -v systemctl >/dev/null; then
  SUDO systemctl disable --quiet PACKAGE epmd.socket epmd.service 2>/dev/null || true # not all of them exist
fi
`

// install gets the machine's package.
func install(ctx context.Context, k kind, say func(string, ...any)) error {
	if err := installPackage(ctx, k.name, k.pkg, "start Docker, or set "+k.variable, say); err != nil {
		return err
	}
	if k.binary() == "" {
		return fmt.Errorf("%s: %s is installed, but its server is not where this looks; set %s", k.name, k.pkg, k.variable)
	}
	return nil
}

// installPackage installs a package of Debian or Ubuntu where root or passwordless sudo
// allows it. instead says what else helps where it does not.
func installPackage(ctx context.Context, name, pkg, instead string, say func(string, ...any)) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s: none found; install it, or %s", name, instead)
	}
	sudo := ""
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return fmt.Errorf("%s: none found; run `sudo apt-get install %s`, or %s", name, pkg, instead)
		}
		sudo = "sudo -n "
	}
	say("none found; installing the package %s with apt-get", pkg)
	script := strings.NewReplacer("SUDO ", sudo, "PACKAGE", pkg).Replace(installScript)
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it has things to change back
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: installing %s: %w: %s", name, pkg, err, lastLine(out))
	}
	return nil
}
