package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

func TestOnlyTheTokenOpensAnOperatorsCall(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	for _, header := range []string{"Bearer " + testToken, "bearer  " + testToken} {
		s.call("GET", "/v1/things", "", "Authorization", header).want(t, 200)
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer x" + testToken, "Basic " + testToken, testToken} {
		a := s.call("GET", "/v1/things", "", "Authorization", header)
		a.wantProblem(t, 401, "")
		if a.header.Get("WWW-Authenticate") != `Bearer realm="operator"` {
			t.Errorf("%q: %v", header, a.header)
		}
	}
}

func TestAnEmptyTokenOpensNothing(t *testing.T) {
	t.Parallel()
	s := open(t, done, func(c *httpapi.Config) { c.OperatorToken = "" })
	for _, header := range []string{"", "Bearer", "Bearer "} {
		s.call("GET", "/v1/things", "", "Authorization", header).wantProblem(t, 401, "")
	}
	if httpapi.NewTokenCheck("").Is("") || !httpapi.NewTokenCheck(testToken).Is(testToken) {
		t.Error("an empty token is right, or the right one is not")
	}
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	s.call("GET", "/v2/things", "").wantProblem(t, 404, "")
	s.call("GET", "/docs/missing.js", "").wantProblem(t, 404, "")
	a := s.call("DELETE", "/v1/things", "")
	a.wantProblem(t, 405, "")
	if got := a.header.Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("Allow: %q", got)
	}
	if a := s.call("HEAD", "/nothing", ""); a.status != 404 || a.body != "" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestDocumentKnowsCallsRefusalsAndMembers(t *testing.T) {
	t.Parallel()
	a := open(t, done).call("GET", "/openapi.json", "")
	a.want(t, 200)
	type media map[string]struct {
		Schema   map[string]string `json:"schema"`
		Examples map[string]struct {
			Value map[string]any `json:"value"`
		} `json:"examples"`
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Security  []map[string][]string `json:"security"`
			Responses map[string]struct {
				Content media `json:"content"`
			} `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any `json:"properties"`
				Required   []string       `json:"required"`
			} `json:"schemas"`
			SecuritySchemes map[string]any `json:"securitySchemes"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Fatal(err)
	}
	problem := doc.Components.Schemas["Problem"]
	if problem.Properties["by"] == nil || problem.Properties["detail"] == nil || slices.Contains(problem.Required, "by") {
		t.Errorf("schema of a problem: %v", problem)
	}
	for _, name := range []string{"ErrorModel", "ErrorDetail", "takenJSON", "Taken"} {
		if _, there := doc.Components.Schemas[name]; there {
			t.Errorf("schema %s is not used", name)
		}
	}
	calls := doc.Paths["/v1/things"]
	if calls["get"].Security == nil || calls["post"].Security != nil || doc.Components.SecuritySchemes["operator"] == nil || doc.Components.SecuritySchemes["badge"] == nil {
		t.Errorf("security: %v and %v", calls["get"].Security, calls["post"].Security)
	}
	for _, status := range []string{"200", "400", "408", "409", "413", "415", "500", "503"} {
		if _, there := calls["post"].Responses[status]; !there {
			t.Errorf("answer %s is missing", status)
		}
	}
	taken := calls["post"].Responses["409"].Content[httpapi.ProblemContentType]
	if got := taken.Examples["example1"].Value; got["by"] != "<ada>" || got["type"] != "urn:problem-type:taken" {
		t.Errorf("example: %v", got)
	}
	if taken.Schema["$ref"] != "#/components/schemas/Problem" {
		t.Errorf("schema: %v", taken.Schema)
	}
}

var loads = regexp.MustCompile(`(?i)(?:src|href)\s*=\s*["']([^"']*)["']|url\(([^)]*)\)|@import`)

