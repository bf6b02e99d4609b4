// Package reconciler repairs what failed. In reading order:
//
//	ingest.go   parking queue ─▶ Postgres: every message that needs a person, with its story
//	replay.go   a run sends parked messages back to the consumer that failed, canary first
//	sweep.go    closes overdue orders whose timer did not come
//	drift.go    pending orders against the timers that are on their way
//	watch.go    queues that lost their consumer, binding or arguments, with cause and cure
//	api.go      the operator's calls over all of it
//	console     the same for people, as web pages
//
// Any number of reconcilers work side by side: parkings are stored once, a run is leased
// to one of them at a time, and the sweep skips what another one holds.
package reconciler
