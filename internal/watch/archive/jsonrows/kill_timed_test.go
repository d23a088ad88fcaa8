//go:build timed

package jsonrows

// As often as the manual says.
func init() { killRounds = 20 }
