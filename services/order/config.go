package order

import (
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"

	"example.com/ordertimeout/domain"
)

// Config is what the order service reads from the environment.
type Config struct {
	Addr          string         `env:"ORDER_ADDR" envDefault:":8080"`
	OperatorToken string         `env:"OPERATOR_TOKEN,required,notEmpty"`
	WebhookSecret string         `env:"PAYMENT_WEBHOOK_SECRET,required,notEmpty"`
	Windows       domain.Windows `env:"PAYMENT_WINDOWS" envDefault:"30m"`
}

const (
	minTokenLength = 16 // short enough to type, long enough not to be guessed over a network
	minSecretBytes = 24 // the least that the Standard Webhooks specification allows
)

// Validate returns a FieldError that names the variable and never shows a secret.
func (c Config) Validate() error {
	if err := validateAddr(c.Addr); err != nil {
		return err
	}
	if n := len(c.OperatorToken); n < minTokenLength {
		return &domain.FieldError{
			Field: "OPERATOR_TOKEN", Got: fmt.Sprintf("%d characters", n),
			Allowed: fmt.Sprintf("%d characters or more", minTokenLength),
		}
	}
	if _, err := decodeSecret(c.WebhookSecret); err != nil {
		return err
	}
	if len(c.Windows) == 0 {
		return &domain.FieldError{Field: "PAYMENT_WINDOWS", Got: "", Allowed: "one or more durations, such as 30m,10m"}
	}
	return nil
}

func validateAddr(addr string) error {
	bad := &domain.FieldError{Field: "ORDER_ADDR", Got: addr, Allowed: "host:port or :port, with a port from 0 to 65535"}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return bad
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return bad
	}
	return nil
}

func decodeSecret(secret string) ([]byte, error) {
	const allowed = "%d bytes or more in base64, with or without the prefix whsec_"
	bad := &domain.FieldError{Field: "PAYMENT_WEBHOOK_SECRET", Allowed: fmt.Sprintf(allowed, minSecretBytes)}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		bad.Got = fmt.Sprintf("%d characters that are not base64", len(secret))
		return nil, bad
	}
	if len(key) < minSecretBytes {
		bad.Got = fmt.Sprintf("%d bytes", len(key))
		return nil, bad
	}
	return key, nil
}
