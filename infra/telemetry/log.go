// Package telemetry is how a process tells what it does: log, health and metrics.
package telemetry

import (
	"io"
	"log/slog"
	"net"
	"strconv"

	"example.com/ordertimeout/domain"
)

// Config is read by every service.
type Config struct {
	LogLevel    string `env:"LOG_LEVEL" envDefault:"info"`
	LogFormat   string `env:"LOG_FORMAT" envDefault:"text"`
	MetricsAddr string `env:"METRICS_ADDR" envDefault:":9090"` // serves /healthz, /readyz and /metrics
}

// Validate returns a domain.FieldError that names the variable.
func (c Config) Validate() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return &domain.FieldError{Field: "LOG_LEVEL", Got: c.LogLevel, Allowed: "debug, info, warn or error"}
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return &domain.FieldError{Field: "LOG_FORMAT", Got: c.LogFormat, Allowed: "text or json"}
	}
	_, port, err := net.SplitHostPort(c.MetricsAddr)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		return &domain.FieldError{Field: "METRICS_ADDR", Got: c.MetricsAddr, Allowed: "host:port, such as :9090"}
	}
	return nil
}

// NewLogger returns the process's logger. c is valid.
func NewLogger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by Validate
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
