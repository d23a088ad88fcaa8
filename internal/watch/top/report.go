package top

import (
	"math"
	"net/netip"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
)

// Report has the connections of a table at one time, for JSON.
type Report struct {
	Time            time.Time          `json:"time"`
	IntervalSeconds float64            `json:"interval_seconds"`
	Unseen          string             `json:"lack,omitempty"` // a sentence on missing figures
	Connections     []ConnectionReport `json:"connections"`
}

// ConnectionReport is one connection. Unknown figures are left out.
type ConnectionReport struct {
	Local             netip.AddrPort `json:"local"`
	Remote            netip.AddrPort `json:"remote"`
	State             string         `json:"state"`
	PID               int            `json:"pid,omitempty"`
	Command           string         `json:"command,omitempty"`
	UID               uint32         `json:"uid"`
	Cause             doctor.Cause   `json:"cause,omitempty"`
	SentBps           *float64       `json:"sent_bps,omitempty"`
	ReceivedBps       *float64       `json:"received_bps,omitempty"`
	Retransmitted     *float64       `json:"retransmitted_share,omitempty"`
	WindowLimited     *float64       `json:"window_limited_share,omitempty"`
	BufferLimited     *float64       `json:"buffer_limited_share,omitempty"`
	Busy              *float64       `json:"busy_share,omitempty"`
	SendQueue         uint32         `json:"send_queue_bytes"`
	RecvQueue         uint32         `json:"receive_queue_bytes"`
	CongestionControl string         `json:"congestion_control,omitempty"`
	TCPInfo           tcpinfo.Info   `json:"tcp_info"`
}

// Report returns the present connections of the table. unseen is a sentence on missing
// figures, or empty.
func (t *Table) Report(selected []*Connection, unseen string, now time.Time) Report {
	report := Report{
		Time:            now,
		IntervalSeconds: t.interval.Seconds(),
		Unseen:          unseen,
		Connections:     make([]ConnectionReport, len(selected)),
	}
	for i, c := range selected {
		report.Connections[i] = c.report()
	}
	return report
}

func (c *Connection) report() ConnectionReport {
	return ConnectionReport{
		Local: c.Local, Remote: c.Remote, State: c.Info.State.String(),
		PID: c.Process.PID, Command: c.Process.Command, UID: c.UID, Cause: c.Cause(),
		SentBps: ifKnown(c.SentBps), ReceivedBps: ifKnown(c.ReceivedBps), Retransmitted: ifKnown(c.Retransmitted),
		WindowLimited: ifKnown(c.WindowLimited), BufferLimited: ifKnown(c.BufferLimited), Busy: ifKnown(c.Busy),
		SendQueue: c.SendQueue, RecvQueue: c.RecvQueue, CongestionControl: c.CongestionControl, TCPInfo: c.Info,
	}
}

// ifKnown returns nil for an unknown figure.
func ifKnown(figure float64) *float64 {
	if math.IsNaN(figure) {
		return nil
	}
	return &figure
}
