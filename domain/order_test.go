package domain_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
)

// Of all combinations of status and times only the three that decisions can make are
// taken back from the store.
func TestIllegalStatesCannotBeRehydrated(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	legal := 0
	for _, status := range []domain.Status{{}, domain.Pending, domain.Paid, domain.Closed} {
		for _, paidAt := range []time.Time{{}, due} {
			for _, closedAt := range []time.Time{{}, due.Add(-1), due} {
				for _, by := range []domain.ClosedBy{{}, domain.ByTimer} {
					s := pending(due)
					s.Status, s.PaidAt, s.ClosedAt, s.ClosedBy = status, paidAt, closedAt, by
					want := status == domain.Pending && paidAt.IsZero() && closedAt.IsZero() && by == domain.ClosedBy{} ||
						status == domain.Paid && !paidAt.IsZero() && closedAt.IsZero() && by == domain.ClosedBy{} ||
						status == domain.Closed && paidAt.IsZero() && closedAt.Equal(due) && by == domain.ByTimer
					if _, err := domain.Rehydrate(s); (err == nil) != want {
						t.Errorf("%s, paid %s, closed %s by %s: %v", status, paidAt, closedAt, by, err)
					}
					if want {
						legal++
					}
				}
			}
		}
	}
	if legal != 3 {
		t.Errorf("%d legal states, want 3", legal)
	}
}

func pending(dueAt time.Time) domain.Snapshot {
	return domain.Snapshot{
		ID: someID, Status: domain.Pending, Customer: domain.Customer{ID: "c", Email: "a@example.com"}, Currency: "EUR",
		Lines: []domain.Line{{SKU: "a", Quantity: 2, Held: 2}}, Window: time.Minute, DueAt: dueAt, CreatedAt: dueAt.Add(-time.Minute),
	}
}

func placement() domain.Placement {
	return domain.Placement{
		ID: someID, Customer: domain.Customer{ID: "c", Email: "a@example.com"}, Currency: "EUR",
		Lines: []domain.Line{{SKU: "a", Quantity: 1, UnitPrice: 1}}, Window: time.Minute,
	}
}

