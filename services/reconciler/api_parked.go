package reconciler

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

// FilterInput picks parked messages; what is absent picks all.
type FilterInput struct {
	Consumer string    `query:"consumer" json:"consumer,omitempty" enum:"closer,notifier" doc:"Whose handler failed."`
	Class    string    `query:"class" json:"class,omitempty" maxLength:"100" doc:"Class of the error." example:"transient"`
	Type     string    `query:"type" json:"type,omitempty" maxLength:"255" doc:"Type of the event." example:"order.timeout"`
	Group    string    `query:"group" json:"group,omitempty" maxLength:"64" doc:"Id of a group."`
	OrderID  string    `query:"order_id" json:"order_id,omitempty" format:"uuid" doc:"Messages of this order."`
	Text     string    `query:"text" json:"text,omitempty" maxLength:"200" doc:"Text in the error, whatever its case, or in the payload."`
	From     time.Time `query:"from" json:"from,omitzero" doc:"Last failed at or after this time."`
	To       time.Time `query:"to" json:"to,omitzero" doc:"Last failed before this time."`
}

func (in FilterInput) filter() (postgres.ParkedFilter, error) {
	f := postgres.ParkedFilter{Consumer: in.Consumer, Class: in.Class, Type: in.Type, GroupID: in.Group, Text: in.Text, From: in.From, To: in.To}
	if in.OrderID == "" {
		return f, nil
	}
	var err error
	f.OrderID, err = domain.ParseOrderID(in.OrderID)
	return f, err
}

// selectionJSON says what a replay or a discard works on: exactly one of its members.
type selectionJSON struct {
	IDs    []string     `json:"ids,omitempty" maxItems:"1000" doc:"These messages."`
	Filter *FilterInput `json:"filter,omitempty" doc:"What this filter picks; a group is a filter too."`
	All    bool         `json:"all,omitempty" doc:"Everything that is parked."`
}

func (s selectionJSON) filter() (postgres.ParkedFilter, error) {
	switch {
	case len(s.IDs) > 0 && s.Filter == nil && !s.All:
		return idFilter(s.IDs)
	case len(s.IDs) == 0 && s.Filter != nil && !s.All:
		if *s.Filter == (FilterInput{}) {
			return postgres.ParkedFilter{}, &domain.FieldError{Field: "selection.filter", Got: "no condition", Allowed: "at least one; all is said by \"all\": true"}
		}
		return s.Filter.filter()
	case len(s.IDs) == 0 && s.Filter == nil && s.All:
		return postgres.ParkedFilter{}, nil
	default:
		return postgres.ParkedFilter{}, &domain.FieldError{Field: "selection", Got: s.given(), Allowed: "one of ids, filter and all"}
	}
}

