package pair

import (
	"testing"
	"time"

	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// TestSilent holds that what waits to be read by a process that is slow was said.
func TestSilent(t *testing.T) {
	const within = 10 * time.Second
	for _, test := range []struct {
		name  string
		heard time.Duration // the latest message, before now
		waits bool          // a message waits to be read
		want  bool
	}{
		{"silence", time.Minute, false, true},
		{"a message has come", time.Second, false, false},
		{"a message waits", time.Minute, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, there := tcpPair(t)
			bulk, err := newBulkConn(here)
			nettest.Must(t, err)
			c, now := newControl(&connection{bulk: bulk}), time.Now()
			c.heard.Store(int64(stampOf(now.Add(-test.heard))))
			if test.waits {
				_, err := there.Write([]byte{1})
				nettest.Must(t, err)
				nettest.Eventually(t, time.Minute, func() (waits bool) {
					bulk.control(func(fd int) { waits = socket.Unread(fd) > 0 })
					return waits
				}, func() string { return "the byte does not arrive" })
			}
			if got := c.silent(now, within); got != test.want {
				t.Errorf("the other end is silent: %v, want %v", got, test.want)
			}
		})
	}
}
