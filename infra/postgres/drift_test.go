package postgres_test

import (
	"errors"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// Each order and each timer is counted where it is.
func TestDriftCountsWhatTheDatabaseKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 100)
	sweep := postgres.NewSweep(w.db)
	if c := must(sweep.Drift(ctx, time.Minute, 3)); c.At.IsZero() || c.Pending+c.EarlySettled+c.Overdue+c.Late+c.OutboxTimers+c.ParkedTimers+c.FailingOrders != 0 || c.LateFor != 0 || len(c.LateOrders) != 0 {
		t.Errorf("of nothing: %+v", c)
	}
	for range 3 {
		w.place(time.Hour, line("a", 1))
	}
	w.overdue(30*time.Second, line("a", 1))
	var late []domain.OrderID
	for hours := 5; hours > 0; hours-- {
		late = append(late, w.overdue(time.Duration(hours)*time.Hour, line("a", 1)).ID())
	}
	early, inTime := w.place(time.Hour, line("a", 1)), w.overdue(time.Hour, line("a", 1))
	must(w.orders.Pay(ctx, pay(early, "p1")))
	must(w.orders.Pay(ctx, pay(inTime, "p2")))
	closed := w.overdue(time.Hour, line("a", 1))
	must(w.closeOrder(closed.ID()))
	must(sweep.Fail(ctx, late[0], errors.New("no")))
	w.exec(`DELETE FROM outbox`)
	w.fill(7)
	w.exec(`INSERT INTO outbox (message_id, order_id, type, payload) VALUES (gen_random_uuid(), gen_random_uuid(), 'order.paid', '{}')`)

	// Five timers are parked and open, one of them sent by a replay; one is settled, and
	// one message is the notifier's.
	w.exec(`INSERT INTO parked_messages (id, parking_key, status, consumer, type, message_id, class, error, group_id, attempts, queue, exchange, routing_key,
			first_failed_at, last_failed_at, headers, story, payload, settled_at)
		SELECT gen_random_uuid(), decode(md5(i::text), 'hex'), CASE i WHEN 1 THEN 'handled' WHEN 2 THEN 'replaying' WHEN 3 THEN 'replaying' ELSE 'parked' END,
			CASE i WHEN 7 THEN 'notifier' ELSE 'closer' END, '', i::text, '', '', '', 1, '', '', '', now(), now(), '{}', '{}', '', CASE i WHEN 1 THEN now() END
		FROM generate_series(1, 7) AS i`)
	w.exec(`INSERT INTO replay_runs (id, status, requested_by, selection, canaries, total) VALUES (gen_random_uuid(), 'running', 'x', '{}', 0, 2)`)
	w.exec(`INSERT INTO replay_items (run_id, parked_id, outcome) SELECT r.id, p.id, CASE p.message_id WHEN '2' THEN 'sent' ELSE 'waiting' END
		FROM replay_runs r, parked_messages p WHERE p.status = 'replaying'`)

	c := must(sweep.Drift(ctx, time.Minute, 3))
	if c.Pending != 9 || c.Overdue != 6 || c.Late != 5 || c.EarlySettled != 1 || c.OutboxTimers != 7 || c.ParkedTimers != 4 || c.FailingOrders != 1 {
		t.Errorf("%+v", c)
	}
	if len(c.LateOrders) != 3 || c.LateOrders[0] != late[0] || c.LateOrders[2] != late[2] {
		t.Errorf("late orders %v, want the first three of %v", c.LateOrders, late)
	}
	if c.LateFor < 5*time.Hour || c.LateFor > 5*time.Hour+10*time.Minute {
		t.Errorf("the oldest is late for %s", c.LateFor)
	}
}
