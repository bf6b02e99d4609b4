package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"example.com/ordertimeout/domain"
)

// TokenCheck compares tokens in constant time. It keeps a hash, so neither content nor
// length of the right token shows in the time that a comparison takes. The zero value
// takes no token.
type TokenCheck [sha256.Size]byte

// NewTokenCheck takes the given token only, and none where it is empty.
func NewTokenCheck(token string) TokenCheck {
	if token == "" {
		return TokenCheck{}
	}
	return sha256.Sum256([]byte(token))
}

// Is reports whether token is the right one.
func (t TokenCheck) Is(token string) bool {
	came := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(t[:], came[:]) == 1
}

// Allows reports whether the request has the token as its bearer token.
func (t TokenCheck) Allows(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return t.Is(strings.TrimSpace(token)) && strings.EqualFold(scheme, "Bearer")
}

// operatorOnly refuses a request before its body is read.
func (a *API) operatorOnly(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if !a.operator.Allows(r) {
		writeProblem(w, r, a.problemFor(ErrUnauthorized))
		return
	}
	next(ctx)
}

// minTokenLength is short enough to type, long enough not to be guessed over a network.
const minTokenLength = 16

// ValidateToken returns a FieldError that names the variable and never shows the token.
func ValidateToken(variable, token string) error {
	if n := len(token); n < minTokenLength {
		return &domain.FieldError{
			Field: variable, Got: fmt.Sprintf("%d characters", n),
			Allowed: fmt.Sprintf("%d characters or more", minTokenLength),
		}
	}
	return nil
}

// ValidateAddr returns a FieldError that names the variable unless addr can be listened on.
func ValidateAddr(variable, addr string) error {
	bad := &domain.FieldError{Field: variable, Got: addr, Allowed: "host:port or :port, with a port from 0 to 65535"}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return bad
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return bad
	}
	return nil
}