// given names the members that are set.
func (s selectionJSON) given() string {
	var names []string
	for name, set := range map[string]bool{"ids": len(s.IDs) > 0, "filter": s.Filter != nil, "all": s.All} {
		if set {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

func idFilter(texts []string) (postgres.ParkedFilter, error) {
	var f postgres.ParkedFilter
	for _, text := range texts {
		id, err := uuid.Parse(text)
		if err != nil {
			return f, &domain.FieldError{Field: "selection.ids", Got: text, Allowed: "UUIDs"}
		}
		f.IDs = append(f.IDs, id.String())
	}
	return f, nil
}

type listParkedInput struct {
	httpapi.Page
	FilterInput

	Status string `query:"status" enum:"open,all,parked,replaying,handled,failed_again,resolved,discarded" default:"open" doc:"Where they stand; open is parked and replaying."`
}

type listParkedOutput struct {
	Body list[ParkedSummaryJSON]
}

func (a *api) addListParked(h *httpapi.API) {
	next := *encodeID(parkedCursor, exampleParked.ID)
	httpapi.Add(h, httpapi.Call[listParkedInput, listParkedOutput]{
		Op: huma.Operation{
			OperationID: "listParked", Method: http.MethodGet, Path: "/v1/parked", Tags: []string{tagParked},
			Summary: "List parked messages", Description: "Newest first, without payloads.",
		},
		Operator: true, Do: a.listParked,
		Response: list[ParkedSummaryJSON]{Items: []ParkedSummaryJSON{exampleParked.ParkedSummaryJSON}, NextCursor: &next},
		Refusals: []httpapi.Refusal{{When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")}},
	})
}

func (a *api) listParked(ctx context.Context, in *listParkedInput) (*listParkedOutput, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	before, err := decodeID(parkedCursor, in.Cursor)
	if err != nil {
		return nil, err
	}
	query := postgres.ParkedQuery{Filter: filter, Limit: in.Fetch(), Before: before}
	if query.Status, query.All, err = ParseParkedStatus(in.Status); err != nil {
		return nil, err
	}
	messages, err := a.deps.Parked.List(ctx, query)
	if err != nil {
		return nil, err
	}
	messages, next := httpapi.Cut(in.Page, messages, func(m postgres.ParkedMessage) *string { return encodeID(parkedCursor, m.ID) })
	return &listParkedOutput{Body: list[ParkedSummaryJSON]{Items: showAll(messages, ShowSummary), NextCursor: next}}, nil
}

type groupsOutput struct {
	Body list[GroupJSON]
}

func (a *api) addGroups(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[FilterInput, groupsOutput]{
		Op: huma.Operation{
			OperationID: "listParkedGroups", Method: http.MethodGet, Path: "/v1/parked/groups", Tags: []string{tagParked},
			Summary: "Group what is open", Description: "By consumer, type and what the errors have in common; the largest first. All of them are in one answer.",
		},
		Operator: true, Do: a.groups,
		Response: list[GroupJSON]{Items: []GroupJSON{exampleGroup}},
		Refusals: []httpapi.Refusal{{When: "A parameter cannot be accepted.", Err: &domain.FieldError{Field: "order_id", Got: "1", Allowed: "a UUID"}}},
	})
}

func (a *api) groups(ctx context.Context, in *FilterInput) (*groupsOutput, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	groups, err := a.deps.Parked.Groups(ctx, filter)
	if err != nil {
		return nil, err
	}
	return &groupsOutput{Body: list[GroupJSON]{Items: showAll(groups, ShowGroup)}}, nil
}

type parkedOutput struct {
	Body ParkedJSON
}

var unknownParked = httpapi.Refusal{When: "No parked message has this id.", Err: postgres.ErrParkedNotFound}

func (a *api) addGetParked(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[PathID, parkedOutput]{
		Op: huma.Operation{
			OperationID: "getParked", Method: http.MethodGet, Path: "/v1/parked/{id}", Tags: []string{tagParked},
			Summary: "Look at one message whole", Description: "With its payload, headers and story, and the parkings before and after it.",
		},
		Operator: true, Do: a.getParked, Response: exampleParked,
		Refusals: []httpapi.Refusal{unknownParked},
	})
}

func (a *api) getParked(ctx context.Context, in *PathID) (*parkedOutput, error) {
	id, err := in.parse(ctx, "parked_id")
	if err != nil {
		return nil, err
	}
	m, err := a.deps.Parked.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &parkedOutput{Body: ShowParked(m)}, nil
}

type editInput struct {
	PathID
	By

	Body editJSON
}

type editJSON struct {
	Payload json.RawMessage `json:"payload" doc:"The whole event, as JSON."`
}

func (a *api) addEdit(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[editInput, parkedOutput]{
		Op: huma.Operation{
			OperationID: "editParked", Method: http.MethodPut, Path: "/v1/parked/{id}/payload", Tags: []string{tagParked},
			Summary:     "Edit what a replay sends",
			Description: "The payload is checked against the event contract first. The original is kept; the message keeps its id, so an edit and its replay are one message.",
		},
		Operator: true, Do: a.edit,
		Request: editJSON{Payload: json.RawMessage(exampleParked.Payload)}, Response: exampleParked,
		Refusals: []httpapi.Refusal{
			unknownParked,
			{When: "The message is part of an open run, or settled.", Err: postgres.ErrNotParked},
			{When: "The payload breaks the contract, or is about another order.", Err: &domain.FieldError{Field: "payload.order_id", Got: exampleParked.OrderID, Allowed: "an order that exists"}},
		},
	})
}

func (a *api) edit(ctx context.Context, in *editInput) (*parkedOutput, error) {
	id, err := in.parse(ctx, "parked_id")
	if err != nil {
		return nil, err
	}
	m, err := a.deps.Parked.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	order, err := CheckPayload(m.Consumer, in.Body.Payload)
	if err != nil {
		return nil, err
	}
	work, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	if err := a.deps.Parked.Edit(work, in.name(), id, order, in.Body.Payload); err != nil {
		return nil, err
	}
	return a.getParked(ctx, &in.PathID)
}

// DiscardJSON is why.
type DiscardJSON struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why. It is kept with each message and in the audit." example:"test data of last week"`
}

// check refuses a reason that says nothing.
func (d DiscardJSON) check() error {
	if strings.TrimSpace(d.Reason) == "" {
		return &domain.FieldError{Field: "reason", Got: d.Reason, Allowed: "a text"}
	}
	return nil
}

type discardOneInput struct {
	PathID
	By

	Body DiscardJSON
}

var nothingPicked = httpapi.Refusal{When: "No open message fits the filter.", Err: postgres.ErrNothingPicked}

var discardRefusals = []httpapi.Refusal{
	unknownParked,
	nothingPicked,
	{When: "Some of them are part of an open run.", Err: &postgres.InRunError{Messages: 3, RunID: exampleRun.ID}},
	{When: "A message that is named is settled already.", Err: postgres.ErrNotParked},
	{When: "The reason is empty.", Err: DiscardJSON{}.check()},
}

func (a *api) addDiscardOne(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[discardOneInput, parkedOutput]{
		Op: huma.Operation{
			OperationID: "discardParked", Method: http.MethodPost, Path: "/v1/parked/{id}/discard", Tags: []string{tagParked},
			Summary: "Discard one message", Description: "It is settled for good without being sent. It stays in the store, with the reason.",
		},
		Operator: true, Do: a.discardOne,
		Request: DiscardJSON{Reason: exampleReason}, Response: exampleParked, Refusals: discardRefusals,
	})
}

