package transfers

import (
	"net"
	"slices"

	"longhaul/lab"
	"longhaul/lab/capture"
)

// stage is one of two sites from a host of which a case sends.
type stage struct {
	*lab.Stage
	from string
}

// isRelayed says whether anything relays.
func (s *stage) isRelayed() bool { return len(s.Running()) > 0 }

// wanSender is the host whose TCP sends into the WAN: relay-a where anything relays
// there, else the sender.
func (s *stage) wanSender() string {
	if slices.ContainsFunc(s.Running(), func(d *lab.Daemon) bool { return d.Host == "relay-a" }) {
		return "relay-a"
	}
	return s.from
}

// wanPort is the port to which the WAN's sender connects.
func (s *stage) wanPort() uint16 {
	if s.isRelayed() {
		return lab.RelayPort
	}
	return bulkPort
}

// capture begins to read the WAN at site A.
func (s *stage) capture() (stop func() *Segments, err error) {
	var c *capture.Capture
	err = s.Host("relay-a").Do(func() error {
		device, err := net.InterfaceByName("wan")
		if err == nil {
			c, err = capture.Start(device.Index, s.wanPort())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return func() *Segments {
		seen := c.Stop()
		if seen.Missed > 0 {
			s.Report.Notef("the capture missed %d packets", seen.Missed)
		}
		all, usual := uint64(0), seen.Usual()
		for _, n := range seen.Segments {
			all += n
		}
		return &Segments{
			MSSOfA: seen.MSSOfClient, MSSOfB: seen.MSSOfServer,
			Sent: usual, Share: float64(seen.Segments[usual]) / float64(max(all, 1)),
		}
	}, nil
}
