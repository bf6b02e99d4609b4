package rabbitmq

import (
	"regexp"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/ordertimeout/domain"
)

// Config says which broker, and under which names.
type Config struct {
	URL       string `env:"AMQP_URL,required,notEmpty"`
	Namespace string `env:"TOPOLOGY_NAMESPACE" envDefault:"order"` // first part of every exchange's and queue's name
}

var namespaceForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)

// Validate returns a domain.FieldError that names the variable. It never repeats the
// URL, which may hold a password.
func (c Config) Validate() error {
	if _, err := amqp.ParseURI(c.URL); err != nil {
		return &domain.FieldError{Field: "AMQP_URL", Got: "(not shown)", Allowed: "amqp://user:password@host:port/vhost or amqps://…"}
	}
	if !namespaceForm.MatchString(c.Namespace) {
		return &domain.FieldError{Field: "TOPOLOGY_NAMESPACE", Got: c.Namespace, Allowed: "1 to 40 lower-case letters, digits, dashes or underscores, beginning with a letter"}
	}
	return nil
}
