// Package postgres is the archive in PostgreSQL: its schema, the sink that
// writes it, and a reader that answers what a history answers, over all relays.
//
// It uses pgconn, the wire protocol without pgx's types: those alone would make
// the program 3 MB larger.
package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// sqlState is the code of an error of the server, such as 23505 (PostgreSQL's appendix A); empty: of others.
func sqlState(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}
