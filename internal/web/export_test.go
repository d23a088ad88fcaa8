package web

import "time"

// LookSoon has a certificate's files looked at for a new one at its next use.
func LookSoon(c *Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = time.Time{}
	c.stamp[0].modified = time.Time{} // the tests are faster than the file system's clock
}
