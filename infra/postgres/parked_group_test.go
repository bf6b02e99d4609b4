package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/infra/postgres/postgrestest"
)

// Parkings that come together are stored together, each once, with the replays that they
// end; one that cannot be stored fails alone.
func TestGroupedParkings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replayed := w.park(20)
	w.startRun(postgres.ReplayRequest{})
	w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'cursed' USING ERRCODE = '23514'; END $$`)
	w.exec(`CREATE TRIGGER refuse BEFORE INSERT ON parked_messages FOR EACH ROW WHEN (NEW.message_id = 'm77') EXECUTE FUNCTION refuse()`)
	g := postgres.NewGroupedParked(postgres.NewParked(w.db), postgres.GroupConfig{})
	together(400, func(i int) { // each twice, as a broker may deliver
		n := i / 2
		m := parkedMessage(n)
		if n < len(replayed) {
			m.PreviousID = replayed[n]
		}
		_, err := g.Store(ctx, fmt.Append(nil, "key-", n), m)
		if (err != nil) != (n == 77) || errors.Is(err, domain.ErrUnavailable) {
			t.Errorf("message %d: %v", n, err)
		}
	})
	if n := w.count(`SELECT count(*) FROM parked_messages`); n != 20+199 {
		t.Errorf("%d parkings, want %d", n, 20+199)
	}
	if n := w.count(`SELECT count(*) FROM parked_messages p JOIN parked_messages n ON n.previous_id = p.id WHERE p.status = 'failed_again'`); n != 20 {
		t.Errorf("%d replays ended, want 20", n)
	}
	away := postgres.NewGroupedParked(postgres.NewParked(postgrestest.Open(t, "postgres://127.0.0.1:1/none", 1)), postgres.GroupConfig{})
	together(5, func(i int) {
		if _, err := away.Store(ctx, []byte{byte(i)}, parkedMessage(i)); !errors.Is(err, domain.ErrUnavailable) {
			t.Errorf("without a database: %v", err)
		}
	})
}
