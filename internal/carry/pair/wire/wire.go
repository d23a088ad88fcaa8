// Package wire has the parts of the pair protocol that follow the TLS handshake:
// HELLO, frames of lanes, messages of the control connection. Numbers are big
// endian. docs/design/pairs-wire.md describes them.
package wire

import (
	"errors"
	"fmt"
)

// The versions of the protocol that this package speaks.
const (
	LowestVersion  = 1
	HighestVersion = 1
)

// ErrMalformed is the error of bytes that are none of the protocol.
var ErrMalformed = errors.New("malformed pair protocol")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
