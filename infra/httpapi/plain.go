package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
)

// writeProblem answers with a problem where huma is not in charge.
func writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.RequestID = RequestID(r.Context())
	maps.Copy(w.Header(), p.headers)
	w.Header().Set("Content-Type", ProblemContentType)
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
		writeProblem(w, r, NewProblem(ew.failed, plainDetail(ew.failed, r)))
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
