// Package console is the operator's web page: the pipeline as one living picture, orders,
// parked messages, replay runs and the audit, with everything that operators do to them.
//
//	console.go    what it needs, its routes, how a page is made
//	session.go    sign-in: a signed cookie that expires
//	pipeline.go   samples of the whole flow, sent to every open page once a second
//	orders.go, parked.go, runs.go    the pages
//	templates, assets                embedded; nothing comes from elsewhere
//
// Pages are made on the server. Forms and links work without a script; htmx refreshes
// what moves.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/rabbitmq"
	"example.com/ordertimeout/services/reconciler"
)

// Orders is the store of orders, to be looked at.
type Orders interface {
	Get(ctx context.Context, id domain.OrderID) (*domain.Order, error)
	List(ctx context.Context, q postgres.ListQuery) ([]*domain.Order, error)
	History(ctx context.Context, id domain.OrderID) ([]postgres.HistoryEntry, error)
	Placed(ctx context.Context, span time.Duration) (int, error)
}

// Outbox tells what waits to be published.
type Outbox interface {
	Backlog(ctx context.Context) (postgres.Backlog, error)
}

// Deps is what the console works with. Nothing may be nil.
type Deps struct {
	Orders   Orders
	Outbox   Outbox
	Parked   reconciler.ParkedMessages
	Replays  reconciler.ReplayRuns
	Audit    reconciler.AuditLog
	Drift    func(context.Context) (reconciler.Drift, error)
	Queues   func(context.Context) ([]rabbitmq.QueueState, error)
	Token    string // signs people in, and signs their cookies
	Log      *slog.Logger
	Stopping <-chan struct{} // closed when the process drains: streams end
}

//go:embed templates assets
var files embed.FS

// Console serves the pages.
type Console struct {
	deps      Deps
	templates map[string]*template.Template
	sessions  sessions
	sampler   *sampler
	handler   http.Handler
}

// New returns the console.
func New(deps Deps) (*Console, error) {
	templates, err := parseTemplates()
	if err != nil {
		return nil, err
	}
	c := &Console{deps: deps, templates: templates, sessions: newSessions(deps.Token), sampler: newSampler(deps)}
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", cached(http.StripPrefix("/assets/", http.FileServerFS(assets))))
	mux.Handle("GET /favicon.ico", http.RedirectHandler("/assets/favicon.svg", http.StatusFound))
	mux.HandleFunc("GET /signin", c.showSignIn)
	mux.HandleFunc("POST /signin", c.signIn)
	mux.HandleFunc("POST /signout", c.signOut)
	for pattern, page := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /{$}":                  c.showPipeline,
		"GET /events":               c.streamPipeline,
		"GET /orders":               c.listOrders,
		"GET /orders/{id}":          c.showOrder,
		"GET /parked":               c.listParked,
		"GET /parked/{id}":          c.showParked,
		"POST /parked/{id}/edit":    c.editParked,
		"GET /parked/{id}/edit":     c.showParked, // the address of a page that shows a refused edit
		"POST /parked/{id}/discard": c.discardParked,
		"POST /parked/discard":      c.discardSelection,
		"GET /runs":                 c.listRuns,
		"POST /runs":                c.startRun,
		"GET /runs/{id}":            c.showRun,
		"POST /runs/{id}/stop":      c.stopRun,
		"GET /audit":                c.listAudit,
	} {
		mux.Handle(pattern, c.signedIn(page))
	}
	c.handler = secured(c.sameOrigin(mux))
	return c, nil
}

// Patterns are the paths that the console serves, for the mux that it stands in.
func (c *Console) Patterns() []string {
	return []string{
		"GET /{$}", "GET /events", "/signin", "/signout", "/orders", "/orders/", "/parked", "/parked/", "/runs", "/runs/",
		"GET /audit", "GET /assets/", "GET /favicon.ico",
	}
}

// ServeHTTP makes it an http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// pageTimeout bounds what a page waits for; a run over a hundred thousand messages
// takes some seconds to begin.
const pageTimeout = 25 * time.Second

