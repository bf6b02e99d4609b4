// Package order is the HTTP side of the application: it takes orders, payments and
// operators' wishes, asks the domain through the store, and answers.
//
// place.go, lookup.go, pay.go, extend.go and stock.go hold one call each, on top of
// httpapi. problem.go is the table from this service's errors to HTTP statuses. No call
// talks to the broker: what must be told goes into the outbox, in the transaction of
// the change.
package order
