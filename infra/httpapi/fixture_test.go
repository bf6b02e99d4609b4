package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/infra/httpapi"
)

const testToken = "operator-token-for-tests"

// Two calls: GET /v1/things needs the operator's token, POST /v1/things does not.
type (
	listInput struct {
		httpapi.Page
	}
	thingOutput struct {
		Body thingJSON
	}
	addInput struct {
		Body thingJSON
	}
	thingJSON struct {
		Name string `json:"name" maxLength:"2000000" doc:"Any."`
	}
	// takenJSON is what errTaken has beside what every problem has.
	takenJSON struct {
		By string `json:"by" doc:"Taken: by whom."`
	}
)

var (
	errTaken = errors.New("the name is taken")
	example  = thingJSON{Name: "a & b"}
)

func problemFor(err error) *httpapi.Problem {
	if !errors.Is(err, errTaken) {
		return nil
	}
	p := httpapi.NewProblem(http.StatusConflict, err.Error()).Kind("taken").Header("X-Taken", "yes")
	p.Extra = takenJSON{By: "<ada>"}
	return p
}

// calls answers both calls by do.
func calls(do func(context.Context) error) func(*httpapi.API) {
	answer := func(ctx context.Context) (*thingOutput, error) {
		if err := do(ctx); err != nil {
			return nil, err
		}
		return &thingOutput{Body: example}, nil
	}
	return func(api *httpapi.API) {
		httpapi.Add(api, httpapi.Call[listInput, thingOutput]{
			Op:       huma.Operation{OperationID: "listThings", Method: http.MethodGet, Path: "/v1/things", Tags: []string{"Things"}, Summary: "List"},
			Operator: true,
			Do:       func(ctx context.Context, _ *listInput) (*thingOutput, error) { return answer(ctx) },
			Response: example,
		})
		httpapi.Add(api, httpapi.Call[addInput, thingOutput]{
			Op:       huma.Operation{OperationID: "addThing", Method: http.MethodPost, Path: "/v1/things", Tags: []string{"Things"}, Summary: "Add"},
			Do:       func(ctx context.Context, _ *addInput) (*thingOutput, error) { return answer(ctx) },
			Request:  example,
			Response: example,
			Refusals: []httpapi.Refusal{{When: "The name is taken.", Err: errTaken}},
		})
	}
}

func done(context.Context) error { return nil }

// site is a running interface.
type site struct {
	t        *testing.T
	api      *httpapi.API
	url      string
	registry *prometheus.Registry
	log      *logBuffer
}

// open serves both calls. adapt may change the configuration.
func open(t *testing.T, do func(context.Context) error, adapt ...func(*httpapi.Config)) *site {
	t.Helper()
	s := &site{t: t, registry: prometheus.NewRegistry(), log: &logBuffer{}}
	cfg := httpapi.Config{
		Title: "Things", Description: httpapi.AboutErrors, Version: "test", Tags: []string{"Things"},
		Security:      map[string]*huma.SecurityScheme{"badge": {Type: "apiKey", In: "header", Name: "badge"}},
		OperatorToken: testToken, Problem: problemFor, ProblemMembers: takenJSON{},
		Log: slog.New(slog.NewJSONHandler(s.log, nil)), Metrics: s.registry,
	}
	for _, a := range adapt {
		a(&cfg)
	}
	var err error
	if s.api, err = httpapi.New(cfg, calls(do)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(s.api)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

type answer struct {
	status int
	header http.Header
	body   string
}

// call sends one request; headers are names and values in turn.
func (s *site) call(method, path, body string, headers ...string) answer {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(content)}
}

func (s *site) add(headers ...string) answer {
	s.t.Helper()
	return s.call("POST", "/v1/things", `{"name":"x"}`, headers...)
}

func (a answer) want(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status: got %d, want %d; body %s", a.status, status, a.body)
	}
}

// wantProblem checks that the answer is a whole problem of this kind.
func (a answer) wantProblem(t *testing.T, status int, kind string) httpapi.Problem {
	t.Helper()
	a.want(t, status)
	if got := a.header.Get("Content-Type"); got != httpapi.ProblemContentType {
		t.Fatalf("content type %q of %s", got, a.body)
	}
	var p httpapi.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	if p.Status != status || p.Title == "" || p.Detail == "" || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-ID") {
		t.Fatalf("problem is not whole: %s", a.body)
	}
	if got := strings.TrimPrefix(p.Type, "urn:problem-type:"); got != kind {
		t.Fatalf("kind: got %q, want %q", got, kind)
	}
	return p
}

// logBuffer is a log that tests can read while it is written.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Write(p)
}

func (b *logBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.String()
}

// entries returns the logged objects with this message.
func (b *logBuffer) entries(message string) []map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []map[string]any
	for line := range bytes.Lines(b.lines.Bytes()) {
		entry := map[string]any{}
		if err := json.Unmarshal(line, &entry); err != nil {
			panic(fmt.Sprintf("log line %q: %v", line, err))
		}
		if entry["msg"] == message {
			found = append(found, entry)
		}
	}
	return found
}
