package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// Parked stores the messages that need a person.
type Parked struct{ db *DB }

// NewParked returns the store of parked messages.
func NewParked(db *DB) *Parked { return &Parked{db: db} }

// ParkedStatus is where a parked message stands.
type ParkedStatus string

// The states of a parked message. The first two are open, the others final.
const (
	StatusParked      ParkedStatus = "parked"       // waits for a person
	StatusReplaying   ParkedStatus = "replaying"    // is part of an open replay run
	StatusHandled     ParkedStatus = "handled"      // was replayed, and its consumer is done with it
	StatusFailedAgain ParkedStatus = "failed_again" // was replayed and parked once more, as a row of its own
	StatusResolved    ParkedStatus = "resolved"     // the world moved on before it was sent
	StatusDiscarded   ParkedStatus = "discarded"    // a person decided so
)

// ParkedStatuses lists the states in the order of a message's life.
var ParkedStatuses = []ParkedStatus{StatusParked, StatusReplaying, StatusHandled, StatusFailedAgain, StatusResolved, StatusDiscarded}

// ParkedMessage is one parking with its story.
type ParkedMessage struct {
	ID            string // UUIDv7: the order of ingestion
	Status        ParkedStatus
	Consumer      string
	Type          string // of the event, as the message said; may be empty
	MessageID     string
	OrderID       domain.OrderID // empty where the body tells none; the order need not exist
	Class         string
	Error         string
	GroupID       string
	Attempts      int
	Queue         string // where it first came from
	Exchange      string
	RoutingKey    string
	FirstFailedAt time.Time
	LastFailedAt  time.Time
	ParkedAt      time.Time
	Headers       map[string]string // the sender's own: a replay sends them again
	Story         map[string]string // what else came with it
	Payload       []byte            // as it was parked
	EditedPayload []byte            // what a replay sends instead; nil unless edited
	PreviousID    string            // the parking that a replay had taken it from
	NextID        string            // the parking that its own replay ended in
	Replays       int               // of this message, over all its parkings
	SettledAt     time.Time         // zero while it is open
	Reason        string            // why it was resolved or discarded
}

// Replayed is the payload that a replay sends.
func (m ParkedMessage) Replayed() []byte {
	if m.EditedPayload != nil {
		return m.EditedPayload
	}
	return m.Payload
}

var (
	// ErrParkedNotFound says: no parked message has this id.
	ErrParkedNotFound = errors.New("unknown parked message")

	// ErrNotParked says: the message is part of an open replay run, or settled.
	ErrNotParked = errors.New("message is not parked any more")

	// ErrNothingPicked says: no open message fits the conditions of a filter.
	ErrNothingPicked = errors.New("no open message fits")
)

// Store records one parking. key identifies the delivery: the same one again changes
// nothing and reports false. A message that a replay had sent settles that replay as
// failed again; m.PreviousID says which, and is ignored when there is no such parking.
//
// ID, Status, ParkedAt, GroupID, NextID and Replays are the store's to set. Characters
// that PostgreSQL cannot keep in text are replaced, never the payload's.
func (s *Parked) Store(ctx context.Context, key []byte, m ParkedMessage) (stored bool, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		stored, err = storeParked(ctx, tx, key, m)
		return err
	})
	return stored, err
}

