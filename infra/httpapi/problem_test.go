package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

func TestTableOfErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
		header string // that the answer must have
	}{
		"unknown":             {errors.New("password is hunter2"), 500, ""},
		"the service's own":   {fmt.Errorf("add: %w", errTaken), 409, "X-Taken"},
		"unauthorized":        {fmt.Errorf("add: %w", httpapi.ErrUnauthorized), 401, "Www-Authenticate"},
		"not found":           {fmt.Errorf("get: %w", domain.ErrOrderNotFound), 404, ""},
		"field":               {fmt.Errorf("add: %w", &domain.FieldError{Field: "name", Allowed: "some"}), 422, ""},
		"unavailable":         {fmt.Errorf("%w: dial tcp", domain.ErrUnavailable), 503, "Retry-After"},
		"deadline":            {fmt.Errorf("query: %w", context.DeadlineExceeded), 503, "Retry-After"},
		"client went away":    {fmt.Errorf("query: %w", context.Canceled), httpapi.StatusClientGone, ""},
		"a problem as it is":  {fmt.Errorf("add: %w", httpapi.NewProblem(418, "short and stout")), 418, ""},
		"away, then its own":  {fmt.Errorf("%w: %w", domain.ErrUnavailable, errTaken), 503, "Retry-After"},
		"permanent and alien": {domain.ErrMalformed, 500, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, func(context.Context) error { return c.err })
			kinds := map[int]string{409: "taken", 404: "unknown-order", 422: "invalid"}
			a := s.add()
			a.wantProblem(t, c.status, kinds[c.status])
			if c.header != "" && a.header.Get(c.header) == "" {
				t.Errorf("header %s is missing in %v", c.header, a.header)
			}
			if c.status >= 500 && strings.Contains(a.body, "hunter2") {
				t.Errorf("the answer tells the inside: %s", a.body)
			}
			logged := len(s.log.entries("request failed")) + len(s.log.entries("request cannot be served now"))
			if want := c.status >= 500; logged != 0 != want {
				t.Errorf("%d log lines tell the cause of a %d", logged, c.status)
			}
		})
	}
}

func TestMembersOfAServiceStandBesideTheOthers(t *testing.T) {
	t.Parallel()
	a := open(t, func(context.Context) error { return errTaken }).add()
	a.wantProblem(t, 409, "taken")
	if !strings.HasSuffix(a.body, `","by":"<ada>"}`+"\n") {
		t.Errorf("got %s", a.body)
	}
}

func TestWithoutATableOfItsOwnTheCommonOneAnswers(t *testing.T) {
	t.Parallel()
	s := open(t, func(context.Context) error { return domain.ErrOrderNotFound }, func(c *httpapi.Config) {
		c.Problem = func(error) *httpapi.Problem { return nil }
	})
	s.add().wantProblem(t, 404, "unknown-order")
}

func TestPanicIsA500(t *testing.T) {
	t.Parallel()
	s := open(t, func(context.Context) error { panic("hunter2") })
	a := s.add("X-Request-ID", "r-1")
	a.wantProblem(t, 500, "")
	if strings.Contains(a.body, "hunter2") {
		t.Errorf("the answer tells the inside: %s", a.body)
	}
	if entries := s.log.entries("request panicked"); len(entries) != 1 || entries[0]["stack"] == "" || entries[0]["request_id"] != "r-1" {
		t.Errorf("log: %v", entries)
	}
	s.call("GET", "/openapi.json", "").want(t, 200) // it still serves
}

func TestBodyThatDoesNotComeIsA408(t *testing.T) {
	t.Parallel()
	s := open(t, done, func(c *httpapi.Config) { c.Timeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/things HTTP/1.1\r\nHost: things\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout || resp.Header.Get("Content-Type") != httpapi.ProblemContentType {
		t.Errorf("got %d %v", resp.StatusCode, resp.Header)
	}
}

func TestBodyHasTheConfiguredLimit(t *testing.T) {
	t.Parallel()
	const limit = 3 << 19 // more than huma's own
	body := func(length int) string {
		frame := `{"name":""}`
		return strings.Replace(frame, `""`, `"`+strings.Repeat("x", length-len(frame))+`"`, 1)
	}
	s := open(t, done, func(c *httpapi.Config) { c.MaxBody = limit })
	s.call("POST", "/v1/things", body(limit)).want(t, 200)
	p := s.call("POST", "/v1/things", body(limit+1)).wantProblem(t, 413, "")
	if !strings.Contains(p.Detail, fmt.Sprint(limit)) {
		t.Errorf("the limit is not named: %s", p.Detail)
	}
	s = open(t, done)
	s.call("POST", "/v1/things", body(httpapi.DefaultMaxBody)).want(t, 200)
	s.call("POST", "/v1/things", body(httpapi.DefaultMaxBody+1)).wantProblem(t, 413, "")
}

func TestWorkThatWritesOutlivesItsClient(t *testing.T) {
	t.Parallel()
	begun, left := make(chan struct{}), make(chan struct{})
	type seen struct{ cut, whole error }
	ended := make(chan seen, 1)
	s := open(t, func(ctx context.Context) error {
		whole, cancel := httpapi.Uninterrupted(ctx)
		defer cancel()
		before, _ := ctx.Deadline()
		if after, ok := whole.Deadline(); !ok || !after.Equal(before) {
			t.Errorf("deadline: got %s, want %s", after, before)
		}
		close(begun)
		<-left
		ended <- seen{ctx.Err(), whole.Err()}
		return nil
	}, func(c *httpapi.Config) { c.Timeout = time.Minute })
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(left) })
		s.api.ServeHTTP(w, r)
	}))
	defer front.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-begun; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/things", strings.NewReader(`{"name":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Fatalf("got an answer: %d", resp.StatusCode)
	}
	if got := <-ended; !errors.Is(got.cut, context.Canceled) || got.whole != nil {
		t.Errorf("the request's context: %v, the work's: %v", got.cut, got.whole)
	}
}

func TestUninterruptedEndsOutsideOfARequestToo(t *testing.T) {
	t.Parallel()
	ctx, cancel := httpapi.Uninterrupted(context.Background())
	defer cancel()
	if _, ok := ctx.Deadline(); !ok {
		t.Error("no deadline")
	}
}
