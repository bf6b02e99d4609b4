package order

import (
	"encoding/base64"
	"fmt"
	"strings"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/httpapi"
)

// Config is what the order service reads from the environment.
type Config struct {
	Addr          string         `env:"ORDER_ADDR" envDefault:":8080"`
	OperatorToken string         `env:"OPERATOR_TOKEN,required,notEmpty"`
	WebhookSecret string         `env:"PAYMENT_WEBHOOK_SECRET,required,notEmpty"`
	Windows       domain.Windows `env:"PAYMENT_WINDOWS" envDefault:"30m"`
}

// minSecretBytes is the least that the Standard Webhooks specification allows.
const minSecretBytes = 24

// Validate returns a FieldError that names the variable and never shows a secret.
func (c Config) Validate() error {
	if err := httpapi.ValidateAddr("ORDER_ADDR", c.Addr); err != nil {
		return err
	}
	if err := httpapi.ValidateToken("OPERATOR_TOKEN", c.OperatorToken); err != nil {
		return err
	}
	if _, err := decodeSecret(c.WebhookSecret); err != nil {
		return err
	}
	if len(c.Windows) == 0 {
		return &domain.FieldError{Field: "PAYMENT_WINDOWS", Got: "", Allowed: "one or more durations, such as 30m,10m"}
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
