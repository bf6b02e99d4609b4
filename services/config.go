package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/rabbitmq"
)

// delaysConfig is what every process that talks to the broker must agree on.
type delaysConfig struct {
	Windows domain.Windows `env:"PAYMENT_WINDOWS" envDefault:"30m"`
	Tiers   domain.Tiers   `env:"DELAY_TIERS" envDefault:"1s,10s,1m,5m,30m"`
	Ladder  domain.Ladder  `env:"RETRY_LADDER" envDefault:"10s,1m,5m"`
}

func (delaysConfig) Validate() error { return nil } // the types' own parsers have done it

func (c delaysConfig) delays() domain.Delays { return domain.NewDelays(c.Windows, c.Tiers) }

func (c delaysConfig) topology(namespace string) rabbitmq.Topology {
	return rabbitmq.NewTopology(namespace, c.delays(), c.Ladder)
}

// load reads one part of the configuration from the environment and validates it. Each
// adapter and service owns its part and sees nothing else. The error names every bad
// variable, what came and what is allowed.
func load[C interface{ Validate() error }]() (C, error) {
	config, err := env.ParseAs[C]()
	if err != nil {
		return config, describe(err, reflect.TypeFor[C]())
	}
	return config, config.Validate()
}

// describe replaces field names in the parser's errors by the names of variables.
func describe(err error, config reflect.Type) error {
	var all env.AggregateError
	if !errors.As(err, &all) {
		return err
	}
	var errs []error
	for _, one := range all.Errors {
		var parse env.ParseError
		var unset env.VarIsNotSetError
		var empty env.EmptyVarError
		switch {
		case errors.As(one, &parse):
			field, _ := config.FieldByName(parse.Name)
			variable := field.Tag.Get("env")
			errs = append(errs, fmt.Errorf("%s: got %q, %w", variable, os.Getenv(variable), allowed(field.Type, parse.Err)))
		case errors.As(one, &unset):
			errs = append(errs, fmt.Errorf("%s is required and not set", unset.Key))
		case errors.As(one, &empty):
			errs = append(errs, fmt.Errorf("%s is required and empty", empty.Key))
		default:
			errs = append(errs, one)
		}
	}
	return errors.Join(errs...)
}

// allowed says what a field takes. The domain's own types say it in their errors.
func allowed(field reflect.Type, err error) error {
	switch {
	case field == reflect.TypeFor[time.Duration]():
		return errors.New("allowed: a duration with its unit, such as 50ms")
	case field.Kind() >= reflect.Int && field.Kind() <= reflect.Uint64:
		return errors.New("allowed: a whole number")
	default:
		return err
	}
}
