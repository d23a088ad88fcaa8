package main

import (
	"time"

	"longhaul/internal/measure"
)

// The names are iperf3's, so that what reads its JSON reads this; what the
// kernel says besides is under tcp_info.
type (
	jsonSum struct {
		Start         float64 `json:"start"`
		End           float64 `json:"end"`
		Seconds       float64 `json:"seconds"`
		Bytes         int64   `json:"bytes"`
		BitsPerSecond float64 `json:"bits_per_second"`
		Retransmits   *int64  `json:"retransmits,omitempty"`
		Omitted       *bool   `json:"omitted,omitempty"`
		Sender        bool    `json:"sender"`
	}
	jsonStream struct {
		Socket int `json:"socket"`
		jsonSum
		SndCwnd *int64 `json:"snd_cwnd,omitempty"` // bytes
		RTT     *int64 `json:"rtt,omitempty"`      // µs, as all times
		RTTVar  *int64 `json:"rttvar,omitempty"`
		PMTU    *int64 `json:"pmtu,omitempty"`
		TCPInfo any    `json:"tcp_info,omitempty"`
	}
	jsonInterval struct {
		Streams []jsonStream `json:"streams"`
		Sum     *jsonSum     `json:"sum,omitempty"`
		Reverse *jsonSum     `json:"sum_bidir_reverse,omitempty"`
	}
	jsonEndStream struct {
		Sender   jsonStream `json:"sender"`
		Receiver jsonStream `json:"receiver"`
	}
)

func microseconds(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	us := d.Microseconds()
	return &us
}

func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

// newSum is a sum over a time.
func newSum(start, end time.Duration, bytes, retransmits int64, sender bool) jsonSum {
	s := jsonSum{Start: start.Seconds(), End: end.Seconds(), Seconds: (end - start).Seconds(), Bytes: bytes, Retransmits: known(retransmits), Sender: sender}
	if s.Seconds > 0 {
		s.BitsPerSecond = float64(bytes) * 8 / s.Seconds
	}
	return s
}

// add adds a stream to the sum of its direction.
func (s *jsonSum) add(other jsonSum) *jsonSum {
	if s == nil {
		return &other
	}
	s.Bytes += other.Bytes
	s.BitsPerSecond += other.BitsPerSecond
	if s.Retransmits != nil && other.Retransmits != nil {
		n := *s.Retransmits + *other.Retransmits
		s.Retransmits = &n
	}
	return s
}

// measureJSON is the result in iperf3's form.
func measureJSON(s measure.Summary, intervals []measure.Interval, version string) map[string]any {
	o := s.Options
	both := o.Direction == measure.Both
	told := []jsonInterval{}
	for _, i := range intervals {
		var one jsonInterval
		for _, st := range i.Streams {
			sum := newSum(i.Start, i.End, st.Bytes, st.Retransmits, st.Sends)
			sum.Omitted = &i.Omitted
			stream := jsonStream{Socket: st.ID, jsonSum: sum, TCPInfo: st.Sample.Info}
			if st.Sends {
				stream.SndCwnd, stream.PMTU = known(st.Sample.CwndBytes), known(st.Sample.PMTU)
				stream.RTT, stream.RTTVar = microseconds(st.Sample.RTT), microseconds(st.Sample.RTTVar)
			}
			one.Streams = append(one.Streams, stream)
			if both && !st.Sends {
				one.Reverse = one.Reverse.add(sum)
			} else {
				one.Sum = one.Sum.add(sum)
			}
		}
		told = append(told, one)
	}
	var streams []jsonEndStream
	sums := map[string]*jsonSum{}
	for _, st := range s.Streams {
		sent := newSum(0, s.Elapsed, st.SentBytes, st.Retransmits, st.Sends)
		received := newSum(0, s.Elapsed, st.ReceivedBytes, -1, st.Sends)
		streams = append(streams, jsonEndStream{jsonStream{Socket: st.ID, jsonSum: sent, TCPInfo: st.Sample.Info}, jsonStream{Socket: st.ID, jsonSum: received}})
		end := ""
		if both && !st.Sends {
			end = "_bidir_reverse"
		}
		sums["sum_sent"+end] = sums["sum_sent"+end].add(sent)
		sums["sum_received"+end] = sums["sum_received"+end].add(received)
	}
	end := map[string]any{
		"streams": streams,
		"cpu_utilization_percent": map[string]float64{
			"host_total": s.LocalCPU, "remote_total": s.RemoteCPU,
		},
	}
	for name, sum := range sums {
		end[name] = sum
	}
	return map[string]any{
		"start": map[string]any{
			"version":   "longhaul " + version,
			"timestamp": map[string]any{"time": s.Start.UTC().Format(time.RFC1123), "timesecs": s.Start.Unix()},
			"connected": []map[string]any{{"local": s.Local.String(), "remote": s.Remote.String()}},
			"test_start": map[string]any{
				"protocol": "TCP", "num_streams": o.Streams, "blksize": o.WriteBytes, "omit": int(o.Omit / time.Second),
				"duration": int(o.Duration / time.Second), "bytes": o.Bytes, "reverse": o.Direction == measure.Receive, "bidir": both,
			},
		},
		"intervals": told,
		"end":       end,
	}
}
