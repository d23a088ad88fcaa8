package hosts

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// listenStates are the states of listening sockets in the tables of /proc/net:
// TCP_LISTEN, and a UDP socket without a connection.
var listenStates = map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}

// Listening reports whether a socket of the host listens on the TCP port, or receives
// datagrams on the UDP port of that number.
func (h *Host) Listening(port uint16) (bool, error) {
	suffix := fmt.Sprintf(":%04X", port)
	var found bool
	err := h.Do(func() error {
		for table, state := range listenStates {
			// Not /proc/net: it shows the namespace of the process's first thread.
			f, err := os.Open("/proc/thread-self/net/" + table)
			if os.IsNotExist(err) { // a kernel without IPv6
				continue
			}
			if err != nil {
				return err
			}
			lines := bufio.NewScanner(f)
			for lines.Scan() {
				fields := strings.Fields(lines.Text())
				if len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == state {
					found = true
				}
			}
			f.Close()
			if err := lines.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// Segments counts a host's TCP segments since it was made.
type Segments struct{ Sent, Retransmitted uint64 }

// TCPSegments reads the host's counters OutSegs and RetransSegs (RFC 4022).
func (h *Host) TCPSegments() (Segments, error) {
	var s Segments
	err := h.Do(func() error {
		self, err := procfs.Self()
		if err != nil {
			return err
		}
		thread, err := self.Thread(unix.Gettid())
		if err != nil {
			return err
		}
		snmp, err := thread.Snmp()
		if err != nil {
			return err
		}
		if snmp.OutSegs == nil || snmp.RetransSegs == nil {
			return fmt.Errorf("missing TCP counters in /proc/net/snmp")
		}
		s = Segments{Sent: uint64(*snmp.OutSegs), Retransmitted: uint64(*snmp.RetransSegs)}
		return nil
	})
	return s, err
}
