package web

import "time"

// MaxSessions is how many sessions a token has at most.
const MaxSessions = maxSessions

// LookSoon has a certificate's files looked at for a new one at its next use.
func LookSoon(c *Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = time.Time{}
	c.stamp[0].modified = time.Time{} // the tests are faster than the file system's clock
}
