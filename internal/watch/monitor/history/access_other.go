//go:build !linux

package history

// access leaves the answer to SQLite.
func access(string) error { return nil }
