package rabbitmq

import (
	"encoding/json"
	"testing"
)

// From version 4 the parking queue has a limit unless an argument or a policy says no.
func TestParkingLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"arguments": {}, "effective_policy_definition": []}`:                                          20,
		`{"arguments": {"x-delivery-limit": -1}, "effective_policy_definition": {}}`:                    0,
		`{"arguments": {}, "effective_policy_definition": {"delivery-limit": -1}}`:                      0,
		`{"arguments": {}, "effective_policy_definition": {"delivery-limit": 3}}`:                       3,
		`{"arguments": {"x-delivery-limit": -1}, "effective_policy_definition": {"delivery-limit": 3}}`: 3,
		`{"arguments": {"x-delivery-limit": 0}, "effective_policy_definition": {"max-length": 3}}`:      1,
		`{"arguments": {"x-delivery-limit": 7}, "effective_policy_definition": {"delivery-limit": -1}}`: 7,
	} {
		var q managedQueue
		if err := json.Unmarshal([]byte(text), &q); err != nil {
			t.Fatal(err)
		}
		if got := parkingLimit(4, q); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
		if got := parkingLimit(3, q); got != 0 {
			t.Errorf("version 3, %s: %d", text, got)
		}
	}
}