func (a *api) discardOne(ctx context.Context, in *discardOneInput) (*parkedOutput, error) {
	id, err := in.parse(ctx, "parked_id")
	if err != nil {
		return nil, err
	}
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	work, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	if _, err := a.deps.Parked.Discard(work, in.name(), postgres.ParkedFilter{IDs: []string{id}}, in.Body.Reason); err != nil {
		return nil, err
	}
	return a.getParked(ctx, &in.PathID)
}

type discardAllJSON struct {
	DiscardJSON

	Selection selectionJSON `json:"selection"`
}

type discardInput struct {
	By

	Body discardAllJSON
}

type discardedJSON struct {
	Discarded int `json:"discarded" doc:"How many messages."`
}

type discardOutput struct {
	Body discardedJSON
}

func (a *api) addDiscard(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[discardInput, discardOutput]{
		Op: huma.Operation{
			OperationID: "discardSelection", Method: http.MethodPost, Path: "/v1/discards", Tags: []string{tagParked},
			Summary: "Discard a group, a filter or all", Description: "All of them or none: with a message in an open run it is refused.",
		},
		Operator: true, Do: a.discard,
		Request:  discardAllJSON{DiscardJSON: DiscardJSON{Reason: exampleReason}, Selection: selectionJSON{Filter: &FilterInput{Group: exampleGroup.ID}}},
		Response: discardedJSON{Discarded: 12}, Refusals: discardRefusals,
	})
}

func (a *api) discard(ctx context.Context, in *discardInput) (*discardOutput, error) {
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	filter, err := in.Body.Selection.filter()
	if err != nil {
		return nil, err
	}
	work, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	n, err := a.deps.Parked.Discard(work, in.name(), filter, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	return &discardOutput{Body: discardedJSON{Discarded: n}}, nil
}
