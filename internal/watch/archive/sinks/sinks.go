// Package sinks opens the sink of a target.
package sinks

import (
	"fmt"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ipfix"
	"longhaul/internal/watch/archive/jsonrows"
	"longhaul/internal/watch/archive/postgres"
)

// Open makes the sink of a target. It does not wait for the network.
func Open(t archive.Target) (archive.Sink, error) {
	switch t.Kind {
	case archive.Postgres:
		return postgres.Open(t)
	case archive.JSONRows:
		return jsonrows.Open(t)
	case archive.IPFIX:
		return ipfix.New(t)
	}
	return nil, fmt.Errorf("there is no sink of the kind %q", t.Kind)
}
