package httpapi

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
)

// problemTransformer turns the errors that huma makes itself into problems of the
// one shape, and puts the request's id into every problem.
func problemTransformer(ctx huma.Context, _ string, v any) (any, error) {
	if model, ok := v.(*huma.ErrorModel); ok {
		v = fromHuma(model)
	}
	if p, ok := v.(*Problem); ok {
		p.RequestID = RequestID(ctx.Context())
	}
	return v, nil
}

func fromHuma(model *huma.ErrorModel) *Problem {
	p := NewProblem(model.Status, model.Detail)
	if model.Status == http.StatusUnprocessableEntity {
		p = p.Kind("invalid")
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

func fieldFromHuma(e *huma.ErrorDetail) ProblemField {
	name := e.Location
	for _, place := range []string{"body.", "query.", "path.", "header."} {
		name = strings.TrimPrefix(name, place)
	}
	if missing, ok := strings.CutPrefix(e.Message, missingBefore); ok && strings.HasSuffix(missing, missingAfter) {
		missing = strings.TrimSuffix(missing, missingAfter)
		if name == "body" {
			return ProblemField{Field: missing, Message: "required"}
		}
		return ProblemField{Field: name + "." + missing, Message: "required"}
	}
	if m := notThisNumber.FindStringSubmatch(e.Message); m != nil {
		return ProblemField{Field: m[2], Message: "allowed: a whole number of 64 bits in plain digits", Value: shorten(m[1])}
	}
	return ProblemField{Field: name, Message: e.Message, Value: shorten(e.Value)}
}
