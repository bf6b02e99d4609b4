package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

// filterForm is a filter as people type it, and as links carry it on.
type filterForm struct {
	Consumer, Class, Type, Group, Order, Text, From, To string
}

func readFilter(values url.Values) filterForm {
	get := func(name string) string { return strings.TrimSpace(values.Get(name)) }
	return filterForm{get("consumer"), get("class"), get("type"), get("group"), get("order"), get("text"), get("from"), get("to")}
}

// Query is the filter as part of a link.
func (f filterForm) Query() string {
	values := url.Values{}
	for _, field := range f.fields() {
		if field[1] != "" {
			values.Set(field[0], field[1])
		}
	}
	return values.Encode()
}

// Hidden are the fields of the filter that are set, for a form that works on what it picks.
func (f filterForm) Hidden() [][2]string {
	var set [][2]string
	for _, field := range f.fields() {
		if field[1] != "" {
			set = append(set, field)
		}
	}
	return set
}

func (f filterForm) fields() [][2]string {
	return [][2]string{
		{"consumer", f.Consumer}, {"class", f.Class}, {"type", f.Type}, {"group", f.Group}, {"order", f.Order}, {"text", f.Text}, {"from", f.From}, {"to", f.To},
	}
}

// filter returns a domain.FieldError for what cannot be read.
func (f filterForm) filter() (postgres.ParkedFilter, error) {
	filter := postgres.ParkedFilter{Consumer: f.Consumer, Class: f.Class, Type: f.Type, GroupID: f.Group, Text: f.Text}
	var orderErr, fromErr, toErr error
	if f.Order != "" {
		filter.OrderID, orderErr = domain.ParseOrderID(f.Order)
	}
	filter.From, fromErr = readTime("from", f.From)
	filter.To, toErr = readTime("to", f.To)
	return filter, errors.Join(reconciler.CheckFilter(filter), orderErr, fromErr, toErr)
}

// readTime takes what a browser's datetime field sends, in UTC, and RFC 3339.
func readTime(field, text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	if text == "" {
		return time.Time{}, nil
	}
	return time.Time{}, &domain.FieldError{Field: field, Got: text, Allowed: "a time in UTC, such as 2026-01-31T12:00"}
}

// parkedPage is groups, messages and what can be done to them.
type parkedPage struct {
	Filter   filterForm
	Status   string
	Problem  string // of the filter
	Groups   []postgres.ParkedGroup
	Total    int // open messages that the filter picks
	Messages []postgres.ParkedMessage
	Next     string
	Statuses []postgres.ParkedStatus
}

func (c *Console) listParked(w http.ResponseWriter, r *http.Request) error {
	p := parkedPage{Filter: readFilter(r.URL.Query()), Status: r.URL.Query().Get("status"), Statuses: postgres.ParkedStatuses}
	filter, err := p.Filter.filter()
	query := postgres.ParkedQuery{Filter: filter, Limit: pageSize + 1}
	var statusErr error
	query.Status, query.All, statusErr = reconciler.ParseParkedStatus(p.Status)
	if err := errors.Join(err, statusErr); err != nil {
		p.Problem = err.Error()
		return c.showInvalid(w, r, "parked", "parked", "Parked", p)
	}
	if p.Groups, err = c.deps.Parked.Groups(r.Context(), filter); err != nil {
		return err
	}
	for _, g := range p.Groups {
		p.Total += g.Messages
	}
	if before := r.URL.Query().Get("before"); before != "" {
		id, err := uuid.Parse(before)
		if err != nil {
			return postgres.ErrParkedNotFound
		}
		query.Before = id.String()
	}
	if p.Messages, err = c.deps.Parked.List(r.Context(), query); err != nil {
		return err
	}
	if len(p.Messages) > pageSize {
		p.Messages = p.Messages[:pageSize]
		p.Next = p.Messages[pageSize-1].ID
	}
	return c.show(w, r, "parked", "parked", "Parked", p)
}

// messagePage is one parked message whole.
type messagePage struct {
	reconciler.ParkedJSON

	Draft   string // of the payload, in the edit form
	Problem string // of the edit
}

