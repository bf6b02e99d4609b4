// Package migrations embeds the database schema. Files are applied in the order of
// their numbers and never changed once released.
package migrations

import "embed"

// FS holds the goose SQL files.
//
//go:embed *.sql
var FS embed.FS
