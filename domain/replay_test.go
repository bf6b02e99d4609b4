package domain_test

import (
	"fmt"
	"strings"
	"testing"

	"example.com/ordertimeout/domain"
)

const replayedOrder = "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d"

func body(typ string, more ...string) []byte {
	fields := append([]string{fmt.Sprintf(`"type":%q,"version":1,"order_id":%q`, typ, replayedOrder)}, more...)
	return []byte("{" + strings.Join(fields, ",") + "}")
}

func TestDecideReplay(t *testing.T) {
	t.Parallel()
	refund := body("payment.refund_due", `"payment_id":"p","amount":1,"currency":"EUR"`)
	none := domain.Status{}
	for name, c := range map[string]struct {
		payload []byte
		status  domain.Status
		want    domain.ReplayAction
	}{
		"timer of a pending order":      {body("order.timeout"), domain.Pending, domain.ReplaySend},
		"timer of a paid order":         {body("order.timeout"), domain.Paid, domain.ReplayResolve},
		"timer of a closed order":       {body("order.timeout"), domain.Closed, domain.ReplayResolve},
		"timer of no order":             {body("order.timeout"), none, domain.ReplaySkip},
		"closed mail of a closed order": {body("order.closed"), domain.Closed, domain.ReplaySend},
		"closed mail of a paid order":   {body("order.closed"), domain.Paid, domain.ReplayResolve},
		"receipt of a paid order":       {body("order.paid", `"payment_id":"p"`), domain.Paid, domain.ReplaySend},
		"receipt of a closed order":     {body("order.paid", `"payment_id":"p"`), domain.Closed, domain.ReplayResolve},
		"refund of a paid order":        {refund, domain.Paid, domain.ReplaySend},
		"refund of a closed order":      {refund, domain.Closed, domain.ReplaySend},
		"refund of no order":            {refund, none, domain.ReplaySkip},
		"malformed":                     {[]byte("{"), domain.Pending, domain.ReplaySkip},
		"of another version":            {[]byte(`{"type":"order.timeout","version":2}`), domain.Pending, domain.ReplaySkip},
	} {
		got := domain.DecideReplay(c.payload, c.status)
		if got.Action != c.want {
			t.Errorf("%s: action %d (%s), want %d", name, got.Action, got.Reason, c.want)
		}
		if (got.Reason == "") != (c.want == domain.ReplaySend) {
			t.Errorf("%s: reason %q", name, got.Reason)
		}
	}
}

func TestFingerprintIgnoresWhatChanges(t *testing.T) {
	t.Parallel()
	same := [][]string{
		{
			"closing order 0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9d: ERROR: new row violates check (SQLSTATE 23514)",
			"closing order 0193b1f2-7c52-7c0e-9d0c-0d2f6a7b0000: ERROR: new row violates check (SQLSTATE 23514)",
		},
		{`unsupported event "order.paused" version 2`, `unsupported event "order.resumed" version 3`},
		{"dial tcp 127.0.0.1:41234: connection refused", "dial tcp 10.1.2.3:5: connection refused"},
		{"panic: nil map\ngoroutine 17 [running]:", "panic: nil map\ngoroutine 99 [running]:"},
	}
	seen := map[string]string{}
	for _, texts := range same {
		want := domain.Fingerprint(texts[0])
		for _, text := range texts {
			if got := domain.Fingerprint(text); got != want {
				t.Errorf("%q: %q, want %q", text, got, want)
			}
		}
		if other, taken := seen[want]; taken {
			t.Errorf("%q and %q have one fingerprint, %q", texts[0], other, want)
		}
		seen[want] = texts[0]
	}
	if got := domain.Fingerprint("read failed: deadbeef facade is cabbage"); !strings.Contains(got, "facade is cabbage") {
		t.Errorf("words were taken for numbers: %q", got)
	}
	if n := len(domain.Fingerprint(strings.Repeat("x", 10_000))); n > 310 {
		t.Errorf("%d bytes", n)
	}
}

func TestGroupIDTellsCausesApart(t *testing.T) {
	t.Parallel()
	base := domain.GroupID("closer", "order.timeout", "transient", "boom 1")
	if len(base) != 16 {
		t.Errorf("%q", base)
	}
	if other := domain.GroupID("closer", "order.timeout", "transient", "boom 2"); other != base {
		t.Error("one cause, two groups")
	}
	for _, other := range []string{
		domain.GroupID("notifier", "order.timeout", "transient", "boom 1"),
		domain.GroupID("closer", "order.closed", "transient", "boom 1"),
		domain.GroupID("closer", "order.timeout", "panic", "boom 1"),
		domain.GroupID("closer", "order.timeout", "transient", "bang 1"),
	} {
		if other == base {
			t.Error("two causes, one group")
		}
	}
}
