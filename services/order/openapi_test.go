package order

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/ordertimeout/infra/httpapi"
)

type anyMap = map[string]any

func openDocument(t *testing.T) (*shop, anyMap) {
	t.Helper()
	s := broken(t, 0, func(context.Context) error { return nil })
	a := s.call("GET", "/openapi.json", nil)
	a.want(t, 200)
	var doc anyMap
	if err := json.Unmarshal(a.body, &doc); err != nil {
		t.Fatal(err)
	}
	return s, doc
}

func TestDocumentListsEveryCallAndNothingElse(t *testing.T) {
	t.Parallel()
	_, doc := openDocument(t)
	want := []string{
		"get /v1/orders", "get /v1/orders/{id}", "get /v1/stock", "post /v1/orders", "post /v1/orders/{id}/extension",
		"post /v1/payments", "put /v1/stock/{sku}",
	}
	var got []string
	for path, item := range doc["paths"].(anyMap) {
		for method := range item.(anyMap) {
			got = append(got, method+" "+path)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if doc["openapi"] != "3.1.0" {
		t.Errorf("version %v", doc["openapi"])
	}
}

func TestEveryOperationIsDocumented(t *testing.T) {
	t.Parallel()
	_, doc := openDocument(t)
	operator := []string{"extendOrder", "listStock", "setStock"}
	for path, item := range doc["paths"].(anyMap) {
		for method, o := range item.(anyMap) {
			op := o.(anyMap)
			t.Run(method+" "+path, func(t *testing.T) {
				for _, key := range []string{"operationId", "summary", "description", "tags"} {
					if op[key] == nil || op[key] == "" {
						t.Errorf("no %s", key)
					}
				}
				responses := op["responses"].(anyMap)
				statuses := []string{"500", "503", "422"}
				if method != "get" {
					statuses = append(statuses, "400", "408", "413", "415")
					if at(t, op, "requestBody", "content", "application/json", "example") == nil {
						t.Error("no example of the body")
					}
					if at(t, op, "requestBody", "content", "application/json", "schema") == nil {
						t.Error("no schema of the body")
					}
				}
				if slices.Contains(operator, op["operationId"].(string)) {
					statuses = append(statuses, "401")
					if at(t, op, "security", "0", "operator") == nil {
						t.Error("no mark that it needs the operator's token")
					}
				}
				for _, status := range statuses {
					if responses[status] == nil {
						t.Errorf("no answer %s", status)
					}
				}
				for status, r := range responses {
					contentType := httpapi.ProblemContentType
					if status < "400" {
						contentType = "application/json"
					}
					media := at(t, r, "content", contentType).(anyMap)
					if media["schema"] == nil || (media["example"] == nil && media["examples"] == nil) {
						t.Errorf("answer %s has no schema or no example", status)
					}
				}
				for _, p := range asList(op["parameters"]) {
					if param := p.(anyMap); param["description"] == nil && at(t, param, "schema", "pattern") == nil {
						t.Errorf("parameter %v is not described", param["name"])
					}
				}
			})
		}
	}
}

func TestWebhookHeadersAreDocumented(t *testing.T) {
	t.Parallel()
	_, doc := openDocument(t)
	var got []string
	for _, p := range asList(at(t, doc, "paths", "/v1/payments", "post", "parameters")) {
		if param := p.(anyMap); param["in"] == "header" && param["required"] == true {
			got = append(got, param["name"].(string))
		}
	}
	if want := []string{"webhook-id", "webhook-timestamp", "webhook-signature"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	text := at(t, doc, "paths", "/v1/orders", "post", "description").(string)
	if !strings.Contains(text, "Without a key, two equal requests place two orders") {
		t.Errorf("placing without a key is not explained: %s", text)
	}
}

// Every reference leads somewhere, every schema is referred to, and every named
// security scheme exists.
func TestDocumentIsConsistent(t *testing.T) {
	t.Parallel()
	s, doc := openDocument(t)
	schemas := at(t, doc, "components", "schemas").(anyMap)
	used := map[string]bool{}
	walk(doc, func(key string, value any) {
		ref, isText := value.(string)
		if key != "$ref" || !isText {
			return
		}
		name, ok := strings.CutPrefix(ref, "#/components/schemas/")
		if !ok || schemas[name] == nil {
			t.Errorf("reference to %q leads nowhere", ref)
		}
		used[name] = true
	})
	for name := range schemas {
		if !used[name] {
			t.Errorf("schema %s is not used", name)
		}
		if strings.Contains(name, "JSON") {
			t.Errorf("schema %s has an internal name", name)
		}
	}
	ids := map[string]bool{}
	walk(doc["paths"], func(key string, value any) {
		if key != "operationId" {
			return
		}
		if id := fmt.Sprint(value); ids[id] {
			t.Errorf("operation %s twice", id)
		} else {
			ids[id] = true
		}
	})
	schemes := at(t, doc, "components", "securitySchemes").(anyMap)
	if at(t, schemes, "operator", "scheme") != "bearer" || schemes["webhookSignature"] == nil {
		t.Errorf("security schemes: %v", schemes)
	}
	yaml := s.call("GET", "/openapi.yaml", nil)
	yaml.want(t, 200)
	if !strings.Contains(string(yaml.body), "openapi: 3.1.0") {
		t.Errorf("YAML begins %.100s", yaml.body)
	}
}

// The required and nullable fields of what is sent, as a client generator sees them.
func TestSchemasTellTheTruth(t *testing.T) {
	t.Parallel()
	_, doc := openDocument(t)
	schemas := at(t, doc, "components", "schemas").(anyMap)
	if got := asList(at(t, schemas, "PlaceOrder", "required")); len(got) != 3 {
		t.Errorf("required to place an order: %v", got)
	}
	if got := asList(at(t, schemas, "Extension", "required")); len(got) != 0 {
		t.Errorf("required to extend: %v", got)
	}
	for _, path := range [][]string{
		{"SetStock", "available"}, {"Stock", "available"}, {"Order", "paid_at"}, {"Order", "closed_at"}, {"Order", "closed_by"},
		{"OrderList", "next_cursor"}, {"PaymentResult", "refund_reason"},
	} {
		if types := asList(at(t, schemas, path[0], "properties", path[1], "type")); !slices.Contains(types, any("null")) {
			t.Errorf("%v cannot be null: %v", path, types)
		}
	}
	for _, path := range [][]string{{"Order", "lines"}, {"OrderList", "items"}, {"StockList", "items"}} {
		if got := at(t, schemas, path[0], "properties", path[1], "type"); got != "array" {
			t.Errorf("%v: %v", path, got)
		}
	}
	if at(t, schemas, "Payment", "additionalProperties") != true {
		t.Error("a payment cannot have further fields")
	}
}

// at follows keys, and indexes of lists, into a document; nil where it ends early.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, key := range path {
		switch node := v.(type) {
		case anyMap:
			v = node[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(node) {
				return nil
			}
			v = node[i]
		default:
			return nil
		}
	}
	return v
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

func walk(v any, visit func(key string, value any)) {
	switch node := v.(type) {
	case anyMap:
		for key, value := range node {
			visit(key, value)
			walk(value, visit)
		}
	case []any:
		for _, value := range node {
			walk(value, visit)
		}
	}
}
