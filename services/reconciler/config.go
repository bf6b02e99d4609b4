package reconciler

import "example.com/ordertimeout/domain"

// ReplayConfig has a default for everything.
type ReplayConfig struct {
	// Limit bounds how often one message is replayed, over all its parkings: what failed
	// five times for the same cause needs another cure.
	Limit int `env:"REPLAY_LIMIT" envDefault:"5"`
}

// Validate returns a domain.FieldError that names the variable.
func (c ReplayConfig) Validate() error {
	if c.Limit < 1 || c.Limit > 1000 {
		return &domain.FieldError{Field: "REPLAY_LIMIT", Got: c.Limit, Allowed: "1 to 1000"}
	}
	return nil
}
