package web

import "time"

// MaxSessions is the maximum number of sessions of a token.
const MaxSessions = maxSessions

// LookSoon makes the next use of a certificate check its files.
func LookSoon(c *Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = time.Time{}
	c.stamp[0].modified = time.Time{} // the tests are faster than the file system's clock
}
