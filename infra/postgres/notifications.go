package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/ordertimeout/domain"
)

// Notifications remembers which mails were sent, so that each is sent once.
type Notifications struct{ db *DB }

// NewNotifications returns the store of notifications.
func NewNotifications(db *DB) *Notifications { return &Notifications{db: db} }

// NotificationKey names one mail.
type NotificationKey struct {
	OrderID   domain.OrderID
	Kind      string
	Reference string // tells apart what there can be several of, such as a payment; else empty
}

// ErrClaimed says: another sender has the mail in hand. It is a domain.ErrUnavailable: the
// message waits until that sender is done or its claim ran out.
var ErrClaimed = fmt.Errorf("another sender has this mail in hand: %w", domain.ErrUnavailable)

// Claim reserves a mail for the caller for the length of lease, which must be longer
// than sending takes. It reports true, and claims nothing, when the mail was sent.
//
// It returns ErrClaimed while somebody else's claim lasts.
func (s *Notifications) Claim(ctx context.Context, key NotificationKey, lease time.Duration) (sent bool, err error) {
	err = s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// The update waits for a rival's row and then sees what the rival wrote.
		err := tx.QueryRow(ctx, `
			INSERT INTO notifications AS n (order_id, kind, reference, claimed_until)
			VALUES ($1, $2, $3, now() + make_interval(secs => $4))
			ON CONFLICT (order_id, kind, reference) DO UPDATE SET claimed_until =
				CASE WHEN n.sent_at IS NULL THEN excluded.claimed_until ELSE n.claimed_until END
			WHERE n.sent_at IS NOT NULL OR n.claimed_until < now()
			RETURNING sent_at IS NOT NULL`,
			key.OrderID, key.Kind, key.Reference, lease.Seconds()).Scan(&sent)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrClaimed
		}
		return err
	})
	return sent, err
}

// MarkSent records that a claimed mail was taken by the mail server.
func (s *Notifications) MarkSent(ctx context.Context, key NotificationKey) error {
	return s.change(ctx, `UPDATE notifications SET sent_at = now() WHERE order_id = $1 AND kind = $2 AND reference = $3 AND sent_at IS NULL`, key)
}

// Release gives a claim back after a failed send, so that the next attempt need not
// wait for its end.
func (s *Notifications) Release(ctx context.Context, key NotificationKey) error {
	return s.change(ctx, `UPDATE notifications SET claimed_until = '-infinity' WHERE order_id = $1 AND kind = $2 AND reference = $3 AND sent_at IS NULL`, key)
}

func (s *Notifications) change(ctx context.Context, sql string, key NotificationKey) error {
	return s.db.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, key.OrderID, key.Kind, key.Reference)
		return err
	})
}
