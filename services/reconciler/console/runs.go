package console

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

// runsPage is the list of replay runs.
type runsPage struct {
	Runs []postgres.Run
	Next string
}

func (c *Console) listRuns(w http.ResponseWriter, r *http.Request) error {
	before := r.URL.Query().Get("before")
	if before != "" {
		id, err := uuid.Parse(before)
		if err != nil {
			return postgres.ErrRunNotFound
		}
		before = id.String()
	}
	runs, err := c.deps.Replays.List(r.Context(), before, pageSize+1)
	if err != nil {
		return err
	}
	p := runsPage{Runs: runs}
	if len(runs) > pageSize {
		p.Runs = runs[:pageSize]
		p.Next = p.Runs[pageSize-1].ID
	}
	return c.show(w, r, "runs", "runs", "Replay runs", p)
}

// startRun begins a run over what a form picks.
func (c *Console) startRun(w http.ResponseWriter, r *http.Request) error {
	filter, err := c.selected(r)
	if err != nil {
		return err
	}
	request := postgres.ReplayRequest{Filter: filter}
	if request.Canaries, err = readNumber(r, "canary", strconv.Atoi); err != nil {
		return err
	}
	request.Rate, err = readNumber(r, "rate", func(text string) (float64, error) { return strconv.ParseFloat(text, 64) })
	if err != nil {
		return err
	}
	return c.start(w, r, request)
}

func (c *Console) start(w http.ResponseWriter, r *http.Request, request postgres.ReplayRequest) error {
	request.Operator = operator(r)
	if err := reconciler.CheckReplay(request); err != nil {
		return err
	}
	run, err := c.deps.Replays.Start(r.Context(), request)
	if err != nil {
		return err
	}
	http.Redirect(w, r, "/runs/"+run.ID, http.StatusSeeOther)
	return nil
}

// readNumber takes an empty field for 0.
func readNumber[N int | float64](r *http.Request, field string, parse func(string) (N, error)) (N, error) {
	text := strings.TrimSpace(r.PostFormValue(field))
	if text == "" {
		return 0, nil
	}
	n, err := parse(text)
	if err != nil {
		return 0, &domain.FieldError{Field: field, Got: text, Allowed: "a number"}
	}
	return n, nil
}

// runPage is one run with some of its messages.
type runPage struct {
	postgres.Run

	Outcome string // only messages with this one
	Items   []postgres.ReplayOutcome
	Next    string
}

func (c *Console) showRun(w http.ResponseWriter, r *http.Request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return postgres.ErrRunNotFound
	}
	p := runPage{Outcome: r.URL.Query().Get("outcome")}
	if p.Run, err = c.deps.Replays.Get(r.Context(), id.String()); err != nil {
		return err
	}
	after := r.URL.Query().Get("after")
	if after != "" {
		parsed, err := uuid.Parse(after)
		if err != nil {
			return postgres.ErrParkedNotFound
		}
		after = parsed.String()
	}
	if p.Items, err = c.deps.Replays.Items(r.Context(), p.ID, p.Outcome, after, pageSize+1); err != nil {
		return err
	}
	if len(p.Items) > pageSize {
		p.Items = p.Items[:pageSize]
		p.Next = p.Items[pageSize-1].Parked.ID
	}
	return c.show(w, r, "run", "runs", "Replay run", p)
}

func (c *Console) stopRun(w http.ResponseWriter, r *http.Request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return postgres.ErrRunNotFound
	}
	if err := c.deps.Replays.Stop(r.Context(), operator(r), id.String()); err != nil {
		return err
	}
	http.Redirect(w, r, "/runs/"+id.String(), http.StatusSeeOther)
	return nil
}

// auditPage is who did what.
type auditPage struct {
	Entries []postgres.AuditEntry
	Next    int64
}

func (c *Console) listAudit(w http.ResponseWriter, r *http.Request) error {
	var before int64
	if text := r.URL.Query().Get("before"); text != "" {
		var err error
		if before, err = strconv.ParseInt(text, 10, 64); err != nil || before < 0 {
			return &domain.FieldError{Field: "before", Got: text, Allowed: "a number of the list"}
		}
	}
	entries, err := c.deps.Audit.List(r.Context(), before, pageSize+1)
	if err != nil {
		return err
	}
	p := auditPage{Entries: entries}
	if len(entries) > pageSize {
		p.Entries = entries[:pageSize]
		p.Next = p.Entries[pageSize-1].ID
	}
	return c.show(w, r, "audit", "audit", "Audit", p)
}