func TestPlacingNamesTheBadField(t *testing.T) {
	t.Parallel()
	stock := map[string]domain.Stock{"a": {SKU: "a", Available: math.MaxInt64}, "b": {SKU: "b", Unlimited: true}}
	line := func(l domain.Line) func(*domain.Placement) {
		return func(p *domain.Placement) { p.Lines = []domain.Line{l} }
	}
	for field, change := range map[string]func(*domain.Placement){
		"order_id":            func(p *domain.Placement) { p.ID = "x" },
		"customer.id":         func(p *domain.Placement) { p.Customer.ID = "" },
		"customer.email":      func(p *domain.Placement) { p.Customer.Email = "A <a@example.com>" },
		"currency":            func(p *domain.Placement) { p.Currency = "eur" },
		"payment_window":      func(p *domain.Placement) { p.Window = 0 },
		"lines":               func(p *domain.Placement) { p.Lines = nil },
		"lines[0].sku":        line(domain.Line{SKU: "ä", Quantity: 1}),
		"lines[0].quantity":   line(domain.Line{SKU: "a"}),
		"lines[0].unit_price": line(domain.Line{SKU: "a", Quantity: 1, UnitPrice: -1}),
		"lines[1].sku": func(p *domain.Placement) {
			p.Lines = []domain.Line{{SKU: "a", Quantity: 1}, {SKU: "a", Quantity: 1}}
		},
	} {
		p := placement()
		change(&p)
		_, err := domain.Place(p, stock, time.Unix(0, 0))
		var fieldErr *domain.FieldError
		if !errors.As(err, &fieldErr) || fieldErr.Field != field || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	unknown := placement()
	unknown.Lines = append(unknown.Lines, domain.Line{SKU: "nobody-sells-it", Quantity: 1})
	var fieldErr *domain.FieldError
	if _, err := domain.Place(unknown, stock, time.Unix(0, 0)); !errors.As(err, &fieldErr) || fieldErr.Field != "lines[1].sku" {
		t.Errorf("unknown sku: %v", err)
	}
}

func TestIllegalDetailsCannotBeRehydrated(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*domain.Snapshot){
		"order_id":       func(s *domain.Snapshot) { s.ID = "x" },
		"lines[0].held":  func(s *domain.Snapshot) { s.Lines[0].Held = 1 },
		"lines":          func(s *domain.Snapshot) { s.Lines = nil },
		"payment_window": func(s *domain.Snapshot) { s.Window = -1 },
		"status":         func(s *domain.Snapshot) { s.Status = domain.Status{} },
		"due_at":         func(s *domain.Snapshot) { s.DueAt = time.Time{} },
		"created_at":     func(s *domain.Snapshot) { s.CreatedAt = time.Time{} },
	} {
		s := pending(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
		if _, err := domain.Rehydrate(s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		_, err := domain.Rehydrate(s)
		var fieldErr *domain.FieldError
		if !errors.As(err, &fieldErr) || fieldErr.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestPaymentNamesTheBadField(t *testing.T) {
	t.Parallel()
	good := domain.Payment{ID: strings.Repeat("p", 200), OrderID: someID, Amount: 0, Currency: "EUR"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string][]func(*domain.Payment){
		"payment_id": {func(p *domain.Payment) { p.ID = "" }, func(p *domain.Payment) { p.ID += "p" }},
		"order_id":   {func(p *domain.Payment) { p.OrderID = "" }},
		"amount":     {func(p *domain.Payment) { p.Amount = -1 }},
		"currency":   {func(p *domain.Payment) { p.Currency = "eu" }, func(p *domain.Payment) { p.Currency = "EURO" }},
	} {
		for _, change := range change {
			p := good
			change(&p)
			var fieldErr *domain.FieldError
			if err := p.Validate(); !errors.As(err, &fieldErr) || fieldErr.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
}

func TestNamesOfStatesAreReadBack(t *testing.T) {
	t.Parallel()
	for _, want := range []domain.Status{domain.Pending, domain.Paid, domain.Closed} {
		if got, err := domain.ParseStatus(want.String()); err != nil || got != want {
			t.Errorf("%s: got %s, %v", want, got, err)
		}
	}
	for _, want := range []domain.ClosedBy{domain.ByTimer, domain.BySweep, domain.ByReplay} {
		if got, err := domain.ParseClosedBy(want.String()); err != nil || got != want {
			t.Errorf("%s: got %s, %v", want, got, err)
		}
	}
	for _, text := range []string{"", "PAID", "paid ", "expired"} {
		if _, err := domain.ParseStatus(text); err == nil {
			t.Errorf("status %q was taken", text)
		}
		if _, err := domain.ParseClosedBy(text); err == nil {
			t.Errorf("closed_by %q was taken", text)
		}
	}
}

// Every limit is the last value that is taken.
func TestPlacingAtTheLimits(t *testing.T) {
	t.Parallel()
	stock := map[string]domain.Stock{"a": {SKU: "a", Unlimited: true}}
	for i := range domain.MaxLines + 1 {
		sku := fmt.Sprintf("s%d", i)
		stock[sku] = domain.Stock{SKU: sku, Unlimited: true}
	}
	for field, size := range map[string]struct {
		limit  int64
		change func(*domain.Placement, int64)
	}{
		"lines[0].quantity":   {domain.MaxQuantity, func(p *domain.Placement, n int64) { p.Lines[0].Quantity = n }},
		"lines[0].unit_price": {domain.MaxUnitPrice, func(p *domain.Placement, n int64) { p.Lines[0].UnitPrice = n }},
		"lines": {domain.MaxLines, func(p *domain.Placement, n int64) {
			p.Lines = nil
			for i := range n {
				p.Lines = append(p.Lines, domain.Line{SKU: fmt.Sprintf("s%d", i), Quantity: 1})
			}
		}},
		"customer.id": {200, func(p *domain.Placement, n int64) { p.Customer.ID = strings.Repeat("c", int(n)) }},
		"customer.email": {254, func(p *domain.Placement, n int64) {
			p.Customer.Email = strings.Repeat("a", int(n)-len("@example.com")) + "@example.com"
		}},
		"lines[0].sku": {64, func(p *domain.Placement, n int64) {
			p.Lines[0].SKU = strings.Repeat("a", int(n))
			stock[p.Lines[0].SKU] = domain.Stock{SKU: p.Lines[0].SKU, Unlimited: true}
		}},
	} {
		p := placement()
		size.change(&p, size.limit)
		if _, err := domain.Place(p, stock, time.Unix(0, 0)); err != nil {
			t.Errorf("%s at the limit: %v", field, err)
		}
		size.change(&p, size.limit+1)
		_, err := domain.Place(p, stock, time.Unix(0, 0))
		var fieldErr *domain.FieldError
		if !errors.As(err, &fieldErr) || fieldErr.Field != field {
			t.Errorf("%s beyond the limit: %v", field, err)
		}
	}
}

// Nine lines at both limits fit into 64 bits; what would not is refused, not wrapped.
func TestTotalsDoNotOverflow(t *testing.T) {
	t.Parallel()
	stock := map[string]domain.Stock{}
	p := placement()
	p.Lines = nil
	for sku := range strings.SplitSeq("abcdefghij", "") {
		stock[sku] = domain.Stock{SKU: sku, Unlimited: true}
		p.Lines = append(p.Lines, domain.Line{SKU: sku, Quantity: domain.MaxQuantity, UnitPrice: domain.MaxUnitPrice})
	}
	if _, err := domain.Place(p, stock, time.Unix(0, 0)); err == nil || !strings.HasPrefix(err.Error(), "lines: ") {
		t.Errorf("ten lines at the limit: %v", err)
	}
	p.Lines = p.Lines[:9]
	order, err := domain.Place(p, stock, time.Unix(0, 0))
	if err != nil || order.Snapshot().TotalAmount() != 9*domain.MaxQuantity*domain.MaxUnitPrice {
		t.Errorf("nine lines at the limit: %v", err)
	}
}

func TestCurrencyForm(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"EUR", "AED", "ZAR", "AZA"} {
		if got, err := domain.ParseCurrency(text); err != nil || string(got) != text {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "eur", "EU", "EURO", "EU1", "@AA", "AA[", "ÄU", " EUR", "E\xffR"} {
		_, err := domain.ParseCurrency(text)
		if got, ok := errors.AsType[*domain.FieldError](err); !ok || got.Field != "currency" || got.Got != text {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What came is cut short in an error, between characters.
func TestErrorsStayShort(t *testing.T) {
	t.Parallel()
	err := domain.ValidateSKU("sku", "a"+strings.Repeat("ä", 1<<20))
	got, ok := errors.AsType[*domain.FieldError](err)
	if !ok || got.Got != "a"+strings.Repeat("ä", 31)+"…" || len(err.Error()) > 500 {
		t.Errorf("got %v", err)
	}
}
