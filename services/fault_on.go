//go:build faults

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/services/closer"
)

// faulty makes every close of the order that FAULT_CLOSE names fail, as a bug would.
// It exists in builds with the tag "faults" only, for demonstrations and exercises.
func faulty(orders closer.Orders) (closer.Orders, error) {
	return faultyOrders{orders, domain.OrderID(os.Getenv(faultVariable))}, nil
}

type faultyOrders struct {
	closer.Orders

	broken domain.OrderID
}

func (f faultyOrders) Update(ctx context.Context, id domain.OrderID, decide func(*domain.Order, time.Time) error) (*domain.Order, error) {
	if id == f.broken {
		return nil, errors.New("a bug that this release brought")
	}
	return f.Orders.Update(ctx, id, decide)
}
