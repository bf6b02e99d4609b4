package console

import (
	"net/http"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

const pageSize = 50

// ordersPage is the list of orders.
type ordersPage struct {
	Status string
	Orders []domain.Snapshot
	Next   string
}

func (c *Console) listOrders(w http.ResponseWriter, r *http.Request) error {
	p := ordersPage{Status: r.URL.Query().Get("status")}
	query := postgres.ListQuery{Limit: pageSize + 1}
	var err error
	if p.Status != "" {
		if query.Status, err = domain.ParseStatus(p.Status); err != nil {
			return err
		}
	}
	if before := r.URL.Query().Get("before"); before != "" {
		if query.Before, err = domain.ParseOrderID(before); err != nil {
			return err
		}
	}
	if id := r.URL.Query().Get("id"); id != "" {
		parsed, err := domain.ParseOrderID(id)
		if err != nil {
			return err
		}
		http.Redirect(w, r, "/orders/"+string(parsed), http.StatusSeeOther)
		return nil
	}
	orders, err := c.deps.Orders.List(r.Context(), query)
	if err != nil {
		return err
	}
	if len(orders) > pageSize {
		orders = orders[:pageSize]
		p.Next = string(orders[pageSize-1].ID())
	}
	for _, o := range orders {
		p.Orders = append(p.Orders, o.Snapshot())
	}
	return c.show(w, r, "orders", "orders", "Orders", p)
}

// orderPage is one order with what happened to it.
type orderPage struct {
	domain.Snapshot

	Left    time.Duration // until it is due; negative when overdue
	History []postgres.HistoryEntry
}

func (c *Console) showOrder(w http.ResponseWriter, r *http.Request) error {
	id, err := domain.ParseOrderID(r.PathValue("id"))
	if err != nil {
		return domain.ErrOrderNotFound
	}
	order, err := c.deps.Orders.Get(r.Context(), id)
	if err != nil {
		return err
	}
	history, err := c.deps.Orders.History(r.Context(), id)
	if err != nil {
		return err
	}
	return c.show(w, r, "order", "orders", "Order "+string(id), orderPage{
		Snapshot: order.Snapshot(), Left: time.Until(order.DueAt()), History: history,
	})
}
