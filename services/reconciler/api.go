package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
	"example.com/ordertimeout/infra/postgres"
)

// ParkedMessages is the store of parked messages; see postgres.Parked.
type ParkedMessages interface {
	List(ctx context.Context, q postgres.ParkedQuery) ([]postgres.ParkedMessage, error)
	Groups(ctx context.Context, f postgres.ParkedFilter) ([]postgres.ParkedGroup, error)
	Get(ctx context.Context, id string) (postgres.ParkedMessage, error)
	Edit(ctx context.Context, operator, id string, order domain.OrderID, payload []byte) error
	Discard(ctx context.Context, operator string, f postgres.ParkedFilter, reason string) (int, error)
}

// ReplayRuns is the store of replay runs as operators use it; see postgres.Replays.
type ReplayRuns interface {
	Start(ctx context.Context, r postgres.ReplayRequest) (postgres.Run, error)
	Get(ctx context.Context, id string) (postgres.Run, error)
	List(ctx context.Context, before string, limit int) ([]postgres.Run, error)
	Items(ctx context.Context, runID, outcome, after string, limit int) ([]postgres.ReplayOutcome, error)
	Stop(ctx context.Context, operator, runID string) error
}

// AuditLog is the store of the audit; see postgres.Audit.
type AuditLog interface {
	List(ctx context.Context, before int64, limit int) ([]postgres.AuditEntry, error)
}

// APIConfig is what the operator's interface reads from the environment.
type APIConfig struct {
	Addr          string `env:"CONSOLE_ADDR" envDefault:":8081"`
	OperatorToken string `env:"OPERATOR_TOKEN,required,notEmpty"`
}

// Validate returns a domain.FieldError that names the variable and never shows the token.
func (c APIConfig) Validate() error {
	return errors.Join(httpapi.ValidateAddr("CONSOLE_ADDR", c.Addr), httpapi.ValidateToken("OPERATOR_TOKEN", c.OperatorToken))
}

// APIDeps is what the operator's interface works with. Nothing may be nil.
type APIDeps struct {
	Parked  ParkedMessages
	Replays ReplayRuns
	Audit   AuditLog
	Drift   func(context.Context) (Drift, error)
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Version string
}

// api answers operators.
type api struct{ deps APIDeps }

// apiTimeout bounds one call, below the server's own limit for an answer. Beginning a run
// over a hundred thousand messages takes some seconds.
const apiTimeout = 25 * time.Second

const apiDescription = `Shows what failed, and repairs it: parked messages, replay runs, drift between orders and timers, and who did what.

**Conventions.** Times are RFC 3339 in UTC. Lists are ` + "`{\"items\": [...], \"next_cursor\": ...}`" + `.

` + httpapi.AboutErrors + `

**Access.** Every call needs ` + "`Authorization: Bearer`" + ` with the operator's token. ` + "`Operator`" + ` is the name that the audit keeps.`

const (
	tagParked  = "Parked messages"
	tagReplays = "Replay runs"
	tagHealth  = "Drift and audit"
)

// NewAPI returns the operator's interface. Pages are added beside it.
func NewAPI(config APIConfig, deps APIDeps) (*httpapi.API, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	a := &api{deps: deps}
	return httpapi.New(httpapi.Config{
		Title:         "Reconciler",
		Description:   apiDescription,
		Version:       deps.Version,
		Tags:          []string{tagParked, tagReplays, tagHealth},
		OperatorToken: config.OperatorToken,
		Problem:       problemFor,
		Log:           deps.Log,
		Metrics:       deps.Metrics,
		Timeout:       apiTimeout,
		MaxBody:       2 * maxPayload, // an edited payload, written as JSON
		OwnHome:       true,
	}, a.addListParked, a.addGroups, a.addGetParked, a.addEdit, a.addDiscardOne, a.addDiscard,
		a.addStart, a.addListRuns, a.addGetRun, a.addItems, a.addStop, a.addDrift, a.addAudit)
}

// problemFor is the table from errors to HTTP answers, as far as httpapi does not have
// it already.
func problemFor(err error) *httpapi.Problem {
	var inRun *postgres.InRunError
	switch {
	case errors.Is(err, postgres.ErrParkedNotFound):
		return httpapi.NewProblem(http.StatusNotFound, err.Error()).Kind("unknown-parked-message")
	case errors.Is(err, postgres.ErrRunNotFound):
		return httpapi.NewProblem(http.StatusNotFound, err.Error()).Kind("unknown-replay-run")
	case errors.Is(err, postgres.ErrNothingPicked):
		return httpapi.NewProblem(http.StatusNotFound, err.Error()).Kind("nothing-picked")
	case errors.As(err, &inRun):
		return httpapi.NewProblem(http.StatusConflict, inRun.Error()).Kind("in-replay-run")
	case errors.Is(err, postgres.ErrNotParked):
		return httpapi.NewProblem(http.StatusConflict, err.Error()).Kind("not-parked")
	default:
		return nil
	}
}

// By is who calls, as the audit keeps it.
type By struct {
	Operator string `header:"Operator" maxLength:"100" doc:"Who you are, for the audit." example:"ada"`
}

func (b By) name() string {
	if b.Operator == "" {
		return "operator"
	}
	return b.Operator
}

// PathID is the id in a path.
type PathID struct {
	ID string `path:"id" format:"uuid" example:"0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"`
}

// parse returns the id in the form in which it is stored.
func (in PathID) parse(ctx context.Context, note string) (string, error) {
	id, err := uuid.Parse(in.ID)
	if err != nil {
		return "", &domain.FieldError{Field: "id", Got: in.ID, Allowed: "a UUID"}
	}
	httpapi.Note(ctx, note, id.String())
	return id.String(), nil
}

// The lists that a cursor can be of.
const (
	parkedCursor = 'p'
	runCursor    = 'r'
	itemCursor   = 'i'
	auditCursor  = 'a'
)

func encodeID(list byte, id string) *string {
	raw := uuid.MustParse(id) // the store's own
	return httpapi.EncodeCursor(list, raw[:])
}

// decodeID returns an empty id for an empty cursor.
func decodeID(list byte, cursor string) (string, error) {
	raw, err := httpapi.DecodeCursor(list, cursor)
	if raw == nil || err != nil {
		return "", err
	}
	id, err := uuid.FromBytes(raw)
	if err != nil {
		return "", httpapi.BadCursor(cursor)
	}
	return id.String(), nil
}

// list is every list's answer.
type list[T any] struct {
	Items      []T     `json:"items" nullable:"false"`
	NextCursor *string `json:"next_cursor" nullable:"true" doc:"Opaque; null on the last page."`
}

func showAll[T, V any](all []T, show func(T) V) []V {
	views := make([]V, len(all))
	for i, one := range all {
		views[i] = show(one)
	}
	return views
}
