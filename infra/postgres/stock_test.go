package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

func TestStockIsSetWithinItsBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []int64{0, 1, domain.MaxAvailable} {
		if level, err := w.stock.Set(ctx, "a", &n); err != nil || level.SKU != "a" || *level.Available != n {
			t.Errorf("%d: %+v, %v", n, level, err)
		}
	}
	for _, n := range []int64{-1, domain.MaxAvailable + 1} {
		_, err := w.stock.Set(ctx, "a", &n)
		if field, ok := errors.AsType[*domain.FieldError](err); !ok || field.Field != "available" || field.Got != n {
			t.Errorf("%d: %v", n, err)
		}
	}
	if n := w.count(`SELECT available FROM stock`); n != domain.MaxAvailable {
		t.Errorf("a refused number left %d", n)
	}
}

func TestStockIsListedInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sku := range []string{"d", "a", "e", "c", "b"} {
		w.setStock(sku, 1)
	}
	var got []string
	after := ""
	for range 4 { // the last page is empty
		for _, level := range must(w.stock.List(ctx, after, 2)) {
			got = append(got, level.SKU)
			after = level.SKU
		}
	}
	if fmt.Sprint(got) != "[a b c d e]" {
		t.Errorf("got %v", got)
	}
}

// What pending and paid orders took stays counted when the level is set anew, and what
// they give back does not turn unlimited stock into limited.
func TestSettingStockKeepsWhatOrdersTook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setStock("a", 10)
	due, sold := w.place(time.Millisecond, line("a", 2)), w.place(time.Hour, line("a", 3))
	must(w.orders.Pay(ctx, pay(sold, "p")))
	ninety := int64(90)
	if level := must(w.stock.Set(ctx, "a", &ninety)); *level.Available != 90 || level.Held != 2 || level.Sold != 3 {
		t.Errorf("set anew: %+v", level)
	}
	if level := must(w.stock.Set(ctx, "a", nil)); level.Available != nil || level.Held != 2 || level.Sold != 3 {
		t.Errorf("unlimited: %+v", level)
	}
	if closed, err := w.closeOrder(due.ID()); !closed || err != nil {
		t.Fatalf("closed %v, %v", closed, err)
	}
	want := postgres.StockLevel{SKU: "a", Sold: 3}
	if levels := must(w.stock.List(ctx, "", 10)); len(levels) != 1 || levels[0] != want {
		t.Errorf("after the hold came back: %+v, want %+v", levels, want)
	}
}