func storeParked(ctx context.Context, tx pgx.Tx, key []byte, m ParkedMessage) (stored bool, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return false, err
	}
	if m.PreviousID != "" {
		if err := settleReplays(ctx, tx, []string{m.PreviousID}, StatusFailedAgain, text(m.Error)); err != nil {
			return false, err
		}
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO parked_messages (id, parking_key, consumer, type, message_id, order_id, class, error, group_id, attempts,
			queue, exchange, routing_key, first_failed_at, last_failed_at, headers, story, payload, previous_id, replays)
		SELECT $1, $2, $3, $4, $5, nullif($6, '')::uuid, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, p.id, coalesce(`+replaysOf+`, 0)
		FROM (SELECT) AS one LEFT JOIN parked_messages p ON p.id = nullif($19, '')::uuid
		ON CONFLICT (parking_key) DO NOTHING`,
		id.String(), key, text(m.Consumer), text(m.Type), text(m.MessageID), string(m.OrderID), text(m.Class), text(m.Error),
		domain.GroupID(m.Consumer, m.Type, m.Class, m.Error), m.Attempts, text(m.Queue), text(m.Exchange), text(m.RoutingKey),
		m.FirstFailedAt, m.LastFailedAt, texts(m.Headers), texts(m.Story), m.Payload, m.PreviousID)
	return err == nil && tag.RowsAffected() == 1, err
}

// ParkedFilter picks parked messages; a zero field picks all.
type ParkedFilter struct {
	IDs      []string
	Consumer string
	Class    string
	Type     string
	GroupID  string
	OrderID  domain.OrderID
	Text     string    // in the error, whatever its case, or in the payload, exactly
	From     time.Time // last failed at or after
	To       time.Time // last failed before
}

// All tells that the filter picks everything.
func (f ParkedFilter) All() bool { return f.describe() == allParked }

// parkedWhere is the condition of a ParkedFilter; its parameters are $1 to $9, see args.
const parkedWhere = `(
	(cardinality($1::uuid[]) = 0 OR p.id = ANY($1)) AND ($2 = '' OR p.consumer = $2) AND ($3 = '' OR p.class = $3)
	AND ($4 = '' OR p.type = $4) AND ($5 = '' OR p.group_id = $5) AND ($6 = '' OR p.order_id = nullif($6, '')::uuid)
	AND ($7 = '' OR position(lower($7) IN lower(p.error)) > 0 OR position(convert_to($7, 'UTF8') IN p.payload) > 0)
	AND p.last_failed_at >= coalesce($8, '-infinity'::timestamptz) AND p.last_failed_at < coalesce($9, 'infinity'::timestamptz))`

func (f ParkedFilter) args(more ...any) []any {
	ids := f.IDs
	if ids == nil {
		ids = []string{}
	}
	return append([]any{
		ids, f.Consumer, f.Class, f.Type, f.GroupID, string(f.OrderID), text(f.Text), orNull(f.From), orNull(f.To),
	}, more...)
}

// ParkedQuery says which parked messages to list.
type ParkedQuery struct {
	Filter ParkedFilter
	Status ParkedStatus // empty: what is open
	All    bool         // whatever the status
	Limit  int
	Before string // exclusive; empty: from the newest
}

// List returns parked messages, the newest first. Payloads, headers and story, which
// can be megabytes, are left out; Get has them.
func (s *Parked) List(ctx context.Context, q ParkedQuery) ([]ParkedMessage, error) {
	return collect(ctx, s.db, scanParked, `
		SELECT `+parkedListColumns+` FROM parked_messages p
		WHERE `+parkedWhere+`
		  AND ($10 OR CASE WHEN $11 = '' THEN p.settled_at IS NULL ELSE p.status = $11 END)
		  AND ($12 = '' OR p.id < nullif($12, '')::uuid)
		ORDER BY p.id DESC LIMIT $13`, q.Filter.args(q.All, string(q.Status), q.Before, q.Limit)...)
}

// Get returns ErrParkedNotFound when there is no such message.
func (s *Parked) Get(ctx context.Context, id string) (ParkedMessage, error) {
	found, err := collect(ctx, s.db, scanParked, `SELECT `+parkedColumns+` FROM parked_messages p WHERE p.id = $1`, id)
	if err != nil {
		return ParkedMessage{}, err
	}
	if len(found) == 0 {
		return ParkedMessage{}, fmt.Errorf("%w %s", ErrParkedNotFound, id)
	}
	return found[0], nil
}

// ParkedGroup is a number of open messages that failed in the same way.
type ParkedGroup struct {
	ID            string
	Consumer      string
	Type          string
	Class         string
	Error         string // of the newest
	Messages      int    // open
	Replaying     int    // of these, in an open run
	FirstFailedAt time.Time
	LastFailedAt  time.Time
	OldestAt      time.Time // when the oldest of them was parked
}

// Groups returns the groups of what is open, the largest first.
func (s *Parked) Groups(ctx context.Context, f ParkedFilter) ([]ParkedGroup, error) {
	return collect(ctx, s.db, func(row pgx.CollectableRow) (g ParkedGroup, err error) {
		err = row.Scan(&g.ID, &g.Consumer, &g.Type, &g.Class, &g.Error, &g.Messages, &g.Replaying, &g.FirstFailedAt, &g.LastFailedAt, &g.OldestAt)
		return g, err
	}, `
		SELECT g.group_id, n.consumer, n.type, n.class, n.error, g.messages, g.replaying, g.first, g.last, g.oldest
		FROM (
			SELECT p.group_id, count(*) AS messages, count(*) FILTER (WHERE p.status = 'replaying') AS replaying,
			       min(p.first_failed_at) AS first, max(p.last_failed_at) AS last, min(p.parked_at) AS oldest,
			       (array_agg(p.id ORDER BY p.id DESC))[1] AS newest
			FROM parked_messages p WHERE p.settled_at IS NULL AND `+parkedWhere+`
			GROUP BY p.group_id
		) g JOIN parked_messages n ON n.id = g.newest
		ORDER BY g.messages DESC, g.newest DESC`, f.args()...)
}

// Edit keeps payload as what a replay sends, with the order it names. The payload that
// was parked stays.
//
// The order must exist, and be the one that the parked payload names if that exists too:
// else Edit returns a domain.FieldError. It returns ErrNotParked or ErrParkedNotFound
// as well, and with any error changes nothing.
func (s *Parked) Edit(ctx context.Context, operator, id string, order domain.OrderID, payload []byte) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockParked(ctx, tx, id); err != nil {
			return err
		}
		if err := checkEditedOrder(ctx, tx, id, order); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE parked_messages SET edited_payload = $2, order_id = $3 WHERE id = $1`, id, payload, string(order)); err != nil {
			return err
		}
		return writeAudit(ctx, tx, AuditEntry{
			Operator: operator, Action: "edit", Subject: id, Messages: 1, Outcome: "edited",
			Detail: map[string]any{"payload": string(payload)},
		})
	})
}

