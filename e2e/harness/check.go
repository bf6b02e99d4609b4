package harness

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Count runs a query that gives one number.
func (s *Shop) Count(sql string, args ...any) int64 {
	s.t.Helper()
	var n int64
	if err := s.DB.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Texts runs a query that gives one column.
func (s *Shop) Texts(sql string, args ...any) []string {
	s.t.Helper()
	rows, err := s.DB.Query(context.Background(), sql, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return texts
}

// Text runs a query that gives one value.
func (s *Shop) Text(sql string, args ...any) string {
	s.t.Helper()
	texts := s.Texts(sql, args...)
	if len(texts) != 1 {
		s.t.Fatalf("%s: %d rows, want one", sql, len(texts))
	}
	return texts[0]
}

// AwaitCount waits until a query gives want.
func (s *Shop) AwaitCount(want int64, sql string, args ...any) {
	s.t.Helper()
	Eventually(s.t, func() error {
		var got int64
		if err := s.DB.QueryRow(context.Background(), sql, args...).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s: got %d, want %d", sql, got, want)
		}
		return nil
	})
}

// AwaitSettled waits until no order is pending and the outbox is empty.
func (s *Shop) AwaitSettled() {
	s.t.Helper()
	s.AwaitCount(0, `SELECT (SELECT count(*) FROM orders WHERE status = 'pending') + (SELECT count(*) FROM outbox)`)
}

// AwaitQuiet waits until every queue is empty, or holds what parked allows.
func (s *Shop) AwaitQuiet(parked int) {
	s.t.Helper()
	Eventually(s.t, func() error {
		conn, err := amqp.Dial(s.AMQPURL)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		queues, _ := s.Topology.Names()
		for _, name := range queues {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return err
			}
			want := 0
			if name == s.Topology.ParkingQueue() {
				want = parked
			}
			if q.Messages != want {
				return fmt.Errorf("%s holds %d messages, want %d", name, q.Messages, want)
			}
		}
		return nil
	})
}

// CheckInvariants verifies what must hold whenever nothing is under way: no unit of
// stock is made or lost, closed orders hold nothing, nothing was closed early.
func (s *Shop) CheckInvariants(initial map[string]int64) {
	s.t.Helper()
	for sku, units := range initial {
		got := s.Count(`SELECT available + held + sold FROM stock WHERE sku = $1`, sku)
		if got != units {
			s.t.Errorf("sku %s: %d units in all, want %d", sku, got, units)
		}
	}
	for what, sql := range map[string]string{
		"stock held by other than pending orders": `
			SELECT count(*) FROM stock s WHERE held <> (
				SELECT coalesce(sum(l.held), 0) FROM order_lines l JOIN orders o ON o.id = l.order_id
				WHERE l.sku = s.sku AND o.status = 'pending')`,
		"stock sold by other than paid orders": `
			SELECT count(*) FROM stock s WHERE sold <> (
				SELECT coalesce(sum(l.held), 0) FROM order_lines l JOIN orders o ON o.id = l.order_id
				WHERE l.sku = s.sku AND o.status = 'paid')`,
		"orders closed before their deadline": `SELECT count(*) FROM orders WHERE closed_at < due_at`,
		"paid orders without exactly one accepted payment": `
			SELECT count(*) FROM orders o WHERE (o.status = 'paid') <> (
				SELECT count(*) = 1 FROM payments p WHERE p.order_id = o.id AND p.refund_reason IS NULL)`,
	} {
		if n := s.Count(sql); n != 0 {
			s.t.Errorf("%s: %d", what, n)
		}
	}
}

// CheckMails verifies that every order in a final state got exactly its mails.
func (s *Shop) CheckMails(orders int) {
	s.t.Helper()
	ids := map[string]int{}
	for _, m := range s.Mail.Taken() {
		ids[m.Header.Get("Message-ID")]++
	}
	for id, n := range ids {
		if n != 1 {
			s.t.Errorf("mail %s was sent %d times", id, n)
		}
	}
	if len(ids) != orders {
		s.t.Errorf("%d different mails, want %d", len(ids), orders)
	}
}

// AwaitMails waits until so many mails were taken.
func (s *Shop) AwaitMails(n int) {
	s.t.Helper()
	Eventually(s.t, func() error {
		if got := len(s.Mail.Taken()); got < n {
			return fmt.Errorf("%d mails, want %d", got, n)
		}
		return nil
	})
}

// Gauge reads one plain metric.
func (p *Process) Gauge(name string) float64 {
	p.t.Helper()
	for line := range strings.Lines(p.MetricsText()) {
		var value float64
		if _, err := fmt.Sscanf(line, name+" %g", &value); err == nil {
			return value
		}
	}
	p.t.Fatalf("no metric %s", name)
	return 0
}

// Handled adds up how many messages of a consumer had an outcome in this process, by
// its metrics.
func (p *Process) Handled(consumer, outcome string) int {
	p.t.Helper()
	sum := 0.0
	for line := range strings.Lines(p.MetricsText()) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, "ordertimeout_messages_handled_total{") ||
			!strings.Contains(series, fmt.Sprintf("consumer=%q", consumer)) || !strings.Contains(series, fmt.Sprintf("outcome=%q", outcome)) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		sum += n
	}
	return int(sum)
}
