package order

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/ordertimeout/domain"
)

func TestConfigIsReadFromTheEnvironment(t *testing.T) {
	t.Parallel()
	cfg, err := env.ParseAsWithOptions[Config](env.Options{Environment: map[string]string{
		"OPERATOR_TOKEN": testToken, "PAYMENT_WEBHOOK_SECRET": testSecret, "PAYMENT_WINDOWS": "1h, 90s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Addr != ":8080" || len(cfg.Windows) != 2 || cfg.Windows.Default() != time.Hour || cfg.Windows[1] != 90*time.Second {
		t.Errorf("got %s and windows %v", cfg.Addr, cfg.Windows)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestBadConfigNamesTheVariableAndShowsNoSecret(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil    func(*Config)
		variable string
		secret   string
	}{
		"address without port": {func(c *Config) { c.Addr = "localhost" }, "ORDER_ADDR", ""},
		"port is not a number": {func(c *Config) { c.Addr = ":http" }, "ORDER_ADDR", ""},
		"port is too large":    {func(c *Config) { c.Addr = ":65536" }, "ORDER_ADDR", ""},
		"token too short":      {func(c *Config) { c.OperatorToken = "fifteen-letters" }, "OPERATOR_TOKEN", "fifteen-letters"},
		"no token":             {func(c *Config) { c.OperatorToken = "" }, "OPERATOR_TOKEN", ""},
		"secret is not base64": {func(c *Config) { c.WebhookSecret = "whsec_not!base64" }, "PAYMENT_WEBHOOK_SECRET", "not!base64"},
		"secret of 23 bytes":   {func(c *Config) { c.WebhookSecret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY=" }, "PAYMENT_WEBHOOK_SECRET", "MDEyMzQ1"},
		"no secret":            {func(c *Config) { c.WebhookSecret = "" }, "PAYMENT_WEBHOOK_SECRET", ""},
		"no window":            {func(c *Config) { c.Windows = nil }, "PAYMENT_WINDOWS", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig
			c.spoil(&cfg)
			err := cfg.Validate()
			var field *domain.FieldError
			if !errors.As(err, &field) || field.Field != c.variable || field.Allowed == "" {
				t.Fatalf("got %v, want a field error for %s", err, c.variable)
			}
			if c.secret != "" && strings.Contains(err.Error(), c.secret) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestSecretNeedsNoPrefix(t *testing.T) {
	t.Parallel()
	cfg := testConfig
	cfg.WebhookSecret = strings.TrimPrefix(testSecret, "whsec_")
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
