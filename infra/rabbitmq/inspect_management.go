package rabbitmq

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
)

// ManagementConfig says where the broker's management API is. Without it, bindings and
// policies cannot be seen.
type ManagementConfig struct {
	URL string `env:"RABBITMQ_MANAGEMENT_URL"` // optional
}

// Validate returns a domain.FieldError that names the variable. It never repeats the
// URL, which may hold a password.
func (c ManagementConfig) Validate() error {
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return &domain.FieldError{Field: "RABBITMQ_MANAGEMENT_URL", Got: "(not shown)", Allowed: "http://user:password@host:port or https://…"}
	}
	return nil
}

// Management asks the broker's management API about the queues of a topology.
type Management struct {
	topology Topology
	conn     *Connection
	base     *url.URL
	vhost    string
	client   http.Client
}

// NewManagement returns nil without a URL. conn says which virtual host the topology is
// in, and which version the broker has.
func NewManagement(c ManagementConfig, t Topology, conn *Connection) (*Management, error) {
	if c.URL == "" {
		return nil, nil
	}
	base, err := url.Parse(c.URL)
	if err != nil {
		return nil, c.Validate()
	}
	broker, err := amqp.ParseURI(conn.url)
	if err != nil {
		return nil, err
	}
	const timeout = 5 * time.Second // of one request
	return &Management{topology: t, conn: conn, base: base, vhost: broker.Vhost, client: http.Client{Timeout: timeout}}, nil
}

// LostBinding is a binding that should be there and is not.
type LostBinding struct{ Queue, Exchange, Key string }

// PolicySetting is a limit that a policy puts on a queue.
type PolicySetting struct{ Queue, Policy, Key, Value string }

// ManagementView is what only the management API knows. It is some seconds old.
type ManagementView struct {
	LostBindings []LostBinding
	// Policies are those settings that delete a queue, lose its messages or move them
	// ahead of time.
	Policies []PolicySetting
	// DeadLetters counts, for each queue, the messages that have expired or failed and
	// that their target has not confirmed. No depth counts these.
	DeadLetters map[string]int
	// ParkingLimit is how many returns drop a message from the parking queue; 0: none.
	ParkingLimit int
}

// View asks for everything. An error says that the API is away or refuses to answer.
func (m *Management) View(ctx context.Context) (ManagementView, error) {
	view := ManagementView{DeadLetters: map[string]int{}}
	if err := m.viewQueues(ctx, &view); err != nil {
		return ManagementView{}, err
	}
	bound := map[LostBinding]bool{}
	for _, e := range m.topology.exchanges() {
		var found []struct {
			Destination string `json:"destination"`
			Key         string `json:"routing_key"`
		}
		if err := m.get(ctx, &found, "api", "exchanges", m.vhost, e.name, "bindings", "source"); err != nil {
			return ManagementView{}, err
		}
		for _, b := range found {
			bound[LostBinding{Queue: b.Destination, Exchange: e.name, Key: b.Key}] = true
		}
	}
	for _, b := range m.topology.bindings() {
		if want := (LostBinding{Queue: b.queue, Exchange: b.exchange, Key: b.key}); !bound[want] {
			view.LostBindings = append(view.LostBindings, want)
		}
	}
	return view, nil
}

// managedQueue is one queue in the API's words.
type managedQueue struct {
	Name           string                     `json:"name"`
	Arguments      map[string]json.RawMessage `json:"arguments"`
	Policy         string                     `json:"policy"`
	OperatorPolicy string                     `json:"operator_policy"`
	Effective      effectivePolicy            `json:"effective_policy_definition"`
	DeadLetters    int                        `json:"messages_dlx"`
}

// effectivePolicy holds what a policy sets, in JSON. The API sends an empty list where
// there is no policy.
type effectivePolicy map[string]json.RawMessage

func (p *effectivePolicy) UnmarshalJSON(text []byte) error {
	var settings map[string]json.RawMessage
	if json.Unmarshal(text, &settings) == nil {
		*p = settings
	}
	return nil
}

func (m *Management) viewQueues(ctx context.Context, view *ManagementView) error {
	live, err := m.conn.await(ctx)
	if err != nil {
		return err
	}
	for _, name := range m.topology.queueNames() {
		var q managedQueue
		if err := m.get(ctx, &q, "api", "queues", m.vhost, name); err != nil {
			return err
		}
		if q.Name == "" { // it does not exist
			continue
		}
		if q.DeadLetters > 0 {
			view.DeadLetters[name] = q.DeadLetters
		}
		view.Policies = append(view.Policies, m.harmful(q)...)
		if name == m.topology.ParkingQueue() {
			view.ParkingLimit = parkingLimit(brokerMajor(live), q)
		}
	}
	return nil
}

// harmful returns the settings that no queue of the topology may have.
func (m *Management) harmful(q managedQueue) []PolicySetting {
	var all []PolicySetting
	for key, value := range q.Effective {
		if !slices.Contains([]string{"expires", "max-length", "max-length-bytes", "message-ttl"}, key) {
			continue
		}
		policy := q.Policy
		if policy == "" {
			policy = q.OperatorPolicy
		}
		all = append(all, PolicySetting{Queue: q.Name, Policy: policy, Key: key, Value: string(value)})
	}
	slices.SortFunc(all, func(a, b PolicySetting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// parkingLimit returns the delivery limit of the parking queue, 0 for none: from version
// 4 there is one unless an argument or a policy switches it off.
func parkingLimit(brokerMajor int, q managedQueue) int {
	if brokerMajor < 4 {
		return 0
	}
	limit, set := asInt(q.Arguments["x-delivery-limit"])
	if byPolicy, ok := asInt(q.Effective["delivery-limit"]); ok && (!set || byPolicy >= 0) {
		limit, set = byPolicy, true
	}
	switch {
	case !set:
		return defaultDeliveryLimit
	case limit < 0:
		return 0
	default:
		return max(1, limit)
	}
}

func asInt(text json.RawMessage) (n int, ok bool) {
	return n, json.Unmarshal(text, &n) == nil
}

// defaultDeliveryLimit is that of quorum queues from version 4.
const defaultDeliveryLimit = 20

// get reads one resource into out, and nothing when there is no such resource.
func (m *Management) get(ctx context.Context, out any, path ...string) error {
	for i, part := range path {
		path[i] = url.PathEscape(part)
	}
	resource := m.base.JoinPath(path...) // with user and password, which the client sends as a header
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, resource.String(), nil)
	if err != nil {
		return err
	}
	response, err := m.client.Do(request)
	if err != nil {
		return unavailable(fmt.Errorf("management API: %w", err))
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil
	default:
		return fmt.Errorf("rabbitmq: management API: %s for %s", response.Status, resource.Path)
	}
	if err := json.NewDecoder(response.Body).Decode(out); err != nil {
		return fmt.Errorf("rabbitmq: management API: %w", err)
	}
	return nil
}
