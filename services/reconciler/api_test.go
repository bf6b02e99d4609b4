package reconciler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

const token = "token-of-the-operator"

func noDrift(context.Context) (reconciler.Drift, error) { return reconciler.Drift{}, nil }

type client struct {
	t   *testing.T
	api *httpapi.API
}

func (y *yard) client(t *testing.T) client {
	t.Helper()
	api, err := reconciler.NewAPI(reconciler.APIConfig{Addr: ":8081", OperatorToken: token}, reconciler.APIDeps{
		Parked: y.parked, Replays: y.replays, Audit: postgres.NewAudit(y.db), Drift: noDrift,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	return client{t, api}
}

// call returns the answer's body after checking its status.
func (c client) call(want int, method, path, body string) map[string]any {
	c.t.Helper()
	request := httptest.NewRequestWithContext(c.t.Context(), method, path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Operator", "ada")
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	recorder := httptest.NewRecorder()
	c.api.ServeHTTP(recorder, request)
	content, err := io.ReadAll(recorder.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if recorder.Code != want {
		c.t.Fatalf("%s %s: status %d, want %d: %s", method, path, recorder.Code, want, content)
	}
	var answer map[string]any
	if err := json.Unmarshal(content, &answer); err != nil {
		c.t.Fatalf("%s %s: %v: %s", method, path, err, content)
	}
	return answer
}

// all follows a list to its end.
func (c client) all(path string) []map[string]any {
	c.t.Helper()
	var items []map[string]any
	for next := any(""); next != nil; {
		page := c.call(http.StatusOK, http.MethodGet, fmt.Sprintf("%s&cursor=%s", path, next), "")
		for _, item := range page["items"].([]any) {
			items = append(items, item.(map[string]any))
		}
		next = page["next_cursor"]
	}
	return items
}

// Every documented call needs the operator's token, and says so.
func TestEveryCallNeedsTheToken(t *testing.T) {
	t.Parallel()
	c := newYard(t).client(t)
	recorder := httptest.NewRecorder()
	c.api.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", nil))
	var document struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for path, methods := range document.Paths {
		for method, call := range methods {
			calls++
			if len(call.Security) != 1 {
				t.Errorf("%s %s is documented without the token", method, path)
			}
			path := strings.ReplaceAll(path, "{id}", "0193b1f8-1111-7c0e-9d0c-0d2f6a7b8c9d")
			for _, authorization := range []string{"", "Bearer " + token + "x", "Basic " + token} {
				request := httptest.NewRequestWithContext(t.Context(), strings.ToUpper(method), path, strings.NewReader("{}"))
				request.Header.Set("Authorization", authorization)
				recorder := httptest.NewRecorder()
				c.api.ServeHTTP(recorder, request)
				if recorder.Code != http.StatusUnauthorized {
					t.Errorf("%s %s with %q: status %d", method, path, authorization, recorder.Code)
				}
			}
		}
	}
	if calls < 13 {
		t.Errorf("only %d calls", calls)
	}
}

func TestListsAreCompleteAndFiltered(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(25)
	c := y.client(t)
	seen := map[any]bool{}
	for _, m := range c.all("/v1/parked?limit=10") {
		if seen[m["id"]] {
			t.Errorf("%v stands twice", m["id"])
		}
		seen[m["id"]] = true
		if _, whole := m["payload"]; whole {
			t.Error("a list shows payloads")
		}
	}
	if len(seen) != 25 {
		t.Errorf("%d messages, want 25", len(seen))
	}
	sum := 0.0
	for _, g := range c.call(http.StatusOK, http.MethodGet, "/v1/parked/groups", "")["items"].([]any) {
		group := g.(map[string]any)
		sum += group["messages"].(float64)
		if n := len(c.all(fmt.Sprintf("/v1/parked?group=%s", group["id"]))); n != int(group["messages"].(float64)) {
			t.Errorf("group of %v lists %d", group["messages"], n)
		}
	}
	if sum != 25 {
		t.Errorf("groups have %g messages, want 25", sum)
	}
	for query, want := range map[string]int{
		"consumer=closer": 25, "consumer=notifier": 0, "class=transient": 25, "class=panic": 0, "text=NO%20SUCH%20LUCK": 25, "text=%22version%22:1": 25,
		"text=nowhere": 0, "from=2099-01-01T00:00:00Z": 0, "to=2099-01-01T00:00:00Z": 25, "status=handled": 0, "status=all": 25,
	} {
		if n := len(c.all("/v1/parked?" + query)); n != want {
			t.Errorf("%s: %d messages, want %d", query, n, want)
		}
	}
	for _, bad := range []string{"/v1/parked?cursor=x", "/v1/parked?consumer=nobody", "/v1/parked?order_id=1", "/v1/parked?limit=0", "/v1/parked?nope=1", "/v1/replays?cursor=x", "/v1/audit?cursor=x", "/v1/parked/1"} {
		c.call(http.StatusUnprocessableEntity, http.MethodGet, bad, "")
	}
}

func TestOperatorsRepairOverHTTP(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.park(3)
	c := y.client(t)
	all := c.all("/v1/parked?limit=50")
	first, second := all[0]["id"].(string), all[1]["id"].(string)
	order := all[0]["order_id"].(string)

	whole := c.call(http.StatusOK, http.MethodGet, "/v1/parked/"+first, "")
	original := whole["payload"].(string)
	c.call(http.StatusUnprocessableEntity, http.MethodPut, "/v1/parked/"+first+"/payload", `{"payload":{"type":"order.timeout"}}`)
	c.call(http.StatusUnprocessableEntity, http.MethodPut, "/v1/parked/"+first+"/payload", fmt.Sprintf(`{"payload":{"type":"order.closed","version":1,"order_id":%q}}`, order))
	edited := c.call(http.StatusOK, http.MethodPut, "/v1/parked/"+first+"/payload", fmt.Sprintf(`{"payload":{"type":"order.timeout","version":1,"order_id":%q,"note":"<b>"}}`, order))
	if edited["payload"] != original || !strings.Contains(edited["edited_payload"].(string), `"note":"<b>"`) {
		t.Errorf("after the edit: %v", edited)
	}

	c.call(http.StatusUnprocessableEntity, http.MethodPost, "/v1/parked/"+second+"/discard", `{"reason":"  "}`)
	if got := c.call(http.StatusOK, http.MethodPost, "/v1/parked/"+second+"/discard", `{"reason":"test data"}`); got["status"] != "discarded" || got["reason"] != "test data" {
		t.Errorf("discarded: %v", got)
	}
	c.call(http.StatusConflict, http.MethodPost, "/v1/parked/"+second+"/discard", `{"reason":"again"}`)

	c.call(http.StatusUnprocessableEntity, http.MethodPost, "/v1/replays", `{"selection":{"filter":{}}}`)
	c.call(http.StatusUnprocessableEntity, http.MethodPost, "/v1/replays", `{"selection":{"ids":["x"]}}`)
	c.call(http.StatusUnprocessableEntity, http.MethodPost, "/v1/replays", `{"selection":{"all":true},"rate":-1}`)
	c.call(http.StatusNotFound, http.MethodPost, "/v1/discards", `{"selection":{"filter":{"class":"panic"}},"reason":"none"}`)
	c.call(http.StatusNotFound, http.MethodPost, "/v1/replays", `{"selection":{"ids":["0193b1f8-1111-7c0e-9d0c-0d2f6a7b8c9d"]}}`)
	run := c.call(http.StatusCreated, http.MethodPost, "/v1/replays", `{"selection":{"all":true},"rate":5}`)
	if run["status"] != "canary" || run["total"] != 2.0 || run["requested_by"] != "ada" || run["worked_on"] != false {
		t.Errorf("run: %v", run)
	}
	if refused := c.call(http.StatusConflict, http.MethodPost, "/v1/replays", fmt.Sprintf(`{"selection":{"ids":[%q]}}`, first)); !strings.Contains(refused["detail"].(string), run["id"].(string)) {
		t.Errorf("refused: %v", refused)
	}
	c.call(http.StatusConflict, http.MethodPut, "/v1/parked/"+first+"/payload", fmt.Sprintf(`{"payload":{"type":"order.timeout","version":1,"order_id":%q}}`, order))
	if n := len(c.all(fmt.Sprintf("/v1/replays/%s/messages?limit=1", run["id"]))); n != 2 {
		t.Errorf("%d messages in the run, want 2", n)
	}
	if stopped := c.call(http.StatusOK, http.MethodPost, fmt.Sprintf("/v1/replays/%s/stop", run["id"]), ""); stopped["status"] != "stopping" || stopped["skipped"] != 2.0 {
		t.Errorf("stopped: %v", stopped)
	}
	if got := c.call(http.StatusOK, http.MethodPost, "/v1/discards", `{"selection":{"filter":{"class":"transient"}},"reason":"enough"}`); got["discarded"] != 2.0 {
		t.Errorf("discarded: %v", got)
	}
	var actions []string
	for _, e := range c.all("/v1/audit?limit=2") {
		actions = append(actions, fmt.Sprintf("%s %s %v", e["operator"], e["action"], e["messages"]))
	}
	if got := strings.Join(actions, ", "); got != "ada discard 2, ada replay stopped 2, ada replay 2, ada discard 1, ada edit 1" {
		t.Errorf("audit: %s", got)
	}
}