func checkEditedOrder(ctx context.Context, tx pgx.Tx, id string, order domain.OrderID) error {
	var parked []byte
	if err := tx.QueryRow(ctx, `SELECT payload FROM parked_messages WHERE id = $1`, id).Scan(&parked); err != nil {
		return err
	}
	named := domain.OrderIn(parked)
	var exists, namedExists bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orders WHERE id = $1), EXISTS (SELECT FROM orders WHERE id = nullif($2, '')::uuid)`,
		string(order), string(named)).Scan(&exists, &namedExists)
	switch {
	case err != nil:
		return err
	case !exists:
		return &domain.FieldError{Field: "payload.order_id", Got: string(order), Allowed: "an order that exists"}
	case namedExists && named != order:
		return &domain.FieldError{Field: "payload.order_id", Got: string(order), Allowed: "the order that the message was parked with, " + string(named)}
	}
	return nil
}

// Discard settles what filter picks for good, without sending it, and returns how many
// these were. It refuses what Replays.Start refuses, and then discards nothing.
func (s *Parked) Discard(ctx context.Context, operator string, f ParkedFilter, reason string) (n int, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, massTimeout); err != nil {
			return err
		}
		if err := lockSelection(ctx, tx, f); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			UPDATE parked_messages p SET status = 'discarded', settled_at = now(), reason = $10
			WHERE p.status = 'parked' AND `+parkedWhere, f.args(text(reason))...)
		if err != nil {
			return err
		}
		n = int(tag.RowsAffected())
		return writeAudit(ctx, tx, AuditEntry{
			Operator: operator, Action: "discard", Subject: f.describe(), Messages: n, Outcome: "discarded",
			Detail: map[string]any{"reason": reason},
		})
	})
	return n, err
}

