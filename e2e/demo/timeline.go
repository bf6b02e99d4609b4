package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// timeline prints what happens as it happens: when, in which component, what.
type timeline struct {
	began time.Time

	mu    sync.Mutex
	names map[string]string // of orders, by id
}

func (t *timeline) name(o order) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names[o.ID] = o.name
}

func (t *timeline) sayf(component, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(component, fmt.Sprintf(format, args...))
}

func (t *timeline) print(component, text string) {
	fmt.Printf("%7.3f s  %-10s  %s\n", time.Since(t.began).Seconds(), component, text)
}

// follow turns a service's log line into a line of the story, if it belongs to it.
func (t *timeline) follow(line []byte) {
	var entry struct {
		Msg     string `json:"msg"`
		OrderID string `json:"order_id"`
		Late    string `json:"late"`
		Waited  string `json:"waited"`
		Wait    string `json:"wait"`
		Type    string `json:"type"`
		Kind    string `json:"kind"`
		Result  string `json:"result"`
		Error   string `json:"error"`
		Attempt int    `json:"attempt"`
		Sent    int    `json:"sent"`
		By      string `json:"by"`
	}
	if json.Unmarshal(line, &entry) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	name := t.names[entry.OrderID]
	for id, known := range t.names {
		if name == "" && strings.Contains(entry.Error, id) {
			name = known
		}
	}
	switch entry.Msg {
	case "message published":
		t.print("relay", fmt.Sprintf("%s: %s is in the broker, %s after its commit", name, entry.Type, rounded(entry.Waited)))
	case "timer is not due yet":
		t.print("closer", "a timer came early and waits for the other "+rounded(entry.Wait))
	case "order closed":
		by := ""
		if entry.By != "timer" {
			by = " by " + entry.By
		}
		t.print("closer", fmt.Sprintf("%s closed%s, %s late; its stock is back", name, by, rounded(entry.Late)))
	case "nothing to close":
		t.print("closer", name+": its timer found nothing to do")
	case "handling failed, message waits on the ladder":
		t.print("closer", fmt.Sprintf("%s: attempt %d failed, the message waits %s on the ladder", name, entry.Attempt, entry.Wait))
	case "handling failed for good, message parked":
		t.print("closer", fmt.Sprintf("%s: attempt %d failed, the message goes to the parking queue", name, entry.Attempt))
	case "parked message stored":
		t.print("reconciler", fmt.Sprintf("%s: parked with its story, for a person to look at", name))
	case "buyer notification decided":
		if entry.Result == "sent" {
			t.print("notifier", fmt.Sprintf("%s: mail sent (%s)", name, entry.Kind))
		}
	}
}

func rounded(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		return text
	}
	return d.Round(100 * time.Microsecond).String()
}
