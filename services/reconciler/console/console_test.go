package console_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/services/reconciler"
	"example.com/ordertimeout/services/reconciler/console"
)

const token = "token-of-the-operator"

// site is the console on a database of its own, with a broker that is a list.
type site struct {
	t       *testing.T
	db      *postgres.DB
	parked  *postgres.Parked
	server  *httptest.Server
	browser *http.Client
	broken  atomic.Bool // the broker is away
	stop    chan struct{}
}

func newSite(t *testing.T) *site {
	t.Helper()
	db := postgrestest.New(t)
	s := &site{t: t, db: db, parked: postgres.NewParked(db), stop: make(chan struct{})}
	queues := func(context.Context) ([]rabbitmq.QueueState, error) {
		if s.broken.Load() {
			return nil, errors.New("gone fishing")
		}
		return []rabbitmq.QueueState{
			{Name: "x.delay.30m.queue", Role: rabbitmq.RoleDelay, TTL: 30 * time.Minute, Exists: true, Messages: 41},
			{Name: "x.timeout.queue", Role: rabbitmq.RoleConsumed, Consumer: rabbitmq.Closer, Exists: true, Messages: 3},
			{Name: "x.parking.queue", Role: rabbitmq.RoleParking, Exists: true, Consumers: 1},
		}, nil
	}
	c, err := console.New(console.Deps{
		Orders: postgres.NewOrders(db), Outbox: postgres.NewOutbox(db), Parked: s.parked, Replays: postgres.NewReplays(db), Audit: postgres.NewAudit(db),
		Drift:  func(context.Context) (reconciler.Drift, error) { return reconciler.Drift{PendingOrders: 12}, nil },
		Queues: queues,
		Token:  token, Log: slog.New(slog.DiscardHandler), Stopping: s.stop,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for _, pattern := range c.Patterns() {
		mux.Handle(pattern, c)
	}
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.browser = &http.Client{Jar: jar, Timeout: 30 * time.Second, Transport: &http.Transport{}}
	t.Cleanup(s.browser.CloseIdleConnections)
	return s
}

// get returns a page after checking its status; redirects are followed.
func (s *site) get(want int, path string) string {
	s.t.Helper()
	response, err := s.browser.Get(s.server.URL + path)
	return s.read(want, path, response, err)
}

func (s *site) post(want int, path string, pairs ...string) string {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	response, err := s.browser.PostForm(s.server.URL+path, form)
	return s.read(want, path, response, err)
}

func (s *site) read(want int, path string, response *http.Response, err error) string {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if response.StatusCode != want {
		s.t.Fatalf("%s: status %d, want %d: %s", path, response.StatusCode, want, body)
	}
	return string(body)
}

func (s *site) signIn() {
	s.t.Helper()
	s.post(http.StatusOK, "/signin", "name", "ada", "token", token)
}

const (
	order  = "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"
	nobody = "0193b1f2-0000-7c0e-9d0c-0d2f6a7b8c9d" // no order, message or run
)

// park parks a message and returns its id.
func (s *site) park(key, payload, errorText string) string {
	s.t.Helper()
	_, err := s.parked.Store(s.t.Context(), []byte(key), postgres.ParkedMessage{
		Consumer: "closer", Type: "order.timeout", MessageID: "m-" + key, OrderID: order, Class: "transient", Error: errorText, Attempts: 4,
		FirstFailedAt: time.Now(), LastFailedAt: time.Now(), Payload: []byte(payload), Headers: map[string]string{"origin": "<u>"}, Story: map[string]string{},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := s.parked.List(s.t.Context(), postgres.ParkedQuery{Limit: 1})
	if err != nil || len(all) != 1 {
		s.t.Fatal(all, err)
	}
	return all[0].ID
}

// place stores the order that the messages are about.
func (s *site) place() {
	s.t.Helper()
	_, err := s.db.Pool().Exec(s.t.Context(), `
		INSERT INTO orders (id, customer_id, customer_email, currency, payment_window_ms, due_at, created_at)
		VALUES ($1, 'c', 'c@example.com', 'EUR', 1000, now() - interval '1 minute', now() - interval '2 minutes')`, order)
	if err != nil {
		s.t.Fatal(err)
	}
}

const timer = `{"type":"order.timeout","version":1,"order_id":"` + order + `"}`

func contains(t *testing.T, body string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestOnlyWhoSignedInGetsIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/", "/orders", "/orders/" + order, "/parked", "/runs", "/audit"} {
		contains(t, s.get(http.StatusOK, path), "Operator's token") // sent to the sign-in
	}
	s.get(http.StatusUnauthorized, "/events")
	contains(t, s.post(http.StatusUnauthorized, "/signin", "name", "ada", "token", "guess"), "That is not the operator")
	contains(t, s.post(http.StatusUnprocessableEntity, "/signin", "name", " ", "token", token), "Say who you are")
	s.signIn()
	contains(t, s.get(http.StatusOK, "/"), "Pipeline", "ada")

	home, err := url.Parse(s.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	good := s.browser.Jar.Cookies(home)[0].Value
	parts := strings.Split(good, ".")
	for name, value := range map[string]string{
		"another name":   "ZXZl." + parts[1] + "." + parts[2],
		"another expiry": parts[0] + ".99999999999." + parts[2],
		"no signature":   parts[0] + "." + parts[1] + ".",
		"nothing":        "",
	} {
		s.browser.Jar.SetCookies(home, []*http.Cookie{{Name: "ordertimeout_session", Value: value, Path: "/"}})
		if !strings.Contains(s.get(http.StatusOK, "/"), "Operator's token") {
			t.Errorf("a cookie with %s lets in", name)
		}
	}
	s.browser.Jar.SetCookies(home, []*http.Cookie{{Name: "ordertimeout_session", Value: good, Path: "/"}})
	contains(t, s.post(http.StatusOK, "/signout"), "Operator's token")
	contains(t, s.get(http.StatusOK, "/"), "Operator's token")
}

func TestTheCookieIsSafe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for proto, secure := range map[string]bool{"": false, "https": true} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/signin", strings.NewReader(url.Values{"name": {"ada"}, "token": {token}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("X-Forwarded-Proto", proto)
		response, err := s.browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		cookie := response.Cookies()[0]
		if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.MaxAge != 12*3600 || cookie.Secure != secure || strings.Contains(cookie.Value, token) {
			t.Errorf("behind %q: %v", proto, cookie)
		}
		policy := response.Header.Get("Content-Security-Policy")
		contains(t, policy, "default-src 'none'", "frame-ancestors 'none'")
		if strings.Contains(policy, "unsafe") {
			t.Errorf("policy: %s", policy)
		}
	}
}

func TestGuessingIsSlow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	refused := 0
	for range 50 {
		response, err := s.browser.PostForm(s.server.URL+"/signin", url.Values{"name": {"eve"}, "token": {"guess"}})
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("50 guesses at once")
	}
}

// A page of another site cannot make a browser that is signed in do anything.
func TestOtherSitesCannotAct(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn()
	id := s.park("a", timer, "boom")
	for _, path := range []string{"/parked/" + id + "/discard", "/runs", "/signout"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+path, strings.NewReader("reason=x&all=1"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Sec-Fetch-Site", "cross-site")
		response, err := s.browser.Do(request)
		s.read(http.StatusForbidden, path, response, err)
	}
	if m, err := s.parked.Get(t.Context(), id); err != nil || m.Status != postgres.StatusParked {
		t.Errorf("%v, %v", m.Status, err)
	}
}

// Whatever came from outside is shown as text.
func TestStrangersTextIsEscaped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn()
	const evil = `<script>alert("x")</script><img src=x onerror=alert(1)>`
	id := s.park("a", evil, evil+"\x00\xff")
	for _, path := range []string{"/", "/parked", "/parked/" + id, "/parked?text=" + url.QueryEscape(evil), "/parked?from=" + url.QueryEscape(evil)} {
		response, err := s.browser.Get(s.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if strings.Contains(string(body), "<script>alert") || strings.Contains(string(body), "<img src=x") || strings.Contains(string(body), "<u>") {
			t.Errorf("%s lets markup through", path)
		}
		contains(t, string(body), "&lt;script&gt;")
	}
}

func TestOperatorsRepairOnPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn()
	first := s.park("a", `{"broken":`, "boom 1")
	second, third := s.park("b", timer, "boom 2"), s.park("c", timer, "boom 3")
	contains(t, s.get(http.StatusOK, "/parked"), "Groups", `<b class="badge">3</b>`, first, second)

	contains(t, s.post(http.StatusUnprocessableEntity, "/parked/"+first+"/edit", "payload", `{"type":"order.closed","version":1,"order_id":"`+order+`"}`),
		"what the closer handles", "order.closed") // the input is kept
	contains(t, s.post(http.StatusUnprocessableEntity, "/parked/"+first+"/edit", "payload", timer), "an order that exists", "&#34;version&#34;:1")
	s.place()
	contains(t, s.post(http.StatusOK, "/parked/"+first+"/edit", "payload", timer), "Edited payload", "{&#34;broken&#34;:")
	contains(t, s.post(http.StatusUnprocessableEntity, "/parked/"+second+"/discard", "reason", " "), "reason")
	contains(t, s.post(http.StatusOK, "/parked/"+second+"/discard", "reason", "test data"), "discarded", "test data")
	contains(t, s.post(http.StatusConflict, "/parked/"+second+"/discard", "reason", "again"), "Not parked any more")

	contains(t, s.post(http.StatusUnprocessableEntity, "/runs"), "selection")
	contains(t, s.post(http.StatusUnprocessableEntity, "/runs", "all", "1", "rate", "-3"), "rate")
	contains(t, s.post(http.StatusUnprocessableEntity, "/runs", "all", "1", "canary", "x"), "canary")
	run := s.post(http.StatusOK, "/runs", "all", "1", "canary", "1", "rate", "5")
	contains(t, run, "Replay run", "interrupted", "5.0/s", "0 of 2 settled") // nobody works on it here
	contains(t, s.post(http.StatusConflict, "/runs", "id", third), "not finished", "Show that run")
	runs := s.get(http.StatusOK, "/runs")
	_, rest, _ := strings.Cut(runs, `href="/runs/`)
	id, _, _ := strings.Cut(rest, `"`)
	contains(t, s.post(http.StatusOK, "/runs/"+id+"/stop"), "stopping", "2 of 2 settled")
	contains(t, s.get(http.StatusOK, "/audit"), "ada", "replay stopped", "discard", "edit")
	contains(t, s.post(http.StatusNotFound, "/parked/discard", "class", "panic", "reason", "none"), "no open message fits")
	contains(t, s.get(http.StatusUnprocessableEntity, "/parked?consumer=nobody"), "consumer")
	contains(t, s.get(http.StatusUnprocessableEntity, "/parked?status=nowhere"), "status")
	for _, path := range []string{"/parked/" + nobody, "/runs/" + nobody, "/orders/" + nobody, "/parked/x", "/runs/x", "/orders/x"} {
		s.get(http.StatusNotFound, path)
	}
}

func TestThePictureMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn()
	contains(t, s.get(http.StatusOK, "/"), "41", "30m", "nobody consumes", "parking queue")
	response, err := s.browser.Get(s.server.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	seen := make(chan string)
	go func() {
		defer close(seen)
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			seen <- lines.Text()
		}
	}()
	await := func(text string) {
		t.Helper()
		for line := range seen {
			if strings.Contains(line, text) {
				return
			}
		}
		t.Fatalf("the stream ended without %q", text)
	}
	await("event: pipeline")
	s.park("a", timer, "boom")
	await("order.timeout · transient")
	s.broken.Store(true)
	await("RabbitMQ does not answer")
	close(s.stop)
	for range seen { // ends with the process
	}
}

func TestOrdersTellTheirStory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn()
	if _, err := postgres.NewStock(s.db).Set(t.Context(), "tea", new(int64(10))); err != nil {
		t.Fatal(err)
	}
	placed, _, err := postgres.NewOrders(s.db).Place(t.Context(), domain.Placement{
		ID: order, Customer: domain.Customer{ID: "c-<b>", Email: "ada@example.com"}, Currency: "JPY",
		Lines: []domain.Line{{SKU: "tea", Quantity: 2, UnitPrice: 450}}, Window: time.Hour,
	}, postgres.IdempotencyKey{})
	if err != nil {
		t.Fatal(err)
	}
	s.park("a", timer, "boom")
	contains(t, s.get(http.StatusOK, "/orders?status=pending"), "900 JPY", "c-&lt;b&gt;", "data-due")
	contains(t, s.get(http.StatusOK, "/orders?status=paid"), "No orders.")
	s.get(http.StatusUnprocessableEntity, "/orders?status=lost")
	contains(t, s.get(http.StatusOK, "/orders?id="+string(placed.ID())), "placed", "parked", "closer, attempt 4: boom", "show the message")
}
