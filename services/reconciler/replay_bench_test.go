package reconciler_test

import (
	"testing"
	"time"

	"example.com/ordertimeout/infra/postgres"
)

// BenchmarkReplay sends parked messages, recorded one by one, as fast as it can, and
// lists and groups them. The seed of this idea replayed 50 messages a second.
//
//	go test -run '^$' -bench Replay -benchtime 1x ./services/reconciler
func BenchmarkReplay(b *testing.B) {
	const messages = 10_000
	for b.Loop() {
		y := newYard(b)
		y.park(messages)
		began := time.Now()
		page, err := y.parked.List(b.Context(), postgres.ParkedQuery{Limit: 50})
		if err != nil || len(page) != 50 {
			b.Fatal(len(page), err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/page")
		began = time.Now()
		groups, err := y.parked.Groups(b.Context(), postgres.ParkedFilter{})
		if err != nil || len(groups) != 3 {
			b.Fatal(len(groups), err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/groups")

		began = time.Now()
		run := y.start(postgres.ReplayRequest{})
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/start")
		began = time.Now()
		stop := y.replayer(y.publisher)
		y.eventually("everything is sent", func() bool { return y.get(run.ID).Sent == messages })
		b.ReportMetric(messages/time.Since(began).Seconds(), "replays/s")
		stop()
	}
}
