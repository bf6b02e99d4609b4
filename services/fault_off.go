//go:build !faults

package main

import (
	"os"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/services/closer"
)

// faulty does nothing: this build has no faults, and says so to who wants one.
func faulty(orders closer.Orders) (closer.Orders, error) {
	if order := os.Getenv(faultVariable); order != "" {
		return nil, &domain.FieldError{Field: faultVariable, Got: order, Allowed: "nothing: only a build with the tag \"faults\" can be made to fail"}
	}
	return orders, nil
}
