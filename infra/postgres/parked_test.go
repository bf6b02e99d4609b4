package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

func parkedMessage(n int) postgres.ParkedMessage {
	return postgres.ParkedMessage{
		Consumer: "closer", Type: "order.timeout", MessageID: fmt.Sprint("m", n), OrderID: domain.OrderID(uuid.NewString()),
		Class: "transient", Error: "boom", Attempts: 4, Queue: "q", Exchange: "e", RoutingKey: "k",
		FirstFailedAt: time.Now().Add(-time.Minute), LastFailedAt: time.Now(), Payload: fmt.Appendf(nil, `{"n":%d}`, n),
		Headers: map[string]string{"a": "b"}, Story: map[string]string{},
	}
}

// park stores messages and returns their ids, in the order of their ingestion.
func (w *world) park(n int) []string {
	w.t.Helper()
	parked := postgres.NewParked(w.db)
	var ids []string
	for i := range n {
		if stored := must(parked.Store(ctx, []byte(uuid.NewString()), parkedMessage(i))); !stored {
			w.t.Fatal("a key of its own was taken")
		}
	}
	for _, m := range must(parked.List(ctx, postgres.ParkedQuery{Limit: n})) {
		ids = append(ids, m.ID)
	}
	slices.Reverse(ids)
	return ids
}

// The broker may deliver a parked message twice, and several reconcilers may have it.
func TestOneDeliveryIsParkedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parked := postgres.NewParked(w.db)
	var stored atomic.Int64
	together(20, func(int) {
		if must(parked.Store(ctx, []byte("key"), parkedMessage(1))) {
			stored.Add(1)
		}
	})
	if must(parked.Store(ctx, []byte("another"), parkedMessage(1))) {
		stored.Add(1)
	}
	if stored.Load() != 2 || w.count(`SELECT count(*) FROM parked_messages`) != 2 {
		t.Errorf("stored %d times, %d rows", stored.Load(), w.count(`SELECT count(*) FROM parked_messages`))
	}
}

