package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"example.com/ordertimeout/domain"
)

// ProblemContentType is that of every error answer.
const ProblemContentType = "application/problem+json"

// StatusClientGone is what the access log shows when the client did not wait for the
// answer. Nobody reads the answer, so it needs no registered code.
const StatusClientGone = 499

// ErrUnauthorized says: the operator's token is missing or wrong.
var ErrUnauthorized = errors.New("this call needs the operator's token")

// Problem is every error answer: problem details as of RFC 9457.
//
//nolint:errname // "problem" is the RFC's own word for it
type Problem struct {
	Type      string         `json:"type,omitempty" format:"uri" example:"urn:problem-type:invalid" doc:"What kind of problem it is, for programs. Absent where the status says it all."`
	Title     string         `json:"title" example:"Unprocessable Entity" doc:"The status in words."`
	Status    int            `json:"status" example:"422"`
	Detail    string         `json:"detail" example:"limit: got 0, allowed: 1 to 200" doc:"What happened here, for people."`
	RequestID string         `json:"request_id,omitempty" example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d" doc:"The same id stands in the service's log."`
	Errors    []ProblemField `json:"errors,omitempty" nullable:"false" doc:"The fields that cannot be accepted."`

	// Extra is a struct or nil. Its fields stand in the answer beside the ones above.
	Extra any `json:"-"`

	headers http.Header
}

// ProblemField names one field, what came and what is allowed.
type ProblemField struct {
	Field   string `json:"field" example:"limit" doc:"The field, query parameter or header, as the caller wrote it."`
	Message string `json:"message" example:"allowed: 1 to 200" doc:"What is allowed."`
	Value   any    `json:"value,omitempty" example:"0" doc:"What came, shortened if long."`
}

// NewProblem returns a problem whose status says it all; Kind, Header and Field add to it.
func NewProblem(status int, detail string) *Problem {
	title := http.StatusText(status)
	if status == StatusClientGone {
		title = "Client Closed Request"
	}
	return &Problem{Title: title, Status: status, Detail: detail}
}

// Kind says for programs what it is: sold-out becomes urn:problem-type:sold-out.
func (p *Problem) Kind(name string) *Problem {
	p.Type = "urn:problem-type:" + name
	return p
}

// Header adds a header to the answer.
func (p *Problem) Header(name, value string) *Problem {
	if p.headers == nil {
		p.headers = http.Header{}
	}
	p.headers.Set(name, value)
	return p
}

// Field adds a field that cannot be accepted. got is shortened if long; nil is left out.
func (p *Problem) Field(name string, got any, message string) *Problem {
	p.Errors = append(p.Errors, ProblemField{Field: name, Message: message, Value: shorten(got)})
	return p
}

// Error returns the detail. It, and the three methods behind it, let huma send a problem as it is.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is huma's.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders is huma's.
func (p *Problem) GetHeaders() http.Header { return p.headers }

// ContentType is huma's.
func (p *Problem) ContentType(string) string { return ProblemContentType }

// MarshalJSON writes the members of Extra behind all others.
func (p *Problem) MarshalJSON() ([]byte, error) {
	type plain Problem // without this method
	members, err := marshalPlain((*plain)(p))
	if err != nil || p.Extra == nil {
		return members, err
	}
	extra, err := marshalPlain(p.Extra)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(extra, []byte("{\"")) {
		return members, nil
	}
	members[len(members)-1] = ','
	return append(members, extra[1:]...), nil
}

// marshalPlain leaves it to the encoder around it whether HTML is escaped.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// problemFor is the one table from errors to HTTP answers, together with what the
// service adds to it. What nobody knows is a 500 that tells nothing about the inside.
func (a *API) problemFor(err error) *Problem {
	var (
		problem *Problem
		field   *domain.FieldError
	)
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.Is(err, context.Canceled):
		return NewProblem(StatusClientGone, "the client closed the request")
	case errors.Is(err, domain.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return NewProblem(http.StatusServiceUnavailable, "the service cannot answer right now; try again").Header("Retry-After", "1")
	}
	if a.known != nil {
		if p := a.known(err); p != nil {
			return p
		}
	}
	switch {
	case errors.Is(err, ErrUnauthorized):
		return NewProblem(http.StatusUnauthorized, err.Error()).Header("WWW-Authenticate", `Bearer realm="operator"`)
	case errors.Is(err, domain.ErrOrderNotFound):
		return NewProblem(http.StatusNotFound, "no order has this id").Kind("unknown-order")
	case errors.As(err, &field):
		return NewProblem(http.StatusUnprocessableEntity, field.Error()).Kind("invalid").Field(field.Field, field.Got, "allowed: "+field.Allowed)
	default:
		return NewProblem(http.StatusInternalServerError, "the service failed; its log tells more under this request_id")
	}
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
