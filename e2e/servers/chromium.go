package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// chromiumVariable names a browser to take before any other.
const chromiumVariable = "CHROMIUM"

// FindChromium returns the path of a Chromium or Chrome: the one that CHROMIUM names, one
// on PATH, or the package of Debian, which it installs if need be and tells log so.
func FindChromium(ctx context.Context, log io.Writer) (string, error) {
	if named := os.Getenv(chromiumVariable); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("the browser that %s names cannot be used: %w", chromiumVariable, err)
		}
		return path, nil
	}
	if path := chromiumBinary(); path != "" {
		return path, nil
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(log, "chromium: "+format+"\n", args...) }
	if err := installPackage(ctx, "chromium", "chromium", "set "+chromiumVariable+" to the path of one", say); err != nil {
		return "", err
	}
	if path := chromiumBinary(); path != "" {
		return path, nil
	}
	return "", errors.New("chromium: it is installed, but not on PATH; set " + chromiumVariable)
}

func chromiumBinary() string {
	for _, name := range []string{
		"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
	} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
