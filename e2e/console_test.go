package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/ordertimeout/e2e/browser"
	"example.com/ordertimeout/e2e/harness"
)

// signIn opens the console in a new browser, as an operator.
func signIn(t *testing.T, shop *harness.Shop) *browser.Browser {
	t.Helper()
	b := browser.New(t)
	b.Open("http://" + shop.Console + "/orders")
	b.AwaitPath("/signin")
	b.Type(`[name=name]`, "Ada")
	b.Type(`[name=token]`, harness.OperatorToken+kb.Enter)
	b.AwaitPath("/")
	b.Await(`document.querySelector("nav")`)
	return b
}

// parkSome makes orders whose closing fails until the returned function is called.
func parkSome(t *testing.T, shop *harness.Shop, orders int) (mend func()) {
	t.Helper()
	mend = breakCloses(t, shop)
	for range orders {
		shop.Place("300ms", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1250})
	}
	shop.AwaitCount(int64(orders), `SELECT count(*) FROM parked_messages WHERE status = 'parked'`)
	return mend
}

func consoleShop(t *testing.T) *harness.Shop {
	t.Helper()
	shop := harness.New(t, harness.DefaultWindows, "", "")
	shop.Command("migrate")
	shop.Setenv("SWEEP_GRACE", "1h") // or the sweep would close what is parked
	shop.Run("order", "relay", "closer", "notifier", "reconciler")
	shop.SetStock("tea", units(100))
	return shop
}

// An operator sees an order close without touching the page.
func TestConsoleShowsAnOrderClose(t *testing.T) {
	t.Parallel()
	shop := consoleShop(t)
	b := signIn(t, shop)
	shop.Place("30m", harness.Line{SKU: "tea", Quantity: 1, UnitPrice: 1250})
	b.Await(`document.querySelector('#picture a[href="/orders?status=pending"] b').textContent === "1"`) // nothing but the stream tells
	order := shop.Place("3s", harness.Line{SKU: "tea", Quantity: 2, UnitPrice: 1250})
	b.Open("http://" + shop.Console + "/orders/" + order.ID)
	b.Await(`window.stays = document.querySelector("#order .chip.pending")`)
	b.Await(`document.querySelector("#order .chip.closed") && window.stays`) // the same page: no reload
	b.Await(`document.querySelector("#order").innerText.includes("by timer")`)
	b.Shoot("order-closed")
}

// An operator replays a group with a canary, edits a message and discards one.
func TestConsoleRepairs(t *testing.T) {
	t.Parallel()
	const orders = 5
	shop := consoleShop(t)
	mend := parkSome(t, shop, orders)
	b := signIn(t, shop)
	parked := "http://" + shop.Console + "/parked"

	b.Open(parked)
	b.Click(`table a[href^="/parked/"]`)
	b.AwaitPath("/parked/")
	b.Type(`[name=reason]`, "a test order")
	b.Click(`form[action$="/discard"] button`)
	b.Await(`document.querySelector(".chip.discarded")`)
	if got := b.Dialogs(); len(got) != 1 {
		t.Errorf("discarding asks %q; want one question", got)
	}
	shop.AwaitCount(1, `SELECT count(*) FROM parked_messages WHERE status = 'discarded'`)

	mend()
	b.Open(parked)
	b.Click(`table a[href^="/parked/"]`)
	b.AwaitPath("/parked/")
	draft := browser.Eval[string](b, `document.getElementById("payload").value`)
	b.Expect("answers 422") // the next edit is refused
	b.Expect("status of 422")
	b.Fill(`#payload`, "{")
	b.Click(`[action$="/edit"] button:not([name])`)
	b.Await(`document.querySelector("#payload[aria-invalid=true]") && document.getElementById("payload-problem").textContent`)
	b.Fill(`#payload`, draft)
	b.Click(`[action$="/edit"] button[name=replay]`)
	b.AwaitPath("/runs/")
	b.Await(`document.querySelector("#run .chip.done")`)
	shop.AwaitCount(1, `SELECT count(*) FROM parked_messages WHERE status = 'handled' AND edited_payload IS NOT NULL`)

	b.Open(parked)
	b.Click(`details.group summary`)
	b.Click(`details[open] form[action="/runs"] button`)
	b.AwaitPath("/runs/")
	b.Await(`document.querySelector("#run .chip.done")`)
	b.Shoot("run-done")
	shop.AwaitCount(orders-1, `SELECT count(*) FROM orders WHERE status = 'closed' AND closed_by = 'replay'`)
	shop.AwaitCount(0, `SELECT count(*) FROM parked_messages WHERE status = 'parked'`)
	shop.AwaitCount(4, `SELECT count(*) FROM audit WHERE operator = 'Ada' AND action IN ('discard', 'edit', 'replay')`)
}

