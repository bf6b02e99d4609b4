package order

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func TestStockIsSetAndListed(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	var level stockJSON
	a := s.asOperator("PUT", "/v1/stock/tea", map[string]any{"available": 5})
	a.into(t, 200, &level)
	if got := strings.TrimSpace(string(a.body)); got != `{"sku":"tea","available":5,"held":0,"sold":0}` {
		t.Errorf("got %s", got)
	}
	s.asOperator("PUT", "/v1/stock/tea", map[string]any{"available": 0}).want(t, 200)
	a = s.asOperator("PUT", "/v1/stock/tea", map[string]any{"available": nil})
	if got := strings.TrimSpace(string(a.body)); got != `{"sku":"tea","available":null,"held":0,"sold":0}` {
		t.Errorf("got %s", got)
	}
}

func TestStockListWalksEverySKUOnce(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	for i := range 7 {
		s.stocked(fmt.Sprintf("%c-tea_%d", "AbCdEfG"[i], i), int64(i))
	}
	seen := map[string]bool{}
	cursor := ""
	for {
		var list stockListJSON
		s.asOperator("GET", "/v1/stock?limit=2&cursor="+url.QueryEscape(cursor), nil).into(t, 200, &list)
		for _, level := range list.Items {
			if seen[level.SKU] {
				t.Errorf("%s twice", level.SKU)
			}
			seen[level.SKU] = true
		}
		if list.NextCursor == nil {
			break
		}
		cursor = *list.NextCursor
	}
	if len(seen) != 7 {
		t.Errorf("saw %v", seen)
	}
}

func TestUnitsThatAreHeldSurviveAChangeBetweenLimitedAndUnlimited(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	counted := s.place(wish("tea", 3))
	s.stocked("tea", -1)
	free := s.place(wish("tea", 5)) // holds nothing
	if level := s.stockOf("tea"); level.Available != nil || level.Held != 3 {
		t.Errorf("unlimited: %+v", level)
	}
	s.stocked("tea", 2)
	if level := s.stockOf("tea"); *level.Available != 2 || level.Held != 3 {
		t.Errorf("limited again: %+v", level)
	}
	s.report(payment("p-1", free)).want(t, 200)
	s.report(payment("p-2", counted)).want(t, 200)
	if level := s.stockOf("tea"); *level.Available != 2 || level.Held != 0 || level.Sold != 3 {
		t.Errorf("paid: %+v", level)
	}
	s.closed()
	if level := s.stockOf("tea"); *level.Available != 2 || level.Held != 0 {
		t.Errorf("closed: %+v", level)
	}
}

func TestBadStockNamesTheField(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	for name, c := range map[string]struct {
		sku   string
		body  any
		field string
	}{
		"negative":        {"tea", map[string]any{"available": -1}, "available"},
		"too large":       {"tea", map[string]any{"available": 1_000_000_000_001}, "available"},
		"fraction":        {"tea", map[string]any{"available": 1.5}, "available"},
		"text":            {"tea", map[string]any{"available": "5"}, "available"},
		"missing":         {"tea", map[string]any{}, "available"},
		"sku with space":  {"black%20tea", map[string]any{"available": 1}, "sku"},
		"sku is too long": {strings.Repeat("t", 65), map[string]any{"available": 1}, "sku"},
	} {
		t.Run(name, func(t *testing.T) {
			s.asOperator("PUT", "/v1/stock/"+c.sku, c.body).wantProblem(t, 422, "invalid", c.field)
		})
	}
	s.asOperator("GET", "/v1/stock?limit=0", nil).wantProblem(t, 422, "invalid", "limit")
	s.asOperator("GET", "/v1/stock?cursor=abc", nil).wantProblem(t, 422, "invalid", "cursor")
}
