package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"example.com/ordertimeout/domain"
)

const jsonContentType = "application/json"

// AboutErrors is the paragraph of a description that explains error answers.
const AboutErrors = "**Errors** are problem details (RFC 9457, `application/problem+json`). `errors` names each field, what came and what is allowed; " +
	"`type` is for programs; `request_id` stands in the service's log too. A 503 can be repeated after `Retry-After` seconds."

func documentConfig(cfg Config) huma.Config {
	namer := func(t reflect.Type, hint string) string {
		return strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "JSON")
	}
	security := map[string]*huma.SecurityScheme{
		"operator": {Type: "http", Scheme: "bearer", Description: "The operator's token."},
	}
	maps.Copy(security, cfg.Security)
	tags := make([]*huma.Tag, len(cfg.Tags))
	for i, name := range cfg.Tags {
		tags[i] = &huma.Tag{Name: name}
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: cfg.Title, Version: cfg.Version, Description: cfg.Description},
			Tags:    tags,
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", namer),
				SecuritySchemes: security,
			},
		},
		Formats:                      map[string]huma.Format{jsonContentType: huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat:                jsonContentType,
		RejectUnknownQueryParameters: true, // a misspelt filter must not list everything
		Transformers:                 []huma.Transformer{problemTransformer},
	}
}

// problemSchema returns a reference to what a Problem looks like with the members that
// the service's own problems have.
func problemSchema(schemas huma.Registry, members any) *huma.Schema {
	ref := schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	if members != nil {
		more := huma.SchemaFromType(schemas, reflect.TypeOf(members))
		maps.Copy(schemas.SchemaFromRef(ref.Ref).Properties, more.Properties)
	}
	return ref
}

// addDocs serves a document that is written once. huma would write it at the first
// request, unguarded, and its page would load from other hosts.
func (a *API) addDocs(ownHome bool) error {
	doc := a.huma.OpenAPI()
	// huma's own error shapes are never sent: problemTransformer replaces them.
	schemas := doc.Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	asJSON, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("write OpenAPI document: %w", err)
	}
	asYAML, err := doc.YAML()
	if err != nil {
		return fmt.Errorf("write OpenAPI document: %w", err)
	}
	a.mux.Handle("GET /openapi.json", static("application/openapi+json", asJSON))
	a.mux.Handle("GET /openapi.yaml", static("application/openapi+yaml", asYAML))

	page := plainErrors(docsPage(doc.Info.Title))
	a.mux.Handle("GET /docs", page)
	a.mux.Handle("GET /docs/", page)
	if !ownHome {
		a.mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
	}
	return nil
}

func static(contentType string, content []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(content) // a client that is gone needs no answer
	})
}

// docsPage is Swagger UI from the binary. The policy keeps the browser from loading
// anything from elsewhere; the page itself brings an inline script and inline styles.
func docsPage(title string) http.Handler {
	ui := v5emb.NewHandlerWithConfig(swgui.Config{
		Title: title, SwaggerJSON: "/openapi.json", BasePath: "/docs/",
		SettingsUI: map[string]string{"defaultModelsExpandDepth": "1", "tryItOutEnabled": "true"},
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy",
			"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		ui.ServeHTTP(w, r)
	})
}

// Refusal documents one error of a call. The answer is what the table of errors makes
// of it, so document and service cannot differ.
type Refusal struct {
	When string
	Err  error
}

func (a *API) document(op *huma.Operation, operator bool, request, response any, refusals []Refusal) {
	if operator {
		op.Security = []map[string][]string{{"operator": {}}}
		refusals = append(refusals, Refusal{"The operator's token is missing or wrong.", ErrUnauthorized})
	}
	if request != nil {
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{jsonContentType: {Example: request}}}
		refusals = append(refusals,
			Refusal{"The body is not JSON.", NewProblem(http.StatusBadRequest, "body: invalid character 'x' looking for beginning of value")},
			Refusal{"The body did not come in time.", bodyTooSlow()},
			Refusal{"The body is too long.", bodyTooLong(a.maxBody)},
			Refusal{"The body's content type is not application/json.", NewProblem(http.StatusUnsupportedMediaType, "body: unknown content type: text/plain")},
		)
	}
	refusals = append(refusals,
		Refusal{"The service failed.", errors.New("an unknown error")},
		Refusal{"Something that the service needs is away, or too slow. Repeat after Retry-After seconds.", domain.ErrUnavailable},
	)
	good := op.DefaultStatus
	if good == 0 {
		good = http.StatusOK
	}
	answer := &huma.Response{Description: http.StatusText(good)}
	if response != nil {
		answer.Content = map[string]*huma.MediaType{jsonContentType: {Example: response}}
	}
	op.Responses = map[string]*huma.Response{strconv.Itoa(good): answer}
	for _, r := range refusals {
		a.addRefusal(op.Responses, r)
	}
}

func (a *API) addRefusal(responses map[string]*huma.Response, r Refusal) {
	p := a.problemFor(r.Err)
	status := strconv.Itoa(p.Status)
	if known := responses[status]; known != nil {
		known.Description += " " + r.When
		examples := known.Content[ProblemContentType].Examples
		examples[fmt.Sprintf("example%d", len(examples)+1)] = &huma.Example{Summary: r.When, Value: p}
		return
	}
	response := &huma.Response{
		Description: r.When,
		Headers:     map[string]*huma.Param{},
		Content: map[string]*huma.MediaType{ProblemContentType: {
			Schema:   a.problemSchema,
			Examples: map[string]*huma.Example{"example1": {Summary: r.When, Value: p}},
		}},
	}
	for name := range p.headers {
		response.Headers[name] = &huma.Param{Schema: &huma.Schema{Type: huma.TypeString}, Example: p.headers.Get(name)}
	}
	responses[status] = response
}
