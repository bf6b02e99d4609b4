package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// Audit tells who did what to failed messages. Entries are written in the transaction
// of what they tell of; the database refuses to change or delete one.
type Audit struct{ db *DB }

// NewAudit returns the store of the audit.
func NewAudit(db *DB) *Audit { return &Audit{db: db} }

// AuditEntry is one line of the audit.
type AuditEntry struct {
	ID       int64
	At       time.Time
	Operator string
	Action   string // edit, discard, replay, replay stopped, replay finished
	Subject  string // the message, the run, or in words what was picked
	Messages int    // how many it touched
	Outcome  string
	Detail   map[string]any
}

// List returns entries, the newest first; before is exclusive, 0 is from the newest.
func (s *Audit) List(ctx context.Context, before int64, limit int) ([]AuditEntry, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (e AuditEntry, err error) {
		err = row.Scan(&e.ID, &e.At, &e.Operator, &e.Action, &e.Subject, &e.Messages, &e.Outcome, &e.Detail)
		return e, err
	}, `
		SELECT id, at, operator, action, subject, messages, outcome, detail
		FROM audit WHERE $1 = 0 OR id < $1 ORDER BY id DESC LIMIT $2`, before, limit)
}

func writeAudit(ctx context.Context, tx pgx.Tx, e AuditEntry) error {
	if e.Detail == nil {
		e.Detail = map[string]any{}
	}
	for key, value := range e.Detail {
		if s, ok := value.(string); ok {
			e.Detail[key] = text(s)
		}
	}
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO audit (operator, action, subject, messages, outcome, detail) VALUES ($1, $2, $3, $4, $5, $6)`,
		text(e.Operator), e.Action, text(e.Subject), e.Messages, e.Outcome, detail)
	return err
}
