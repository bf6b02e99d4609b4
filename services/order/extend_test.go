package order

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func extension(o orderJSON) string { return "/v1/orders/" + o.ID + "/extension" }

func TestExtensionMovesTheDeadline(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	var got orderJSON
	s.asOperator("POST", extension(o), map[string]any{"by": "7m"}).into(t, 200, &got)
	if want := o.DueAt.Add(7 * time.Minute); !got.DueAt.Equal(want) {
		t.Errorf("due at %s, want %s", got.DueAt, want)
	}
	s.asOperator("POST", extension(o), map[string]any{"by": "-12m30s"}).into(t, 200, &got)
	if want := o.DueAt.Add(-5*time.Minute - 30*time.Second); !got.DueAt.Equal(want) {
		t.Errorf("due at %s, want %s", got.DueAt, want)
	}
	want := o.DueAt.Add(time.Hour).Truncate(time.Second)
	inBrisbane := want.In(time.FixedZone("", 10*60*60)).Format(time.RFC3339)
	a := s.asOperator("POST", extension(o), map[string]any{"due_at": inBrisbane})
	a.into(t, 200, &got)
	if !got.DueAt.Equal(want) || got.DueAt.Location() != time.UTC {
		t.Errorf("due at %s, want %s", got.DueAt, want)
	}
	var shown orderJSON
	s.call("GET", "/v1/orders/"+o.ID, nil).into(t, 200, &shown)
	if !shown.DueAt.Equal(want) || shown.PaymentWindow != "30m" {
		t.Errorf("order: %+v", shown)
	}
	// A deadline that moves backwards has a timer of its own.
	if n := s.count("SELECT count(*) FROM outbox WHERE type = 'order.timeout'"); n != 2 {
		t.Errorf("%d timers", n)
	}
}

func TestNanosecondsOfADeadlineAreCutEverywhere(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	exact := o.DueAt.Add(time.Hour).Truncate(time.Second).Add(123456789 * time.Nanosecond)
	var answered, stored orderJSON
	s.asOperator("POST", extension(o), map[string]any{"due_at": exact.Format(time.RFC3339Nano)}).into(t, 200, &answered)
	s.call("GET", "/v1/orders/"+o.ID, nil).into(t, 200, &stored)
	if !answered.DueAt.Equal(stored.DueAt) {
		t.Errorf("answered %s, stored %s", answered.DueAt, stored.DueAt)
	}
}

func TestExtensionOfASettledOrderIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	paid, closed := s.place(wish("tea", 1)), s.closed()
	s.report(payment("p-1", paid)).want(t, 200)
	for _, o := range []orderJSON{paid, closed} {
		s.asOperator("POST", extension(o), map[string]any{"by": "7m"}).wantProblem(t, 409, "not-pending", "")
	}
}

func TestBadExtensionNamesTheField(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	for name, c := range map[string]struct {
		body  any
		field string
	}{
		"neither":             {map[string]any{}, "due_at"},
		"both":                {map[string]any{"by": "7m", "due_at": "2099-01-01T00:00:00Z"}, "by"},
		"by without unit":     {map[string]any{"by": "7"}, "by"},
		"by empty":            {map[string]any{"by": ""}, "by"},
		"by into the past":    {map[string]any{"by": "-31m"}, "by"},
		"by too far":          {map[string]any{"by": "2160h"}, "by"},
		"by beyond int64":     {map[string]any{"by": "9999999h"}, "by"},
		"due_at past":         {map[string]any{"due_at": "2020-01-01T00:00:00Z"}, "due_at"},
		"due_at too far":      {map[string]any{"due_at": "2999-01-01T00:00:00Z"}, "due_at"},
		"due_at without zone": {map[string]any{"due_at": "2099-01-01T00:00:00"}, "due_at"},
		"due_at is a number":  {map[string]any{"due_at": 1767225600}, "due_at"},
		"misspelt":            {map[string]any{"until": "7m"}, "until"},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.asOperator("POST", extension(o), c.body).wantProblem(t, 422, "invalid", c.field)
			if p.Errors[0].Value == nil {
				t.Errorf("problem does not tell what came: %+v", p)
			}
		})
	}
	var same orderJSON
	s.call("GET", "/v1/orders/"+o.ID, nil).into(t, 200, &same)
	if !same.DueAt.Equal(o.DueAt) {
		t.Errorf("due at %s, was %s", same.DueAt, o.DueAt)
	}
	s.asOperator("POST", "/v1/orders/"+uuid.NewString()+"/extension", map[string]any{"by": "7m"}).wantProblem(t, 404, "unknown-order", "")
	s.asOperator("POST", "/v1/orders/12/extension", map[string]any{"by": "7m"}).wantProblem(t, 422, "invalid", "id")
}