func (c *Console) showParked(w http.ResponseWriter, r *http.Request) error {
	m, err := c.parked(r)
	if err != nil {
		return err
	}
	return c.show(w, r, "message", "parked", "Parked message", messagePage{ParkedJSON: reconciler.ShowParked(m), Draft: draft(m)})
}

func (c *Console) parked(r *http.Request) (postgres.ParkedMessage, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return postgres.ParkedMessage{}, postgres.ErrParkedNotFound
	}
	return c.deps.Parked.Get(r.Context(), id.String())
}

// draft is what the edit form begins with: the payload, indented if it is JSON.
func draft(m postgres.ParkedMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, m.Replayed(), "", "  ") == nil {
		return out.String()
	}
	return strings.ToValidUTF8(string(m.Replayed()), "�")
}

func (c *Console) editParked(w http.ResponseWriter, r *http.Request) error {
	m, err := c.parked(r)
	if err != nil {
		return err
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	typed := r.PostFormValue("payload")
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(typed)); err != nil {
		compact.Reset()
		compact.WriteString(typed) // the contract says what is wrong with it
	}
	order, err := reconciler.CheckPayload(m.Consumer, compact.Bytes())
	if err == nil {
		err = c.deps.Parked.Edit(r.Context(), operator(r), m.ID, order, compact.Bytes())
	}
	var field *domain.FieldError
	switch {
	case errors.As(err, &field):
		return c.showInvalid(w, r, "message", "parked", "Parked message", messagePage{ParkedJSON: reconciler.ShowParked(m), Draft: typed, Problem: err.Error()})
	case err != nil:
		return err
	}
	if r.PostFormValue("replay") != "" {
		return c.start(w, r, postgres.ReplayRequest{Filter: postgres.ParkedFilter{IDs: []string{m.ID}}, Canaries: 1})
	}
	http.Redirect(w, r, "/parked/"+m.ID, http.StatusSeeOther)
	return nil
}

func (c *Console) discardParked(w http.ResponseWriter, r *http.Request) error {
	m, err := c.parked(r)
	if err != nil {
		return err
	}
	if err := c.discard(r, postgres.ParkedFilter{IDs: []string{m.ID}}); err != nil {
		return err
	}
	http.Redirect(w, r, "/parked/"+m.ID, http.StatusSeeOther)
	return nil
}

func (c *Console) discardSelection(w http.ResponseWriter, r *http.Request) error {
	filter, err := c.selected(r)
	if err != nil {
		return err
	}
	if err := c.discard(r, filter); err != nil {
		return err
	}
	http.Redirect(w, r, "/audit", http.StatusSeeOther)
	return nil
}

func (c *Console) discard(r *http.Request, filter postgres.ParkedFilter) error {
	reason := strings.TrimSpace(r.PostFormValue("reason"))
	if reason == "" || len(reason) > 1000 {
		return &domain.FieldError{Field: "reason", Got: strconv.Itoa(len(reason)) + " characters", Allowed: "1 to 1000: why it is discarded"}
	}
	_, err := c.deps.Parked.Discard(r.Context(), operator(r), filter, reason) // the audit tells how many
	return err
}

// selected reads what a form works on: one message, what a filter picks, or all.
func (c *Console) selected(r *http.Request) (postgres.ParkedFilter, error) {
	if err := r.ParseForm(); err != nil {
		return postgres.ParkedFilter{}, &domain.FieldError{Field: "form", Got: "what cannot be read", Allowed: "a form of this console"}
	}
	if id := r.PostForm.Get("id"); id != "" {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return postgres.ParkedFilter{}, postgres.ErrParkedNotFound
		}
		return postgres.ParkedFilter{IDs: []string{parsed.String()}}, nil
	}
	form := readFilter(r.PostForm)
	if len(form.Hidden()) == 0 && r.PostForm.Get("all") == "" {
		return postgres.ParkedFilter{}, &domain.FieldError{Field: "selection", Got: "nothing", Allowed: "a message, a filter, or all"}
	}
	return form.filter()
}
