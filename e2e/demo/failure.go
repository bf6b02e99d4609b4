package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/ordertimeout/e2e/harness"
)

// actTwo deploys a closer that fails on one order, follows the message up the ladder
// into parking, deploys the cure and replays it.
func actTwo(s *stage, shop *harness.Shop, t *timeline, closer *harness.Process, mails int) {
	fmt.Printf("\nAct two. A release of the closer brings a bug that one order meets:\n\n")
	before := available(shop)
	broken := place(shop, t, "order 4")
	if code := closer.Terminate(); code != 0 {
		s.Fatalf("the closer ended with status %d", code)
	}
	bad := shop.StartFaulty(broken.ID)
	bad.AwaitReady()
	bad.OnLine(t.follow)
	t.sayf("demo", "the bad release is out")

	var groups []struct {
		Messages int    `json:"messages"`
		Error    string `json:"error"`
	}
	await(s, "order 4 to be parked", func() bool {
		operator(s, shop, &groups, "ls", "--json")
		return len(groups) == 1
	})
	t.sayf("demo", "an operator looks, with ordertimeout parked ls:")
	fmt.Println()
	table, _ := shop.Command("parked", "ls")
	for line := range strings.Lines(table) {
		fmt.Print("    ", line)
	}
	fmt.Println()
	if got := shop.Get(broken.ID).Status; got != "pending" || available(shop) != before-2 {
		s.Errorf("order 4 is %s while its message is parked, want pending and its stock held", got)
	}

	if code := bad.Terminate(); code != 0 {
		s.Errorf("the bad release ended with status %d", code)
	}
	shop.Run("closer")[0].OnLine(t.follow)
	t.sayf("demo", "the cure is out; the operator replays: ordertimeout parked replay --all")
	var run struct {
		Status  string `json:"status"`
		Handled int    `json:"handled"`
	}
	operator(s, shop, &run, "replay", "--all", "--as", "demo", "--json")
	shop.AwaitMails(mails + 1)
	shop.AwaitSettled()
	shop.AwaitQuiet(0)
	closed := shop.Get(broken.ID)
	if run.Status != "done" || run.Handled != 1 || closed.Status != "closed" || closed.ClosedBy == nil || *closed.ClosedBy != "replay" {
		s.Errorf("the run is %+v and order 4 is %s", run, closed.Status)
	}
	if got := available(shop); got != before {
		s.Errorf("%d units of tea available, want %d", got, before)
	}
	shop.CheckInvariants(map[string]int64{"tea": 10})
	shop.CheckMails(mails + 1)
	s.check()
	fmt.Printf("\nverified in %.0f s: order 4 failed %d times and was parked, not lost; the replay closed it, its 2 units are back, its buyer was told once; "+
		"who replayed what is in the audit\n", time.Since(t.began).Seconds(), attempts(shop))
}

func attempts(shop *harness.Shop) int64 {
	return shop.Count(`SELECT max(attempts) FROM parked_messages`)
}

// operator runs one of the operator's commands and reads its JSON.
func operator(s *stage, shop *harness.Shop, into any, args ...string) {
	out, code := shop.Command(append([]string{"parked"}, args...)...)
	if code != 0 {
		s.Fatalf("parked %s: exit %d: %s", strings.Join(args, " "), code, out)
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		s.Fatalf("parked %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