// lockParked returns nil when the message is parked, and keeps it so for the transaction.
func lockParked(ctx context.Context, tx pgx.Tx, id string) error {
	var status ParkedStatus
	err := tx.QueryRow(ctx, `SELECT status FROM parked_messages WHERE id = $1 FOR NO KEY UPDATE`, id).Scan(&status)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w %s", ErrParkedNotFound, id)
	case err != nil:
		return err
	case status == StatusParked:
		return nil
	}
	var later string
	if err := tx.QueryRow(ctx, `SELECT coalesce(max(id::text), '') FROM parked_messages WHERE previous_id = $1`, id).Scan(&later); err != nil {
		return err
	}
	if later != "" {
		later = ", and was parked again as " + later
	}
	return fmt.Errorf("%w: %s is %s%s", ErrNotParked, id, status, later)
}

// describe says in words what a filter picks.
func (f ParkedFilter) describe() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	if len(f.IDs) == 1 {
		return f.IDs[0]
	}
	if len(f.IDs) > 1 {
		add("messages", fmt.Sprint(len(f.IDs)))
	}
	add("group", f.GroupID)
	add("consumer", f.Consumer)
	add("class", f.Class)
	add("type", f.Type)
	add("order", string(f.OrderID))
	add("text", f.Text)
	add("from", formatTime(f.From))
	add("to", formatTime(f.To))
	if len(parts) == 0 {
		return allParked
	}
	return strings.Join(parts, " ")
}

const allParked = "all"

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// The columns of a message whole, and of one in a list.
const (
	parkedColumns     = parkedHead + `p.headers, p.story, p.payload, p.edited_payload,` + parkedTail
	parkedListColumns = parkedHead + `'{}'::jsonb, '{}'::jsonb, ''::bytea, NULL::bytea,` + parkedTail

	parkedHead = `
	p.id::text, p.status, p.consumer, p.type, p.message_id, coalesce(p.order_id::text, ''), p.class, p.error, p.group_id, p.attempts,
	p.queue, p.exchange, p.routing_key, p.first_failed_at, p.last_failed_at, p.parked_at, `
	parkedTail = `
	coalesce(p.previous_id::text, ''),
	coalesce((SELECT max(n.id::text) FROM parked_messages n WHERE n.previous_id = p.id), ''),
	` + replaysOf + `, p.settled_at, coalesce(p.reason, '')`
)

// replaysOf counts how often the message of the row p was sent, over all its parkings.
const replaysOf = `(p.replays + (SELECT count(*) FROM replay_items i WHERE i.parked_id = p.id AND i.sent_at IS NOT NULL))::int`

func scanParked(row pgx.CollectableRow) (ParkedMessage, error) { return scanParkedAnd(row) }

// scanParkedAnd scans parkedColumns, and into more whatever columns follow them.
func scanParkedAnd(row pgx.CollectableRow, more ...any) (m ParkedMessage, err error) {
	var settledAt *time.Time
	err = row.Scan(append([]any{
		&m.ID, &m.Status, &m.Consumer, &m.Type, &m.MessageID, &m.OrderID, &m.Class, &m.Error, &m.GroupID, &m.Attempts,
		&m.Queue, &m.Exchange, &m.RoutingKey, &m.FirstFailedAt, &m.LastFailedAt, &m.ParkedAt, &m.Headers, &m.Story, &m.Payload, &m.EditedPayload,
		&m.PreviousID, &m.NextID, &m.Replays, &settledAt, &m.Reason,
	}, more...)...)
	m.SettledAt = orZero(settledAt)
	return m, err
}

// text replaces what a text column cannot hold.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�")
}

func texts(m map[string]string) []byte {
	clean := make(map[string]string, len(m))
	for key, value := range m {
		clean[text(key)] = text(value)
	}
	encoded, err := json.Marshal(clean)
	if err != nil {
		panic(fmt.Sprintf("a map of texts: %v", err)) // it always encodes
	}
	return encoded
}