// signedIn lets people in who are signed in, and turns a page's error into a page.
func (c *Console) signedIn(page func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := c.sessions.who(r, time.Now())
		switch {
		case ok:
		case r.URL.Path == "/events" || r.Header.Get("Hx-Request") != "":
			w.Header().Set("Hx-Redirect", "/signin")
			http.Error(w, "sign in first", http.StatusUnauthorized)
			return
		default:
			http.Redirect(w, r, "/signin", http.StatusSeeOther)
			return
		}
		ctx := context.WithValue(r.Context(), operatorKey{}, name)
		if r.URL.Path != "/events" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, pageTimeout)
			defer cancel()
		}
		r = r.WithContext(ctx)
		if err := page(w, r); err != nil {
			c.fail(w, r, err)
		}
	})
}

type operatorKey struct{}

// operator is the name that the audit keeps.
func operator(r *http.Request) string {
	name, _ := r.Context().Value(operatorKey{}).(string)
	return name
}

// secured sets what a browser may do with a page: nothing from elsewhere, no script or
// style that is not a file of ours, no frame, no copy kept.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=300")
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses a form that another site's page sends with our cookie.
func (c *Console) sameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.render(w, r, http.StatusForbidden, "error", page{Title: "Refused", Data: "This form was sent from another site."})
	}))
	return protection.Handler(next)
}

// page is what every template gets.
type page struct {
	Title    string
	Section  string // of the navigation
	Operator string
	Status   int
	Data     any
}

// show answers with a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, name, section, title string, data any) error {
	c.render(w, r, http.StatusOK, name, page{Title: title, Section: section, Data: data})
	return nil
}

// showInvalid answers with a page that says what cannot be accepted, the input kept.
func (c *Console) showInvalid(w http.ResponseWriter, r *http.Request, name, section, title string, data any) error {
	c.render(w, r, http.StatusUnprocessableEntity, name, page{Title: title, Section: section, Data: data})
	return nil
}

// render writes a page, or only its main part where htmx asks for a part.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	p.Operator, p.Status = operator(r), status
	layout := "layout"
	if r.Header.Get("Hx-Request") != "" && r.Header.Get("Hx-Boosted") == "" {
		layout = "main"
	}
	var out bytes.Buffer
	if err := c.templates[name].ExecuteTemplate(&out, layout, p); err != nil {
		c.deps.Log.Error("page cannot be made", "page", name, "error", err)
		http.Error(w, "the page cannot be made; the log tells more", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // a browser that is gone needs no answer
}

// failure is what an error page shows.
type failure struct {
	Text string
	Run  string // the replay run that is in the way
	Back string // the page that was left
}

// fail is the one table from errors to error pages.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	var field *domain.FieldError
	var inRun *postgres.InRunError
	status, title, f := http.StatusInternalServerError, "That failed", failure{Text: "The log tells more."}
	switch {
	case errors.Is(err, postgres.ErrParkedNotFound), errors.Is(err, postgres.ErrRunNotFound), errors.Is(err, domain.ErrOrderNotFound):
		status, title, f.Text = http.StatusNotFound, "Not found", err.Error()
	case errors.Is(err, postgres.ErrNothingPicked):
		status, title, f.Text = http.StatusNotFound, "Nothing to do", err.Error()
	case errors.As(err, &inRun):
		status, title, f = http.StatusConflict, "In a replay run", failure{Text: err.Error(), Run: inRun.RunID}
	case errors.Is(err, postgres.ErrNotParked):
		status, title, f.Text = http.StatusConflict, "Not parked any more", err.Error()
	case errors.As(err, &field):
		status, title, f.Text = http.StatusUnprocessableEntity, "That cannot be accepted", field.Error()
	case errors.Is(err, domain.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		status, title, f.Text = http.StatusServiceUnavailable, "Not now", "Postgres or RabbitMQ does not answer. Try again."
	case errors.Is(err, context.Canceled):
		return // the browser left
	default:
		c.deps.Log.Error("page failed", "path", r.URL.Path, "error", err)
	}
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host {
		f.Back = from.String()
	}
	c.render(w, r, status, "error", page{Title: title, Data: f})
}