// Whatever a stranger wrote into a message, it can be stored, and its payload stays as it is.
func TestParkedMessagesAreKeptWhateverTheyHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parked := postgres.NewParked(w.db)
	const dirty = "a\x00b\xff\xfe" + `"\` + "\u2028"
	m := postgres.ParkedMessage{
		Consumer: dirty, Type: dirty, MessageID: dirty, Class: dirty, Error: strings.Repeat(dirty, 1000), Attempts: -1, Queue: dirty, Exchange: dirty, RoutingKey: dirty,
		Payload: bytes.Repeat([]byte(dirty), 300_000), Headers: map[string]string{dirty: dirty}, Story: map[string]string{dirty: dirty},
		PreviousID: uuid.NewString(),
	}
	if !must(parked.Store(ctx, []byte("k"), m)) {
		t.Fatal("not stored")
	}
	id := must(parked.List(ctx, postgres.ParkedQuery{Limit: 1}))[0].ID
	got := must(parked.Get(ctx, id))
	if !bytes.Equal(got.Payload, m.Payload) {
		t.Error("the payload was changed")
	}
	if got.PreviousID != "" || got.OrderID != "" || !strings.HasPrefix(got.Error, "a�b") || len(got.Headers) != 1 {
		t.Errorf("got %.200v", got)
	}
	if listed := must(parked.List(ctx, postgres.ParkedQuery{Filter: postgres.ParkedFilter{Text: "\x00b"}, Limit: 1})); len(listed) != 1 || len(listed[0].Payload) != 0 {
		t.Errorf("listed %d, with a payload of %d bytes", len(listed), len(listed[0].Payload))
	}
}

func TestParkedFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parked := postgres.NewParked(w.db)
	first, second := parkedMessage(1), parkedMessage(2)
	second.Consumer, second.Type, second.Class, second.Error = "notifier", "order.closed", "panic", "Nil map"
	second.LastFailedAt = first.LastFailedAt.Add(time.Hour)
	for i, m := range []postgres.ParkedMessage{first, second} {
		must(parked.Store(ctx, []byte{byte(i)}, m))
	}
	all := must(parked.List(ctx, postgres.ParkedQuery{Limit: 10}))
	if len(all) != 2 || all[0].Consumer != "notifier" {
		t.Fatalf("%v", all)
	}
	for name, f := range map[string]postgres.ParkedFilter{
		"id":       {IDs: []string{all[0].ID}},
		"consumer": {Consumer: "notifier"},
		"class":    {Class: "panic"},
		"type":     {Type: "order.closed"},
		"group":    {GroupID: all[0].GroupID},
		"order":    {OrderID: second.OrderID},
		"error":    {Text: "NIL"},
		"payload":  {Text: `{"n":2}`},
		"from":     {From: first.LastFailedAt.Add(time.Minute)},
		"both":     {Consumer: "notifier", Text: "map"},
	} {
		got := must(parked.List(ctx, postgres.ParkedQuery{Filter: f, Limit: 10}))
		groups := must(parked.Groups(ctx, f))
		if len(got) != 1 || got[0].ID != all[0].ID || len(groups) != 1 || groups[0].Messages != 1 {
			t.Errorf("%s: %d messages, %v", name, len(got), groups)
		}
	}
	for name, f := range map[string]postgres.ParkedFilter{
		"to": {To: first.LastFailedAt}, "consumer and class": {Consumer: "closer", Class: "panic"}, "case of a payload": {Text: `{"N":2}`},
	} {
		if got := must(parked.List(ctx, postgres.ParkedQuery{Filter: f, Limit: 10})); len(got) != 0 {
			t.Errorf("%s: %d messages", name, len(got))
		}
	}
}

// Pages show what was there at the start exactly once, while more is parked.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.park(25)
	parked := postgres.NewParked(w.db)
	var seen []string
	for before := ""; ; {
		page := must(parked.List(ctx, postgres.ParkedQuery{Limit: 7, Before: before}))
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			seen = append(seen, m.ID)
		}
		before = page[len(page)-1].ID
		w.park(1)
	}
	slices.Reverse(seen)
	if !slices.Equal(seen, ids) {
		t.Errorf("saw %d messages, want the %d from the start", len(seen), len(ids))
	}
}

// What is not parked cannot be edited or discarded, and a refusal changes nothing.
func TestOnlyParkedMessagesAreChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parked, replays := postgres.NewParked(w.db), postgres.NewReplays(w.db)
	ids := w.park(3)
	must(parked.Discard(ctx, "ada", postgres.ParkedFilter{IDs: ids[:1]}, "why"))
	must(replays.Start(ctx, postgres.ReplayRequest{Operator: "ada", Filter: postgres.ParkedFilter{IDs: ids[1:2]}}))
	inRun := func(err error) bool { return errors.As(err, new(*postgres.InRunError)) }
	for id, want := range map[string]error{ids[0]: postgres.ErrNotParked, ids[1]: postgres.ErrNotParked, uuid.NewString(): postgres.ErrParkedNotFound} {
		if err := parked.Edit(ctx, "ada", id, domain.OrderID(uuid.NewString()), []byte("{}")); !errors.Is(err, want) {
			t.Errorf("edit: %v, want %v", err, want)
		}
		// One refused message takes the others with it.
		if _, err := parked.Discard(ctx, "ada", postgres.ParkedFilter{IDs: []string{ids[2], id}}, "why"); !errors.Is(err, want) && (id != ids[1] || !inRun(err)) {
			t.Errorf("discard: %v, want %v", err, want)
		}
		if _, err := replays.Start(ctx, postgres.ReplayRequest{Operator: "ada", Filter: postgres.ParkedFilter{IDs: []string{ids[2], id}}}); err == nil {
			t.Error("a run began over it")
		}
	}
	if got := must(parked.Get(ctx, ids[2])); got.Status != postgres.StatusParked || got.EditedPayload != nil {
		t.Errorf("the bystander is %+v", got)
	}
	if _, err := parked.Discard(ctx, "ada", postgres.ParkedFilter{}, "all"); !inRun(err) {
		t.Errorf("discard of what a run has in hand: %v", err)
	}
	if n := must(parked.Discard(ctx, "ada", postgres.ParkedFilter{IDs: ids[2:]}, "one")); n != 1 {
		t.Errorf("discarded %d, want 1", n)
	}
	if n := w.count(`SELECT count(*) FROM audit`); n != 3 {
		t.Errorf("%d lines in the audit, want 3: refusals leave none", n)
	}
}

// An edit mends a message; it does not make it one about another order.
func TestAnEditKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	parked := postgres.NewParked(w.db)
	w.setStock("tea", 10)
	mine, other := w.place(time.Hour, line("tea", 1)).ID(), w.place(time.Hour, line("tea", 1)).ID()
	nobody := domain.OrderID(uuid.NewString())
	for name, c := range map[string]struct {
		parked  string
		edited  domain.OrderID
		allowed bool
	}{
		"the same order":                 {`{"order_id":"` + string(mine) + `"}`, mine, true},
		"another order":                  {`{"order_id":"` + string(mine) + `"}`, other, false},
		"an order that there is not":     {`{"order_id":"` + string(mine) + `"}`, nobody, false},
		"one that existed in no way":     {`{"order_id":"` + string(nobody) + `"}`, mine, true},
		"one for a body that names none": {`{`, mine, true},
	} {
		m := parkedMessage(1)
		m.Payload = []byte(c.parked)
		must(parked.Store(ctx, []byte(name), m))
		id := must(parked.List(ctx, postgres.ParkedQuery{Limit: 1}))[0].ID
		err := parked.Edit(ctx, "ada", id, c.edited, []byte("{}"))
		var field *domain.FieldError
		if refused := errors.As(err, &field) && field.Field == "payload.order_id"; refused == c.allowed || (c.allowed && err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if got := must(parked.Get(ctx, id)); (got.EditedPayload != nil) != c.allowed {
			t.Errorf("%s: edited to %q", name, got.EditedPayload)
		}
	}
}

func TestTheAuditIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.park(1)
	must(postgres.NewParked(w.db).Discard(ctx, "a\x00da", postgres.ParkedFilter{}, "be\x00cause"))
	for _, sql := range []string{`UPDATE audit SET operator = 'eve'`, `DELETE FROM audit`, `TRUNCATE audit`} {
		if _, err := w.db.Pool().Exec(ctx, sql); err == nil {
			t.Errorf("%s went through", sql)
		}
	}
	entries := must(postgres.NewAudit(w.db).List(ctx, 0, 10))
	if len(entries) != 1 || entries[0].Operator != "a�da" || entries[0].Detail["reason"] != "be�cause" || entries[0].Messages != 1 {
		t.Errorf("%+v", entries)
	}
	if older := must(postgres.NewAudit(w.db).List(ctx, entries[0].ID, 10)); len(older) != 0 {
		t.Errorf("%d entries before the first", len(older))
	}
}
