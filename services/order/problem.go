package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

const problemContentType = "application/problem+json"

// statusClientGone is what the access log shows when the client did not wait for the
// answer. Nobody reads the answer, so it needs no registered code.
const statusClientGone = 499

// errUnauthorized: the operator's token is missing or wrong.
var errUnauthorized = errors.New("this call needs the operator's token")

// problemError is every error answer: problem details as of RFC 9457.
type problemError struct {
	Type      string             `json:"type,omitempty" format:"uri" example:"urn:problem-type:sold-out" doc:"What kind of problem it is, for programs. Absent where the status says it all."`
	Title     string             `json:"title" example:"Conflict" doc:"The status in words."`
	Status    int                `json:"status" example:"409"`
	Detail    string             `json:"detail" example:"sku tea-black is sold out: requested 3, available 1" doc:"What happened here, for people."`
	RequestID string             `json:"request_id,omitempty" example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d" doc:"The same id stands in the service's log."`
	Errors    []problemFieldJSON `json:"errors,omitempty" nullable:"false" doc:"The fields that cannot be accepted."`
	SKU       string             `json:"sku,omitempty" example:"tea-black" doc:"Sold out: which SKU."`
	Requested *int64             `json:"requested,omitempty" nullable:"false" example:"3" doc:"Sold out: how many units were asked for."`
	Available *int64             `json:"available,omitempty" nullable:"false" example:"1" doc:"Sold out: how many units there are."`

	headers http.Header
}

// problemFieldJSON names one field, what came and what is allowed.
type problemFieldJSON struct {
	Field   string `json:"field" example:"lines[0].quantity" doc:"The field, query parameter or header, as the caller wrote it."`
	Message string `json:"message" example:"allowed: 1 to 1000000" doc:"What is allowed."`
	Value   any    `json:"value,omitempty" example:"0" doc:"What came, shortened if long."`
}

// Error, GetStatus, GetHeaders and ContentType let huma send a problem as it is.
func (p *problemError) Error() string             { return p.Detail }
func (p *problemError) GetStatus() int            { return p.Status }
func (p *problemError) GetHeaders() http.Header   { return p.headers }
func (p *problemError) ContentType(string) string { return problemContentType }

// problemFor is the one table from errors to HTTP answers. What it does not know is
// a 500 that tells nothing about the inside.
func problemFor(err error) *problemError {
	var (
		problem  *problemError
		field    *domain.FieldError
		soldOut  *domain.SoldOutError
		mismatch *domain.AmountMismatchError
	)
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.Is(err, context.Canceled):
		return newProblem(statusClientGone, "the client closed the request")
	case errors.Is(err, domain.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusServiceUnavailable, "the service cannot answer right now; try again").header("Retry-After", "1")
	case errors.Is(err, errUnauthorized):
		return newProblem(http.StatusUnauthorized, err.Error()).header("WWW-Authenticate", `Bearer realm="operator"`)
	case errors.Is(err, errSignature):
		return newProblem(http.StatusUnauthorized, err.Error()).header("WWW-Authenticate", "StandardWebhooks")
	case errors.As(err, &soldOut):
		p := newProblem(http.StatusConflict, soldOut.Error()).kind("sold-out")
		p.SKU, p.Requested, p.Available = soldOut.SKU, &soldOut.Requested, &soldOut.Available
		return p
	case errors.Is(err, domain.ErrNotPending):
		return newProblem(http.StatusConflict, err.Error()).kind("not-pending")
	case errors.Is(err, domain.ErrOrderNotFound):
		return newProblem(http.StatusNotFound, "no order has this id").kind("unknown-order")
	case errors.Is(err, postgres.ErrKeyReused):
		return newProblem(http.StatusUnprocessableEntity, "this idempotency key was used with another request").kind("idempotency-key-reused").
			field("Idempotency-Key", nil, "a new key for a new request, or the same request for the same key")
	case errors.As(err, &mismatch):
		return mismatchProblem(mismatch)
	case errors.As(err, &field):
		return newProblem(http.StatusUnprocessableEntity, field.Error()).kind("invalid").field(field.Field, field.Got, "allowed: "+field.Allowed)
	default:
		return newProblem(http.StatusInternalServerError, "the service failed; its log tells more under this request_id")
	}
}

func mismatchProblem(e *domain.AmountMismatchError) *problemError {
	p := newProblem(http.StatusUnprocessableEntity, e.Error()+"; nothing was recorded").kind("amount-mismatch")
	if e.Got != e.Want {
		p = p.field("amount", e.Got, fmt.Sprintf("allowed: %d, the order's total", e.Want))
	}
	if e.GotCurrency != e.WantCurrency {
		p = p.field("currency", string(e.GotCurrency), fmt.Sprintf("allowed: %s, the order's currency", e.WantCurrency))
	}
	return p
}

