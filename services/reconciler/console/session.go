package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"example.com/ordertimeout/infra/httpapi"
)

const (
	cookieName = "ordertimeout_session"

	// sessionLength is a working day and a half shift: nobody signs in twice a day, and a
	// forgotten browser is locked out overnight.
	sessionLength = 12 * time.Hour

	maxName = 60 // characters of an operator's name

	// Signing in is slowed down for everybody together: a token cannot be guessed at one
	// attempt a second.
	signInsPerSecond = 1
	signInBurst      = 10
)

// sessions knows who is signed in by what the browser brings along: a name and a time
// of expiry, signed. Nothing is kept here, so any reconciler knows the others' people,
// and a new token signs everybody out.
type sessions struct {
	token   httpapi.TokenCheck
	key     []byte
	limiter *rate.Limiter
}

func newSessions(token string) sessions {
	mac := hmac.New(sha256.New, []byte(token))
	_, _ = mac.Write([]byte("console session")) // a hash takes everything
	return sessions{token: httpapi.NewTokenCheck(token), key: mac.Sum(nil), limiter: rate.NewLimiter(signInsPerSecond, signInBurst)}
}

// value is "name.expiry.signature", each in a form that a cookie can hold.
func (s sessions) value(name string, expires time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(name)) + "." + strconv.FormatInt(expires.Unix(), 10)
	return text + "." + s.sign(text)
}

func (s sessions) sign(text string) string {
	mac := hmac.New(sha256.New, s.key)
	_, _ = mac.Write([]byte(text)) // as above
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// who returns the name in a request's cookie, if the signature is ours and it has not
// expired.
func (s sessions) who(r *http.Request, now time.Time) (string, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return "", false
	}
	dot := strings.LastIndexByte(cookie.Value, '.')
	if dot < 0 || !hmac.Equal([]byte(cookie.Value[dot+1:]), []byte(s.sign(cookie.Value[:dot]))) {
		return "", false
	}
	encoded, expiry, _ := strings.Cut(cookie.Value[:dot], ".")
	expires, err := strconv.ParseInt(expiry, 10, 64)
	if err != nil || !now.Before(time.Unix(expires, 0)) {
		return "", false
	}
	name, err := base64.RawURLEncoding.DecodeString(encoded)
	return string(name), err == nil
}

func (s sessions) cookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
}

// signInForm is what the sign-in page shows.
type signInForm struct{ Name, Problem string }

func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request) {
	c.render(w, r, http.StatusOK, "signin", page{Title: "Sign in", Data: signInForm{}})
}

func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, form signInForm) {
		c.render(w, r, status, "signin", page{Title: "Sign in", Data: form})
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	name := strings.TrimSpace(r.PostFormValue("name"))
	switch {
	case !c.sessions.limiter.Allow():
		refuse(http.StatusTooManyRequests, signInForm{name, "Too many attempts. Wait some seconds."})
	case name == "" || utf8.RuneCountInString(name) > maxName || !utf8.ValidString(name):
		refuse(http.StatusUnprocessableEntity, signInForm{"", "Say who you are, in 60 characters at most: the audit keeps it."})
	case !c.sessions.token.Is(r.PostFormValue("token")):
		c.deps.Log.Warn("sign-in refused", "operator", name)
		refuse(http.StatusUnauthorized, signInForm{name, "That is not the operator's token."})
	default:
		c.deps.Log.Info("signed in", "operator", name)
		value := c.sessions.value(name, time.Now().Add(sessionLength))
		http.SetCookie(w, c.sessions.cookie(r, value, int(sessionLength.Seconds())))
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.sessions.cookie(r, "", -1))
	http.Redirect(w, r, "/signin", http.StatusSeeOther)
}
