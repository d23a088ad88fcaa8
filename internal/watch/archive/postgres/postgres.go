// Package postgres is the archive in PostgreSQL: its schema, the sink that
// writes it, and a reader that answers what a history answers, over all relays.
package postgres

import _ "embed"

// schema is that of version 1.
//
//go:embed schema.sql
var schema string
