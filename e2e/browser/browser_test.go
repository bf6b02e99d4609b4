package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/ordertimeout/e2e/harness"
)

// A page that complains in each of the ways that there are is found out in each.
func TestComplaintsAreHeard(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'self'; script-src 'unsafe-inline'; img-src 'self'")
		_, _ = fmt.Fprint(w, `<!doctype html><html lang="en"><title>x</title><img alt="" src="/missing.png"><img alt="" src="https://example.com/foreign.png">
			<script>console.warn("a word"); setTimeout(() => { throw new Error("a bug") })</script><p id="p">there</p>`)
	}))
	t.Cleanup(server.Close)
	b := New(t)
	b.Open(server.URL)
	complaints := []string{
		`console.warning: `, `a word`, `exception: `, `a bug`, `/missing.png answers 404`, `foreign.png does not load`, `Content Security Policy`,
		`issue ContentSecurityPolicyIssue`, `/favicon.ico answers 404`,
	}
	harness.Eventually(t, func() error {
		heard := strings.Join(b.Problems(), "\n")
		for _, complaint := range complaints {
			if !strings.Contains(heard, complaint) {
				return fmt.Errorf("nothing of %q in %s", complaint, heard)
			}
		}
		return nil
	})
	b.Expect("") // all of them
}

func TestQuestionsAreAnswered(t *testing.T) {
	t.Parallel()
	b := New(t)
	b.Open(`data:text/html,<!doctype html><html lang="en"><title>x</title><button onclick="document.title = confirm('really?')">go</button>`)
	b.Click("button")
	b.Await(`document.title === "true"`)
	if got := b.Dialogs(); len(got) != 1 || got[0] != "really?" {
		t.Errorf("dialogs: %q", got)
	}
}

func TestSizeAndScheme(t *testing.T) {
	t.Parallel()
	b := New(t)
	b.Open(`data:text/html,<!doctype html><html lang="en"><title>x</title><meta name="viewport" content="width=device-width">`)
	b.Size(360, 640)
	for _, scheme := range []string{"dark", "light"} {
		b.Scheme(scheme)
		b.Await(fmt.Sprintf(`innerWidth === 360 && matchMedia("(prefers-color-scheme: %s)").matches`, scheme))
	}
}
