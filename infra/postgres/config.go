package postgres

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/ordertimeout/domain"
)

// Config says which database.
type Config struct {
	URL      string `env:"DATABASE_URL,required,notEmpty"`
	MaxConns int32  `env:"DATABASE_MAX_CONNS" envDefault:"10"` // connections of this process
}

// Validate returns a domain.FieldError that names the variable. It never repeats the
// URL, which may hold a password.
func (c Config) Validate() error {
	if _, err := pgxpool.ParseConfig(c.URL); err != nil {
		return &domain.FieldError{Field: "DATABASE_URL", Got: "(not shown)", Allowed: "postgres://user:password@host:port/database or a keyword string"}
	}
	if c.MaxConns < 1 || c.MaxConns > 1000 {
		return &domain.FieldError{Field: "DATABASE_MAX_CONNS", Got: fmt.Sprint(c.MaxConns), Allowed: "1 to 1000"}
	}
	return nil
}
