package reconciler

import (
	"context"
	"encoding/binary"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

type replayJSON struct {
	Selection selectionJSON `json:"selection"`
	Canary    *int          `json:"canary,omitempty" minimum:"0" maximum:"1000" doc:"This many are sent first, and the rest only once all of them were handled. Default 1; 0 sends all at once."`
	Rate      float64       `json:"rate,omitempty" minimum:"0" maximum:"100000" doc:"Messages a second at most; 0 is as fast as it can."`
}

type startInput struct {
	By

	Body replayJSON
}

type runOutput struct {
	Body RunJSON
}

type startOutput struct {
	Location string `header:"Location" doc:"Where the run can be followed."`
	Body     RunJSON
}

func (a *api) addStart(h *httpapi.API) {
	one := 1
	httpapi.Add(h, httpapi.Call[startInput, startOutput]{
		Op: huma.Operation{
			OperationID: "startReplay", Method: http.MethodPost, Path: "/v1/replays", Tags: []string{tagReplays}, DefaultStatus: http.StatusCreated,
			Summary: "Replay messages",
			Description: "Each message goes to the consumer that failed, once in this run, if handling it still makes sense: one whose order is paid or closed by now is resolved without being sent. " +
				"The answer comes at once; a reconciler works the run off and resumes it after a crash. A run over all of nothing is done at once.",
		},
		Operator: true, Do: a.start,
		Request: replayJSON{Selection: selectionJSON{Filter: &FilterInput{Group: exampleGroup.ID}}, Canary: &one, Rate: 50}, Response: exampleRun,
		Refusals: []httpapi.Refusal{
			unknownParked,
			nothingPicked,
			{When: "Some of them are part of an open run.", Err: &postgres.InRunError{Messages: 3, RunID: exampleRun.ID}},
			{When: "A message that is named is settled already.", Err: postgres.ErrNotParked},
			{When: "A value cannot be accepted.", Err: &domain.FieldError{Field: "selection", Got: "none", Allowed: "one of ids, filter and all"}},
		},
	})
}

func (a *api) start(ctx context.Context, in *startInput) (*startOutput, error) {
	filter, err := in.Body.Selection.filter()
	if err != nil {
		return nil, err
	}
	request := postgres.ReplayRequest{Operator: in.name(), Filter: filter, Rate: in.Body.Rate, Canaries: 1}
	if in.Body.Canary != nil {
		request.Canaries = *in.Body.Canary
	}
	if err := CheckReplay(request); err != nil {
		return nil, err
	}
	work, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	run, err := a.deps.Replays.Start(work, request)
	if err != nil {
		return nil, err
	}
	httpapi.Note(ctx, "run_id", run.ID)
	return &startOutput{Location: "/v1/replays/" + run.ID, Body: ShowRun(run)}, nil
}

type listRunsInput struct {
	httpapi.Page
}

type listRunsOutput struct {
	Body list[RunJSON]
}

func (a *api) addListRuns(h *httpapi.API) {
	next := *encodeID(runCursor, exampleRun.ID)
	httpapi.Add(h, httpapi.Call[listRunsInput, listRunsOutput]{
		Op: huma.Operation{
			OperationID: "listReplays", Method: http.MethodGet, Path: "/v1/replays", Tags: []string{tagReplays},
			Summary: "List replay runs", Description: "Newest first.",
		},
		Operator: true, Do: a.listRuns, Response: list[RunJSON]{Items: []RunJSON{exampleRun}, NextCursor: &next},
		Refusals: []httpapi.Refusal{{When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")}},
	})
}

func (a *api) listRuns(ctx context.Context, in *listRunsInput) (*listRunsOutput, error) {
	before, err := decodeID(runCursor, in.Cursor)
	if err != nil {
		return nil, err
	}
	runs, err := a.deps.Replays.List(ctx, before, in.Fetch())
	if err != nil {
		return nil, err
	}
	runs, next := httpapi.Cut(in.Page, runs, func(r postgres.Run) *string { return encodeID(runCursor, r.ID) })
	return &listRunsOutput{Body: list[RunJSON]{Items: showAll(runs, ShowRun), NextCursor: next}}, nil
}

var unknownRun = httpapi.Refusal{When: "No replay run has this id.", Err: postgres.ErrRunNotFound}

func (a *api) addGetRun(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[PathID, runOutput]{
		Op: huma.Operation{
			OperationID: "getReplay", Method: http.MethodGet, Path: "/v1/replays/{id}", Tags: []string{tagReplays},
			Summary: "Follow a run", Description: "Its progress: total is the sum of all outcomes.",
		},
		Operator: true, Do: a.getRun, Response: exampleRun, Refusals: []httpapi.Refusal{unknownRun},
	})
}

func (a *api) getRun(ctx context.Context, in *PathID) (*runOutput, error) {
	id, err := in.parse(ctx, "run_id")
	if err != nil {
		return nil, err
	}
	run, err := a.deps.Replays.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &runOutput{Body: ShowRun(run)}, nil
}

type itemsInput struct {
	PathID
	httpapi.Page

	Outcome string `query:"outcome" enum:"waiting,sent,handled,failed_again,resolved,skipped,unknown" doc:"Only messages with this outcome."`
}

type itemsOutput struct {
	Body list[ItemJSON]
}

func (a *api) addItems(h *httpapi.API) {
	next := *encodeID(itemCursor, exampleParked.ID)
	httpapi.Add(h, httpapi.Call[itemsInput, itemsOutput]{
		Op: huma.Operation{
			OperationID: "listReplayMessages", Method: http.MethodGet, Path: "/v1/replays/{id}/messages", Tags: []string{tagReplays},
			Summary: "List the messages of a run", Description: "In the order in which they are sent, each with its outcome.",
		},
		Operator: true, Do: a.items, Response: list[ItemJSON]{Items: []ItemJSON{exampleItem}, NextCursor: &next},
		Refusals: []httpapi.Refusal{unknownRun, {When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")}},
	})
}

func (a *api) items(ctx context.Context, in *itemsInput) (*itemsOutput, error) {
	id, err := in.parse(ctx, "run_id")
	if err != nil {
		return nil, err
	}
	after, err := decodeID(itemCursor, in.Cursor)
	if err != nil {
		return nil, err
	}
	if _, err := a.deps.Replays.Get(ctx, id); err != nil {
		return nil, err
	}
	items, err := a.deps.Replays.Items(ctx, id, in.Outcome, after, in.Fetch())
	if err != nil {
		return nil, err
	}
	items, next := httpapi.Cut(in.Page, items, func(o postgres.ReplayOutcome) *string { return encodeID(itemCursor, o.Parked.ID) })
	return &itemsOutput{Body: list[ItemJSON]{Items: showAll(items, ShowItem), NextCursor: next}}, nil
}

type stopInput struct {
	PathID
	By
}

func (a *api) addStop(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[stopInput, runOutput]{
		Op: huma.Operation{
			OperationID: "stopReplay", Method: http.MethodPost, Path: "/v1/replays/{id}/stop", Tags: []string{tagReplays},
			Summary: "Stop a run", Description: "What was not sent stays parked; what was sent is still awaited. Stopping a run that is finished changes nothing.",
		},
		Operator: true, Do: a.stop, Response: exampleRun, Refusals: []httpapi.Refusal{unknownRun},
	})
}

func (a *api) stop(ctx context.Context, in *stopInput) (*runOutput, error) {
	id, err := in.parse(ctx, "run_id")
	if err != nil {
		return nil, err
	}
	work, cancel := httpapi.Uninterrupted(ctx)
	defer cancel()
	if err := a.deps.Replays.Stop(work, in.name(), id); err != nil {
		return nil, err
	}
	return a.getRun(ctx, &in.PathID)
}

type auditInput struct {
	httpapi.Page
}

type auditOutput struct {
	Body list[AuditJSON]
}

func (a *api) addAudit(h *httpapi.API) {
	httpapi.Add(h, httpapi.Call[auditInput, auditOutput]{
		Op: huma.Operation{
			OperationID: "listAudit", Method: http.MethodGet, Path: "/v1/audit", Tags: []string{tagHealth},
			Summary: "List who did what", Description: "Newest first. Entries are kept for good.",
		},
		Operator: true, Do: a.audit, Response: list[AuditJSON]{Items: []AuditJSON{exampleAudit}},
		Refusals: []httpapi.Refusal{{When: "A parameter cannot be accepted.", Err: httpapi.BadCursor("abc")}},
	})
}

func (a *api) audit(ctx context.Context, in *auditInput) (*auditOutput, error) {
	raw, err := httpapi.DecodeCursor(auditCursor, in.Cursor)
	if err != nil {
		return nil, err
	}
	var before uint64
	if raw != nil {
		if len(raw) != 8 {
			return nil, httpapi.BadCursor(in.Cursor)
		}
		before = binary.BigEndian.Uint64(raw)
	}
	entries, err := a.deps.Audit.List(ctx, int64(before), in.Fetch())
	if err != nil {
		return nil, err
	}
	entries, next := httpapi.Cut(in.Page, entries, func(e postgres.AuditEntry) *string {
		return httpapi.EncodeCursor(auditCursor, binary.BigEndian.AppendUint64(nil, uint64(e.ID)))
	})
	return &auditOutput{Body: list[AuditJSON]{Items: showAll(entries, ShowAudit), NextCursor: next}}, nil
}
