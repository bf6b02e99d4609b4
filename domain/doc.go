// Package domain holds the rules of an order that must be paid in time: what an
// order is, which decisions can be taken about it, how long a timer waits and
// over which delays, what a failed message does next, and what the events say.
//
// Read it in the order of an order's life: place.go, pay.go, extend.go, close.go
// decide; order.go says what an order may look like; delay.go plans the way of a
// timer over fixed delays; event.go is the contract of the messages; outcome.go
// and ladder.go say what becomes of a message whose handling failed.
//
// Nothing here knows a clock, a database or a broker. Time is always passed in,
// and it is always the database's time.
package domain
