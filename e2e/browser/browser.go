// Package browser drives a headless Chromium as a person drives theirs, and holds every
// complaint of a page against the test.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	logdomain "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"example.com/ordertimeout/e2e/servers"
)

// patience is how long a page may take for what must happen; it says nothing about speed.
const patience = 60 * time.Second

// ScreenshotsVariable names the directory that screenshots go to. Without it they go to
// a temporary one, which the test's log names.
const ScreenshotsVariable = "E2E_SCREENSHOTS"

var find = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return servers.FindChromium(ctx, os.Stderr)
})

// Browser is one window with cookies, cache and history of its own.
type Browser struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it
	dir string          // of screenshots, once there is one

	mu       sync.Mutex
	problems []string
	dialogs  []string
	urls     map[network.RequestID]string
	expected []string // parts of problems that are no problem
}

// New starts a browser. What its pages log, throw, fail to load or violate fails the test
// at its end, see Problems.
func New(t testing.TB) *Browser {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, urls: map[network.RequestID]string{}}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.CombinedOutput(io.Discard), chromedp.Flag("headless", true), chromedp.Flag("no-sandbox", true),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("no-first-run", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("disable-quic", true))...)
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithListener(b.hear))
	b.ctx = ctx
	t.Cleanup(func() {
		for _, problem := range b.Problems() {
			t.Errorf("the browser complains: %s", problem)
		}
		cancel()
		stop()
	})
	b.do(func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		var none chromedp.Void
		for _, command := range []cdp.Command[cdp.Empty, cdp.Empty]{logdomain.Enable, audits.Enable} {
			if _, err := cdp.Call(ctx, tab, command, cdp.Empty{}); err != nil {
				return none, err
			}
		}
		_, err := cdp.Call(ctx, tab, network.Enable, network.EnableParams{})
		return none, err
	})
	b.Size(1280, 900)
	return b
}

// hear runs where the browser's messages are read: it must not ask the browser anything.
func (b *Browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.urls[e.RequestID] = e.Request.URL
	case *page.EventJavascriptDialogOpening:
		b.dialogs = append(b.dialogs, e.Message)
		go b.accept()
	default:
		if problem := b.problem(event); problem != "" {
			b.problems = append(b.problems, problem)
		}
	}
}

// problem returns what is wrong in an event, or "".
func (b *Browser) problem(event any) string {
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		return "console." + string(e.Type) + ": " + encoded(e.Args)
	case *runtime.EventExceptionThrown:
		return "exception: " + encoded(e.ExceptionDetails)
	case *logdomain.EventEntryAdded:
		return fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *audits.EventIssueAdded:
		return "issue " + string(e.Issue.Code) + ": " + encoded(e.Issue.Details)
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 {
			return fmt.Sprintf("%s answers %d", e.Response.URL, e.Response.Status)
		}
	case *network.EventLoadingFailed:
		if left := e.Canceled && e.BlockedReason == ""; !left { // a page that is left cancels its requests
			return fmt.Sprintf("%s does not load: %s %s", b.urls[e.RequestID], e.ErrorText, e.BlockedReason)
		}
	}
	return ""
}

func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

func (b *Browser) accept() {
	_, _ = chromedp.Run(b.ctx, func(ctx context.Context, tab *chromedp.Target) (cdp.Empty, error) { // the page waits for ever, and the test says so
		return cdp.Call(ctx, tab, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
	})
}

// Expect takes problems that contain text for none: those that a test makes on purpose.
func (b *Browser) Expect(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, text)
}

// Problems returns what pages logged, threw, failed to load or violated so far.
func (b *Browser) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var problems []string
	for _, problem := range b.problems {
		if !slices.ContainsFunc(b.expected, func(text string) bool { return strings.Contains(problem, text) }) {
			problems = append(problems, problem)
		}
	}
	return problems
}

// Dialogs returns the questions that pages asked; each was answered with yes.
func (b *Browser) Dialogs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.dialogs)
}

func (b *Browser) do(action chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if _, err := run(b, action); err != nil {
		b.t.Fatalf("%v%s", err, b.state())
	}
}

// run gives an action an end. The first one on a context owns the browser, so it has none.
func run[T any](b *Browser, action chromedp.Action[T]) (T, error) {
	if chromedp.FromContext(b.ctx).Target == nil {
		return chromedp.Run(b.ctx, action)
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// state is what helps to understand a failure.
func (b *Browser) state() string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	if err != nil {
		return ""
	}
	return "\nproblems: " + strings.Join(b.Problems(), "\n") + "\nthe page is " + text
}

// Open goes to a page and waits until it is loaded.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// Click clicks the first visible element that a CSS selector finds, when there is one.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// Type types text into a field, after what it holds.
func (b *Browser) Type(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Fill gives a field another content.
func (b *Browser) Fill(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SetValue(chromedp.CSS(selector), text))
}

// Press presses keys wherever the focus is; package kb names the special ones.
func (b *Browser) Press(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// Eval evaluates a JavaScript expression in the page.
func Eval[T any](b *Browser, expression string) T {
	b.t.Helper()
	value, err := run(b, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v%s", expression, err, b.state())
	}
	return value
}

// Await waits until a JavaScript expression is true, over navigations.
func (b *Browser) Await(expression string) {
	b.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(25 * time.Millisecond) {
		var holds bool
		if holds, err = run(b, chromedp.Evaluate[bool]("Boolean("+expression+")")); holds {
			return
		}
	}
	b.t.Fatalf("not within %s: %s: %v%s", patience, expression, err, b.state())
}

// AwaitPath waits until the page's path begins with prefix.
func (b *Browser) AwaitPath(prefix string) {
	b.t.Helper()
	b.Await(fmt.Sprintf(`location.pathname.startsWith(%q) && document.readyState === "complete"`, prefix))
}

// Path is the page's path.
func (b *Browser) Path() string {
	b.t.Helper()
	u, err := url.Parse(Eval[string](b, `location.href`))
	if err != nil {
		b.t.Fatal(err)
	}
	return u.Path
}

// Size sets the size of the page in CSS pixels.
func (b *Browser) Size(width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height))
}

// Scheme makes the browser prefer "light" or "dark".
func (b *Browser) Scheme(scheme string) {
	b.t.Helper()
	b.do(func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	})
}

// Shoot writes a picture of the whole page, as name.png.
func (b *Browser) Shoot(name string) {
	b.t.Helper()
	picture, err := run(b, chromedp.FullScreenshot(100))
	if err == nil && b.dir == "" {
		b.dir, err = screenshots()
		b.t.Logf("screenshots: %s", b.dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, name+".png"), picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func screenshots() (string, error) {
	if dir := os.Getenv(ScreenshotsVariable); dir != "" {
		return dir, os.MkdirAll(dir, 0o755)
	}
	return os.MkdirTemp("", "ordertimeout-screenshots-")
}