func TestDocsPageComesFromTheBinaryAlone(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	for _, path := range []string{"/docs", "/docs/"} {
		a := s.call("GET", path, "")
		a.want(t, 200)
		if !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || !strings.Contains(a.body, "/openapi.json") {
			t.Errorf("%s: %v %s", path, a.header, a.body)
		}
		if policy := a.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "http") {
			t.Errorf("policy: %q", policy)
		}
		found := loads.FindAllStringSubmatch(a.body, -1)
		if len(found) < 4 {
			t.Fatalf("%s loads only %q", path, found)
		}
		for _, load := range found {
			if !strings.HasPrefix(load[1], "/docs/") {
				t.Errorf("%s loads %q", path, load[0])
				continue
			}
			s.call("GET", load[1], "").want(t, 200)
		}
		// Addresses in scripts are compared with, not loaded: none names a host.
		if hosts := regexp.MustCompile(`(?:https?:)?//[a-z0-9-]+\.[a-z]`).FindAllString(a.body, -1); hosts != nil {
			t.Errorf("%s names %q", path, hosts)
		}
	}
	if a := s.call("GET", "/", ""); a.status != http.StatusFound || a.header.Get("Location") != "/docs" {
		t.Errorf("/ answers %d to %q", a.status, a.header.Get("Location"))
	}
}

func TestAServiceCanHaveAHomeOfItsOwn(t *testing.T) {
	t.Parallel()
	s := open(t, done, func(c *httpapi.Config) { c.OwnHome = true })
	s.api.Handle("GET /{$}", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "home") }))
	if a := s.call("GET", "/", ""); a.status != 200 || a.body != "home" {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.call("GET", "/docs", "").want(t, 200)
}

func TestCursorIsOfItsListOnly(t *testing.T) {
	t.Parallel()
	position := []byte{0, 255, 'x'}
	got, err := httpapi.DecodeCursor('a', *httpapi.EncodeCursor('a', position))
	if err != nil || !bytes.Equal(got, position) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := httpapi.DecodeCursor('a', ""); got != nil || err != nil {
		t.Errorf("no cursor: %v, %v", got, err)
	}
	for _, cursor := range []string{"!", "abc=", "YQ", "YWI ", "YWJ", *httpapi.EncodeCursor('b', position), *httpapi.EncodeCursor('a', nil)} {
		_, err := httpapi.DecodeCursor('a', cursor)
		var field *domain.FieldError
		if !errors.As(err, &field) || field.Field != "cursor" || field.Got != cursor {
			t.Errorf("%q: %v", cursor, err)
		}
	}
}

func TestLongestCursorFitsAPage(t *testing.T) {
	t.Parallel()
	s := open(t, done)
	token := []string{"Authorization", "Bearer " + testToken}
	s.call("GET", "/v1/things?cursor="+*httpapi.EncodeCursor('a', make([]byte, 149)), "", token...).want(t, 200)
	s.call("GET", "/v1/things?cursor="+*httpapi.EncodeCursor('a', make([]byte, 150)), "", token...).wantProblem(t, 422, "invalid")
}

func TestOneMoreThanThePageTellsThatThereIsANext(t *testing.T) {
	t.Parallel()
	name := func(s string) *string { return &s }
	page := httpapi.Page{Limit: 2}
	if page.Fetch() != 3 {
		t.Errorf("fetches %d", page.Fetch())
	}
	if shown, next := httpapi.Cut(page, []string{"a", "b", "c"}, name); !slices.Equal(shown, []string{"a", "b"}) || next == nil || *next != "b" {
		t.Errorf("shows %v, next %v", shown, next)
	}
	if shown, next := httpapi.Cut(page, []string{"a", "b"}, name); len(shown) != 2 || next != nil {
		t.Errorf("shows %v, next %v", shown, next)
	}
}

func TestBadAddressOrTokenNamesTheVariable(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{":0", "localhost:65535", "[::1]:8080"} {
		if err := httpapi.ValidateAddr("CONSOLE_ADDR", addr); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	var field *domain.FieldError
	for _, addr := range []string{"", "localhost", ":http", ":65536", ":-1", "::1:80"} {
		err := httpapi.ValidateAddr("CONSOLE_ADDR", addr)
		if !errors.As(err, &field) || field.Field != "CONSOLE_ADDR" || field.Got != addr || field.Allowed == "" {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if err := httpapi.ValidateToken("OPERATOR_TOKEN", strings.Repeat("x", 16)); err != nil {
		t.Error(err)
	}
	err := httpapi.ValidateToken("OPERATOR_TOKEN", "fifteen-letters")
	if !errors.As(err, &field) || field.Field != "OPERATOR_TOKEN" || strings.Contains(err.Error(), "fifteen-letters") {
		t.Errorf("got %v", err)
	}
}
