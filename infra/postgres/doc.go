// Package postgres is the adapter to PostgreSQL: db.go connects and migrates,
// transact.go is the one way to run a transaction, failure.go says what a driver's
// error means, and there is a file for each store.
//
// Rows are always locked in the same order: orders by id, then stock by sku. The
// time is always the database's, now(), which is when the transaction began.
package postgres
