package order

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"example.com/ordertimeout/domain"
)

const (
	tagOrders   = "Orders"
	tagPayments = "Payments"
	tagStock    = "Stock"

	jsonContentType = "application/json"

	badValue = "A value cannot be accepted." // why a call is refused, where nothing else needs saying
)

const apiDescription = `Places orders, takes their payments, and closes those that are not paid in time.

**Conventions.** Money is an integer in minor units with an ISO 4217 code. Times are RFC 3339 in UTC and come from the database's clock. Durations are Go's (` + "`30m`" + `). Ids are UUIDv7. Lists are ` + "`{\"items\": [...], \"next_cursor\": ...}`" + `.

**Errors** are problem details (RFC 9457, ` + "`application/problem+json`" + `). ` + "`errors`" + ` names each field, what came and what is allowed; ` + "`type`" + ` is for programs; ` + "`request_id`" + ` stands in the service's log too. A 503 can be repeated after ` + "`Retry-After`" + ` seconds.

**Access.** Calls with a lock need ` + "`Authorization: Bearer`" + ` with the operator's token; the payment webhook needs the provider's signature. Placing and looking up orders need neither: they are for the shop's own back end, which knows its buyers.`

// addAPI serves all calls, the document that describes them, and a page to browse it.
func (h *Handler) addAPI(version string) error {
	api := humago.New(h.mux, apiConfig(version))
	h.addPlace(api)
	h.addGet(api)
	h.addList(api)
	h.addPay(api)
	h.addExtend(api)
	h.addListStock(api)
	h.addSetStock(api)

	// huma's own error shapes are never sent: problemTransformer replaces them.
	schemas := api.OpenAPI().Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	return h.addDocs(api.OpenAPI())
}

func apiConfig(version string) huma.Config {
	namer := func(t reflect.Type, hint string) string {
		return strings.TrimSuffix(strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "JSON"), "Error")
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: "Order service", Version: version, Description: apiDescription},
			Tags:    []*huma.Tag{{Name: tagOrders}, {Name: tagPayments}, {Name: tagStock}},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", namer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"operator":         {Type: "http", Scheme: "bearer", Description: "The operator's token."},
					"webhookSignature": {Type: "apiKey", In: "header", Name: "webhook-signature", Description: "Standard Webhooks signature over id, timestamp and body."},
				},
			},
		},
		Formats:                      map[string]huma.Format{jsonContentType: huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat:                jsonContentType,
		RejectUnknownQueryParameters: true, // a misspelt filter must not list everything
		Transformers:                 []huma.Transformer{problemTransformer},
	}
}

// addDocs serves a document that is written once. huma would write it at the first
// request, unguarded, and its page would load from other hosts.
func (h *Handler) addDocs(doc *huma.OpenAPI) error {
	asJSON, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("write OpenAPI document: %w", err)
	}
	asYAML, err := doc.YAML()
	if err != nil {
		return fmt.Errorf("write OpenAPI document: %w", err)
	}
	h.mux.Handle("GET /openapi.json", static("application/openapi+json", asJSON))
	h.mux.Handle("GET /openapi.yaml", static("application/openapi+yaml", asYAML))

	page := plainErrors(docsPage(doc.Info.Title))
	h.mux.Handle("GET /docs", page)
	h.mux.Handle("GET /docs/", page)
	h.mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
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

// refusal documents one error of a call. The answer is what the table of errors makes
// of it, so document and service cannot differ.
type refusal struct {
	when string
	err  error
}

func document(api huma.API, op *huma.Operation, operator bool, request, response any, refusals []refusal) {
	if operator {
		op.Security = []map[string][]string{{"operator": {}}}
		refusals = append(refusals, refusal{"The operator's token is missing or wrong.", errUnauthorized})
	}
	if request != nil {
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{jsonContentType: {Example: request}}}
		refusals = append(refusals,
			refusal{"The body is not JSON.", newProblem(http.StatusBadRequest, "body: invalid character 'x' looking for beginning of value")},
			refusal{"The body did not come in time.", newProblem(http.StatusRequestTimeout, "the body did not come in time")},
			refusal{"The body is too long.", newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than the allowed %d bytes", maxBody))},
			refusal{"The body's content type is not application/json.", newProblem(http.StatusUnsupportedMediaType, "body: unknown content type: text/plain")},
		)
	}
	refusals = append(refusals,
		refusal{"The service failed.", errors.New("an unknown error")},
		refusal{"Something that the service needs is away, or too slow. Repeat after Retry-After seconds.", domain.ErrUnavailable},
	)
	good := op.DefaultStatus
	if good == 0 {
		good = http.StatusOK
	}
	op.Responses = map[string]*huma.Response{
		strconv.Itoa(good): {
			Description: http.StatusText(good),
			Content:     map[string]*huma.MediaType{jsonContentType: {Example: response}},
		},
	}
	schema := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[problemError](), true, "Problem")
	for _, r := range refusals {
		addRefusal(op.Responses, schema, r)
	}
}

func addRefusal(responses map[string]*huma.Response, schema *huma.Schema, r refusal) {
	p := problemFor(r.err)
	status := strconv.Itoa(p.Status)
	if known := responses[status]; known != nil {
		known.Description += " " + r.when
		examples := known.Content[problemContentType].Examples
		examples[fmt.Sprintf("example%d", len(examples)+1)] = &huma.Example{Summary: r.when, Value: p}
		return
	}
	response := &huma.Response{
		Description: r.when,
		Headers:     map[string]*huma.Param{},
		Content: map[string]*huma.MediaType{problemContentType: {
			Schema:   schema,
			Examples: map[string]*huma.Example{"example1": {Summary: r.when, Value: p}},
		}},
	}
	for name := range p.headers {
		response.Headers[name] = &huma.Param{Schema: &huma.Schema{Type: huma.TypeString}, Example: p.headers.Get(name)}
	}
	responses[status] = response
}

// The examples of the document.
const (
	exampleSKU      = "tea-black"
	exampleCurrency = "EUR"
)

var (
	exampleCreated = time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)

	examplePlacement = placeOrderJSON{
		Customer:      customerJSON{ID: "c-42", Email: "ada@example.com"},
		Currency:      exampleCurrency,
		Lines:         []lineJSON{{SKU: exampleSKU, Quantity: 2, UnitPrice: 500}, {SKU: "mug-blue", Quantity: 1, UnitPrice: 750}},
		PaymentWindow: "30m",
	}

	exampleOrder = orderJSON{
		ID:            "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d",
		Status:        "pending",
		Customer:      examplePlacement.Customer,
		Lines:         examplePlacement.Lines,
		TotalAmount:   1750,
		Currency:      exampleCurrency,
		PaymentWindow: "30m",
		DueAt:         exampleCreated.Add(30 * time.Minute),
		CreatedAt:     exampleCreated,
	}

	examplePayment = paymentJSON{PaymentID: "pay_1", OrderID: exampleOrder.ID, Amount: 1750, Currency: exampleCurrency}

	exampleAvailable = int64(98)
	exampleStock     = stockJSON{SKU: exampleSKU, Available: &exampleAvailable, Held: 2}
)
