package rabbitmq_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

// managementAPI answers as RabbitMQ does; what a test does not set is as it should be.
type managementAPI struct {
	queues   map[string]string // the JSON of a queue; empty: there is none
	bindings map[string]string // of an exchange, as source
}

func (m managementAPI) start(t *testing.T, topology rabbitmq.Topology) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "guest" || password != "p@ss" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		path := strings.Split(r.URL.EscapedPath(), "/")[2:] // after /api
		text, ok := "", false
		if path[1] == "%2F" {
			switch path[0] {
			case "queues":
				if text, ok = m.queues[path[2]]; !ok {
					text, ok = `{"name": "`+path[2]+`", "arguments": {"x-delivery-limit": -1}, "policy": null, "operator_policy": null, "effective_policy_definition": []}`, true
				}
			case "exchanges":
				if text, ok = m.bindings[path[2]]; !ok {
					text, ok = m.allBindings(topology, path[2]), true
				}
			}
		}
		if text == "" || !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"error":"Object Not Found","reason":"Not Found"}`
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return strings.Replace(server.URL, "http://", "http://guest:p%40ss@", 1)
}

// allBindings is what the API says of an exchange of a topology with one rung and one
// delay of an hour.
func (managementAPI) allBindings(t rabbitmq.Topology, exchange string) string {
	ns := t.Namespace()
	all := map[string][][2]string{
		ns + ".exchange":         {{t.DelayQueue(time.Hour), ns + ".delay.1h.key"}},
		ns + ".dlx.exchange":     {{t.Queue(rabbitmq.Closer), ns + ".timeout.key"}},
		ns + ".retry.exchange":   {{ns + ".closer.retry.1.1m.queue", "closer.retry.1.1m"}, {ns + ".notifier.retry.1.1m.queue", "notifier.retry.1.1m"}},
		ns + ".parking.exchange": {{t.ParkingQueue(), "#"}},
	}
	for _, typ := range domain.BuyerEvents {
		all[ns+".events.exchange"] = append(all[ns+".events.exchange"], [2]string{t.Queue(rabbitmq.Notifier), string(typ)})
	}
	var texts []string
	for _, b := range all[exchange] {
		texts = append(texts, `{"source":"`+exchange+`","vhost":"/","destination":"`+b[0]+`","destination_type":"queue","routing_key":"`+b[1]+`","arguments":{}}`)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

func managementTopology() rabbitmq.Topology {
	return rabbitmq.NewTopology("shop", domain.NewDelays(domain.Windows{time.Hour}, domain.Tiers{time.Hour}), domain.Ladder{time.Minute})
}

func view(t *testing.T, api managementAPI) rabbitmq.ManagementView {
	t.Helper()
	topology := managementTopology()
	management, err := rabbitmq.NewManagement(rabbitmq.ManagementConfig{URL: api.start(t, topology)}, topology, connect(t))
	if err != nil {
		t.Fatal(err)
	}
	view, err := management.View(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return view
}

func TestManagementFindsNothingWhereNothingIsWrong(t *testing.T) {
	t.Parallel()
	v := view(t, managementAPI{})
	if len(v.LostBindings)+len(v.Policies)+len(v.DeadLetters)+v.ParkingLimit != 0 {
		t.Errorf("%+v", v)
	}
}

func TestManagementSeesBindingsPoliciesAndDeadLetters(t *testing.T) {
	t.Parallel()
	v := view(t, managementAPI{
		queues: map[string]string{
			"shop.delay.1h.queue": `{"name":"shop.delay.1h.queue","arguments":{"x-message-ttl":3600000},"policy":"bad","operator_policy":"op","messages_dlx":3,
				"effective_policy_definition":{"message-ttl":5000,"expires":3600000,"max-length":10,"ha-mode":"all"}}`,
			"shop.notify.queue":            `{"name":"shop.notify.queue","policy":null,"operator_policy":"op","effective_policy_definition":{"max-length-bytes":1000}}`,
			"shop.closer.retry.1.1m.queue": "",
		},
		bindings: map[string]string{
			"shop.dlx.exchange":   `[{"source":"shop.dlx.exchange","destination":"shop.timeout.queue","routing_key":"shop.timeout.kye"}]`,
			"shop.retry.exchange": "",
		},
	})
	wantLost := []rabbitmq.LostBinding{
		{Queue: "shop.timeout.queue", Exchange: "shop.dlx.exchange", Key: "shop.timeout.key"},
		{Queue: "shop.closer.retry.1.1m.queue", Exchange: "shop.retry.exchange", Key: "closer.retry.1.1m"},
		{Queue: "shop.notifier.retry.1.1m.queue", Exchange: "shop.retry.exchange", Key: "notifier.retry.1.1m"},
	}
	if !slices.Equal(v.LostBindings, wantLost) {
		t.Errorf("lost bindings %+v, want %+v", v.LostBindings, wantLost)
	}
	wantPolicies := []rabbitmq.PolicySetting{
		{Queue: "shop.delay.1h.queue", Policy: "bad", Key: "expires", Value: "3600000"},
		{Queue: "shop.delay.1h.queue", Policy: "bad", Key: "max-length", Value: "10"},
		{Queue: "shop.delay.1h.queue", Policy: "bad", Key: "message-ttl", Value: "5000"},
		{Queue: "shop.notify.queue", Policy: "op", Key: "max-length-bytes", Value: "1000"},
	}
	if !slices.Equal(v.Policies, wantPolicies) {
		t.Errorf("policies %+v, want %+v", v.Policies, wantPolicies)
	}
	if len(v.DeadLetters) != 1 || v.DeadLetters["shop.delay.1h.queue"] != 3 {
		t.Errorf("dead letters %v", v.DeadLetters)
	}
}

// What the API must not be asked, or does not answer, is an error.
func TestManagementSaysWhyItDoesNotAnswer(t *testing.T) {
	t.Parallel()
	topology, conn := managementTopology(), connect(t)
	if m, err := rabbitmq.NewManagement(rabbitmq.ManagementConfig{}, topology, conn); m != nil || err != nil {
		t.Errorf("without a URL: %v, %v", m, err)
	}
	ask := func(base string) error {
		m, err := rabbitmq.NewManagement(rabbitmq.ManagementConfig{URL: base}, topology, conn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.View(within(t))
		return err
	}
	right := managementAPI{}.start(t, topology)
	if err := ask(right); err != nil {
		t.Error(err)
	}
	stranger, _ := url.Parse(right)
	stranger.User = url.UserPassword("guest", "secret")
	if err := ask(stranger.String()); err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "secret") {
		t.Errorf("with a wrong password: %v", err)
	}
	if err := ask("http://guest:secret@127.0.0.1:1"); !errors.Is(err, domain.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("away: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	m, err := rabbitmq.NewManagement(rabbitmq.ManagementConfig{URL: right}, topology, conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.View(ended); err == nil {
		t.Error("it goes on after the end")
	}
}

func TestManagementConfigNamesTheVariable(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "http://guest:guest@127.0.0.1:15672", "https://broker/rabbit"} {
		if err := (rabbitmq.ManagementConfig{URL: good}).Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"127.0.0.1:15672", "amqp://guest:secret@127.0.0.1", "http://", "http://guest:secret@[::1"} {
		err := (rabbitmq.ManagementConfig{URL: bad}).Validate()
		field, ok := errors.AsType[*domain.FieldError](err)
		if !ok || field.Field != "RABBITMQ_MANAGEMENT_URL" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
