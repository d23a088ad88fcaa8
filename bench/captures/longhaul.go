package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/pcap"
)

// counted is what longhaul counted of a file.
type counted struct {
	Directions []direction  `json:"directions"`
	LeftOut    pcap.LeftOut `json:"left_out"`
	Bytes      int64        `json:"bytes"`           // of the file, uncompressed
	Error      string       `json:"error,omitempty"` // of reading the file
}

// printCounts prints what longhaul counts of a file.
func printCounts(stdout io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	result, err := pcap.Read(f, pcap.Options{})
	if errors.Is(err, pcap.ErrNoTCP) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	c := counted{LeftOut: result.LeftOut, Bytes: result.Bytes}
	if err != nil {
		c.Error = err.Error()
	}
	for _, connection := range result.Connections {
		for i := range connection.Directions {
			c.Directions = append(c.Directions, longhaulDirection(connection, i))
		}
	}
	return json.NewEncoder(stdout).Encode(c)
}

// longhaulDirection is one of the two directions of a connection.
func longhaulDirection(c *pcap.Connection, i int) direction {
	d := direction{From: c.Client, To: c.Server, Start: c.Start, Stream: -1}
	if i == 1 {
		d.From, d.To = d.To, d.From
	}
	o := &c.Directions[i].Observation
	n := &o.Capture.Counts
	d.Figures = map[string]float64{
		"segments": float64(n.Segments), "bytes": float64(n.Bytes), "delivered": float64(n.Delivered),
		"retransmitted": float64(n.Retransmitted), "out_of_order": float64(n.OutOfOrder),
		"again_or_late": float64(n.Retransmitted + n.OutOfOrder),
		"zero_windows":  float64(n.ZeroWindows), "keepalives": float64(n.KeepAlives), "probes": float64(n.Probes),
	}
	if n.WindowMax > 0 {
		d.Figures["window_full"] = float64(n.WindowFull)
	}
	if n.MinRTT > 0 {
		d.Figures["min_rtt_ms"] = n.MinRTT.Seconds() * 1e3
	}
	if len(o.Samples) > 0 {
		info := &o.Samples[len(o.Samples)-1].Info
		d.Figures["dsack"], d.Figures["segment_bytes"] = float64(info.DSACKDups), float64(info.SndMSS)
	}
	if o.Capture.AgreedMSS > 0 {
		d.Figures["mss"] = float64(o.Capture.AgreedMSS)
	}
	switch n.Reset {
	case doctor.ResetBySender:
		d.Figures["reset_by"] = resetBySender
	case doctor.ResetByReceiver:
		d.Figures["reset_by"] = resetByReceiver
	default:
		d.Figures["reset_by"] = noReset
	}
	return d
}

// verdict is what longhaul doctor said of a file.
type verdict struct {
	Cause    string          `json:"cause,omitempty"` // empty: it refused
	Strength doctor.Strength `json:"strength,omitempty"`
	Refusal  string          `json:"refusal,omitempty"`
	Status   int             `json:"status"`
	Time     time.Duration   `json:"time_ns"`
	Memory   int64           `json:"memory_bytes"` // largest resident set
	// Crashed and TimedOut are ways in which it did not end.
	Crashed  bool `json:"crashed,omitempty"`
	TimedOut bool `json:"timed_out,omitempty"`
}