func newProblem(status int, detail string) *problemError {
	title := http.StatusText(status)
	if status == statusClientGone {
		title = "Client Closed Request"
	}
	return &problemError{Title: title, Status: status, Detail: detail, headers: http.Header{}}
}

func (p *problemError) kind(name string) *problemError {
	p.Type = "urn:problem-type:" + name
	return p
}

func (p *problemError) header(name, value string) *problemError {
	p.headers.Set(name, value)
	return p
}

func (p *problemError) field(name string, got any, message string) *problemError {
	p.Errors = append(p.Errors, problemFieldJSON{Field: name, Message: message, Value: shorten(got)})
	return p
}

// maxEcho bounds how much of a caller's own text an answer repeats.
const maxEcho = 100

func shorten(got any) any {
	switch v := got.(type) {
	case string:
		if len(v) > maxEcho {
			return strings.ToValidUTF8(v[:maxEcho], "") + "…"
		}
	case map[string]any, []any:
		text, err := json.Marshal(v)
		if err != nil || utf8.RuneCount(text) > maxEcho {
			return nil
		}
	}
	return got
}

// problemTransformer turns the errors that huma makes itself into problems of the
// one shape, and puts the request's id into every problem.
func problemTransformer(ctx huma.Context, _ string, v any) (any, error) {
	if model, ok := v.(*huma.ErrorModel); ok {
		v = fromHuma(model)
	}
	if p, ok := v.(*problemError); ok {
		p.RequestID = requestInfo(ctx.Context()).id
	}
	return v, nil
}

func fromHuma(model *huma.ErrorModel) *problemError {
	p := newProblem(model.Status, model.Detail)
	if model.Status == http.StatusUnprocessableEntity {
		p = p.kind("invalid")
	}
	for _, e := range model.Errors {
		p.Errors = append(p.Errors, fieldFromHuma(e))
	}
	if len(p.Errors) > 0 {
		p.Detail = p.Errors[0].Field + ": " + p.Errors[0].Message
	}
	return p
}

var (
	// A missing field is reported at the object that misses it.
	missingBefore, missingAfter, _ = strings.Cut(validation.MsgExpectedRequiredProperty, "%s")

	// JSON Schema takes 1.0 and 1e2 for integers, Go does not. The error of encoding/json
	// names the type and then the field.
	notThisNumber = regexp.MustCompile(`^json: cannot unmarshal number (\S+) into Go struct field \w+\.(\S+) of type \w+$`)
)

func fieldFromHuma(e *huma.ErrorDetail) problemFieldJSON {
	name := e.Location
	for _, place := range []string{"body.", "query.", "path.", "header."} {
		name = strings.TrimPrefix(name, place)
	}
	if missing, ok := strings.CutPrefix(e.Message, missingBefore); ok && strings.HasSuffix(missing, missingAfter) {
		missing = strings.TrimSuffix(missing, missingAfter)
		if name == "body" {
			return problemFieldJSON{Field: missing, Message: "required"}
		}
		return problemFieldJSON{Field: name + "." + missing, Message: "required"}
	}
	if m := notThisNumber.FindStringSubmatch(e.Message); m != nil {
		return problemFieldJSON{Field: m[2], Message: "allowed: a whole number of 64 bits in plain digits", Value: shorten(m[1])}
	}
	return problemFieldJSON{Field: name, Message: e.Message, Value: shorten(e.Value)}
}

// writeProblem answers with a problem where huma is not in charge.
func writeProblem(w http.ResponseWriter, r *http.Request, p *problemError) {
	p.RequestID = requestInfo(r.Context()).id
	maps.Copy(w.Header(), p.headers)
	w.Header().Set("Content-Type", problemContentType)
	w.WriteHeader(p.Status)
	if r.Method == http.MethodHead {
		return
	}
	if err := json.NewEncoder(w).Encode(p); err != nil {
		panic(http.ErrAbortHandler) // the client is gone; half an answer must not look whole
	}
}

// plainErrors lets h answer, and turns its error answers into problems; headers such
// as Allow stay.
func plainErrors(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ew := &errorWriter{ResponseWriter: w}
		h.ServeHTTP(ew, r)
		if ew.failed == 0 {
			return
		}
		for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Cache-Control"} {
			w.Header().Del(name)
		}
		writeProblem(w, r, newProblem(ew.failed, plainDetail(ew.failed, r)))
	})
}

func plainDetail(status int, r *http.Request) string {
	switch status {
	case http.StatusNotFound:
		return "nothing is at this path; /docs lists what there is"
	case http.StatusMethodNotAllowed:
		return r.Method + " is not possible here; the header Allow lists what is"
	default:
		return http.StatusText(status)
	}
}

// errorWriter holds back what an error answer says.
type errorWriter struct {
	http.ResponseWriter

	failed int // the error's status, 0 for a good answer
}

func (w *errorWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.failed = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *errorWriter) Write(b []byte) (int, error) {
	if w.failed != 0 {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}
