package order

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/google/uuid"
)

func TestUnknownOrMalformedIDIsRefused(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.call("GET", "/v1/orders/"+uuid.NewString(), nil).wantProblem(t, 404, "unknown-order", "")
	for _, id := range []string{"1", "not-a-uuid", "0193b1f2-7c52-7c0e-9d0c-0d2f6a7b8c9", "%00"} {
		s.call("GET", "/v1/orders/"+id, nil).wantProblem(t, 422, "invalid", "id")
	}
}

func TestIDIsTakenInUpperCase(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 1)
	o := s.place(wish("tea", 1))
	upper := uuid.MustParse(o.ID)
	var got orderJSON
	s.call("GET", fmt.Sprintf("/v1/orders/%X-%X-%X-%X-%X", upper[:4], upper[4:6], upper[6:8], upper[8:10], upper[10:]), nil).into(t, 200, &got)
	if got.ID != o.ID {
		t.Errorf("got %s", got.ID)
	}
}

func TestListWalksEveryOrderOnceWhileNewOnesArrive(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", -1)
	want := map[string]bool{}
	for range 11 {
		want[s.place(wish("tea", 1)).ID] = true
	}
	seen := map[string]int{}
	cursor, pages := "", 0
	for {
		var list orderListJSON
		s.call("GET", "/v1/orders?limit=3&cursor="+url.QueryEscape(cursor), nil).into(t, 200, &list)
		pages++
		for i, o := range list.Items {
			seen[o.ID]++
			if i > 0 && o.ID >= list.Items[i-1].ID {
				t.Errorf("%s comes after %s: not newest first", o.ID, list.Items[i-1].ID)
			}
		}
		if list.NextCursor == nil {
			break
		}
		if len(list.Items) != 3 {
			t.Errorf("a page of %d before the last", len(list.Items))
		}
		cursor = *list.NextCursor
		s.place(wish("tea", 1))
	}
	if pages != 4 {
		t.Errorf("%d pages", pages)
	}
	if len(seen) != len(want) {
		t.Errorf("saw %d orders, want %d", len(seen), len(want))
	}
	for id := range want {
		if seen[id] != 1 {
			t.Errorf("order %s seen %d times", id, seen[id])
		}
	}
}

func TestListPageThatIsExactlyFullIsTheLast(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", -1)
	for range 3 {
		s.place(wish("tea", 1))
	}
	var list orderListJSON
	s.call("GET", "/v1/orders?limit=3", nil).into(t, 200, &list)
	if len(list.Items) != 3 || list.NextCursor != nil {
		t.Errorf("%d items, next %v", len(list.Items), list.NextCursor)
	}
}

func TestEmptyListIsAList(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	a := s.call("GET", "/v1/orders", nil)
	a.want(t, 200)
	if got := string(a.body); got != "{\"items\":[],\"next_cursor\":null}\n" {
		t.Errorf("got %s", got)
	}
}

func TestListByStatus(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", 10)
	pending, paid, closed := s.place(wish("tea", 1)), s.place(wish("tea", 1)), s.closed()
	s.report(payment("p-1", paid)).want(t, 200)
	for status, id := range map[string]string{"pending": pending.ID, "paid": paid.ID, "closed": closed.ID} {
		var list orderListJSON
		s.call("GET", "/v1/orders?status="+status, nil).into(t, 200, &list)
		if len(list.Items) != 1 || list.Items[0].ID != id || list.Items[0].Status != status {
			t.Errorf("%s: %+v", status, list.Items)
		}
	}
}

func TestListHasFiftyItemsByDefault(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.stocked("tea", -1)
	for range 51 {
		s.place(wish("tea", 1))
	}
	var list orderListJSON
	s.call("GET", "/v1/orders", nil).into(t, 200, &list)
	if len(list.Items) != 50 || list.NextCursor == nil {
		t.Errorf("%d items", len(list.Items))
	}
	s.call("GET", "/v1/orders?limit=200", nil).into(t, 200, &list)
	if len(list.Items) != 51 {
		t.Errorf("%d items", len(list.Items))
	}
}

func TestBadListParameterIsNamed(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	for query, field := range map[string]string{
		"limit=0":                             "limit",
		"limit=201":                           "limit",
		"limit=-1":                            "limit",
		"limit=ten":                           "limit",
		"status=open":                         "status",
		"cursor=!":                            "cursor",
		"cursor=abc":                          "cursor",
		"cursor=b3g":                          "cursor", // decodes, but to no id
		"cursor=" + *encodeStockCursor("tea"): "cursor",
		"cursor=" + *encodeStockCursor("sixteen-letters-"): "cursor",
		"stauts=paid": "stauts",
	} {
		t.Run(query, func(t *testing.T) {
			s.call("GET", "/v1/orders?"+query, nil).wantProblem(t, 422, "invalid", field)
		})
	}
}