// Every page is whole on a phone and in both colour schemes, and its keyboard reaches
// everything that a mouse does.
func TestConsolePagesAreWhole(t *testing.T) {
	t.Parallel()
	shop := consoleShop(t)
	mend := parkSome(t, shop, 3)
	b := signIn(t, shop)
	base := "http://" + shop.Console
	b.Open(base + "/parked")
	b.Click(`details.group summary`)
	b.Click(`details[open] form[action="/runs"] button`)
	b.AwaitPath("/runs/")
	b.Await(`document.querySelector("#run .chip.canary_failed")`)
	run := b.Path()
	mend()
	var message, order string
	if err := shop.DB.QueryRow(context.Background(), `SELECT id::text, order_id::text FROM parked_messages WHERE status = 'parked' LIMIT 1`).Scan(&message, &order); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"pipeline": "/", "orders": "/orders", "order": "/orders/" + order, "parked": "/parked", "message": "/parked/" + message,
		"runs": "/runs", "run": run, "audit": "/audit",
	} {
		for _, scheme := range []string{"light", "dark"} {
			b.Scheme(scheme)
			b.Size(1280, 900)
			b.Open(base + path)
			b.Shoot(name + "-" + scheme)
			checkScheme(t, b, name, scheme)
			b.Size(360, 740)
			b.Shoot(name + "-" + scheme + "-phone")
			if wide := browser.Eval[int](b, `document.scrollingElement.scrollWidth`); wide > 360 {
				t.Errorf("%s scrolls sideways on a phone: it is %d pixels wide", name, wide)
			}
		}
		b.Size(1280, 900)
		b.Open(base + path)
		checkKeyboard(t, b, name)
	}
}

func checkScheme(t *testing.T, b *browser.Browser, page, scheme string) {
	t.Helper()
	background := browser.Eval[int](b, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, n) => sum + Number(n), 0)`)
	if dark := background < 3*128; dark != (scheme == "dark") {
		t.Errorf("%s: the background of the %s scheme has the brightness %d of 765", page, scheme, background)
	}
}

// focusable finds what the keyboard has to reach. A page that refreshes itself has other
// elements of the same name afterwards, so the test goes by names.
const focusable = `a[href], button, input:not([type=hidden]), select, textarea, summary`

func checkKeyboard(t *testing.T, b *browser.Browser, page string) {
	t.Helper()
	b.Press(kb.Tab)
	if !browser.Eval[bool](b, `document.activeElement.matches(".skip") && document.activeElement.getBoundingClientRect().top >= 0`) {
		t.Errorf("%s: the first Tab does not show a link that skips to the content", page)
	}
	b.Press(kb.Enter)
	if !browser.Eval[bool](b, `document.activeElement.id === "main"`) {
		t.Errorf("%s: the skip link does not lead to the content", page)
	}
	b.Open(browser.Eval[string](b, `location.href.split("#")[0]`))
	name := `(e => e.tagName + (e.id || e.name || e.getAttribute("href") || e.textContent.trim()))`
	missing := browser.Eval[[]string](b, fmt.Sprintf(
		`(window.left = [...document.querySelectorAll(%q)].filter(e => e.checkVisibility()).map(%s))`, focusable, name))
	for range len(missing) + 20 { // a date field has several stops
		b.Press(kb.Tab)
		missing = browser.Eval[[]string](b, fmt.Sprintf(
			`window.left = window.left.filter(n => n !== %s(document.activeElement))`, name))
		if len(missing) == 0 {
			return
		}
	}
	t.Errorf("%s: Tab does not reach %q", page, missing)
}
