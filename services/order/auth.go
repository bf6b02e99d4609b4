package order

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// tokenCheck compares tokens in constant time. It keeps a hash, so neither content
// nor length of the right token shows in the time that a comparison takes.
type tokenCheck [sha256.Size]byte

func newTokenCheck(token string) tokenCheck { return sha256.Sum256([]byte(token)) }

func (t tokenCheck) allows(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	came := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(t[:], came[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// operatorOnly refuses a request before its body is read.
func (h *Handler) operatorOnly(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if !h.operator.allows(r) {
		writeProblem(w, r, problemFor(errUnauthorized))
		return
	}
	next(ctx)
}
