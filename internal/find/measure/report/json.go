package report

import (
	"encoding/json"
	"io"
	"net"
	"time"

	"longhaul/internal/find/measure"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/display"
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
		SndWnd  *int64 `json:"snd_wnd,omitempty"` // bytes
		TCPInfo any    `json:"tcp_info,omitempty"`
	}
	jsonInterval struct {
		Streams []jsonStream `json:"streams"`
		Sum     *jsonSum     `json:"sum,omitempty"`
		Reverse *jsonSum     `json:"sum_bidir_reverse,omitempty"`
	}
	jsonSender struct {
		jsonStream
		MaxSndCwnd *int64 `json:"max_snd_cwnd,omitempty"`
		MaxSndWnd  *int64 `json:"max_snd_wnd,omitempty"`
		MaxRTT     *int64 `json:"max_rtt,omitempty"`
		MinRTT     *int64 `json:"min_rtt,omitempty"`
		MeanRTT    *int64 `json:"mean_rtt,omitempty"`
	}
	jsonEndStream struct {
		Sender   *jsonSender `json:"sender,omitempty"`
		Receiver *jsonStream `json:"receiver,omitempty"`
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

// tcpInfo is what the kernel says of a stream's end, and what follows from the
// samples.
func tcpInfo(at *measure.Timed, f *measure.Figures) any {
	info := map[string]any{}
	if at != nil {
		// Its JSON has the fields that are known.
		if b, err := json.Marshal(at.Info); err == nil {
			_ = json.Unmarshal(b, &info)
		}
	}
	if f != nil {
		for name, d := range map[string]time.Duration{"rtt_median_us": f.RTTMedian, "rtt_p99_us": f.RTTP99} {
			if d >= 0 {
				info[name] = d.Microseconds()
			}
		}
		if f.CongestionEvents >= 0 {
			info["congestion_events"] = f.CongestionEvents
		}
		if f.DeliveryBps >= 0 {
			info["delivery_rate_median_bps"] = int64(f.DeliveryBps)
		}
	}
	if len(info) == 0 {
		return nil
	}
	return info
}

// JSON is a [Writer] of one object for each test, in iperf3's form.
type JSON struct {
	w         io.Writer
	linkBps   float64
	intervals []measure.Interval
}

// NewJSON makes a writer. LinkBps is the link's rate in bits per second, 0 if it
// is not known.
func NewJSON(w io.Writer, linkBps float64) *JSON { return &JSON{w: w, linkBps: linkBps} }

// Interval keeps the figures for the object.
func (j *JSON) Interval(i measure.Interval, _ float64) { j.intervals = append(j.intervals, i) }

// Summary writes the object. A failure is its error, as in iperf3's.
func (j *JSON) Summary(s measure.Summary, failure error) error {
	intervals := []jsonInterval{}
	for _, i := range j.intervals {
		intervals = append(intervals, intervalJSON(s.Options, i))
	}
	j.intervals = nil
	object := map[string]any{"start": map[string]any{}, "intervals": intervals, "end": map[string]any{}}
	if len(s.Streams) > 0 {
		object["start"], object["end"] = startJSON(s), endJSON(s, j.linkBps)
	}
	if failure != nil {
		object["error"] = failure.Error()
	}
	return display.WriteJSON(j.w, object)
}

func startJSON(s measure.Summary) map[string]any {
	o := s.Options
	connected := []map[string]any{}
	for _, st := range s.Streams {
		local, remote := hostPort(st.Local), hostPort(st.Remote)
		connected = append(connected, map[string]any{
			"socket": st.ID, "local_host": local.host, "local_port": local.port, "remote_host": remote.host, "remote_port": remote.port,
		})
	}
	to := hostPort(s.Remote)
	return map[string]any{
		"connected":     connected,
		"version":       s.Options.Version,
		"timestamp":     map[string]any{"time": s.Start.UTC().Format(timeFormat), "timesecs": s.Start.Unix()},
		"connecting_to": map[string]any{"host": to.host, "port": to.port},
		"sock_bufsize":  o.WindowBytes,
		"test_start": map[string]any{
			"protocol": "TCP", "num_streams": o.Streams, "blksize": o.WriteBytes, "omit": int(o.Omit / time.Second),
			"duration": int(o.Duration / time.Second), "bytes": o.Bytes, "blocks": 0,
			"reverse": number(o.Direction == measure.Receive), "bidir": number(o.Direction == measure.Both),
			"tos": 0, "target_bitrate": 0, "fqrate": o.PacingBps,
		},
	}
}

// timeFormat is how iperf3 writes a time.
const timeFormat = "Mon, 02 Jan 2006 15:04:05 GMT"

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// address is a host and a port apart.
type address struct {
	host string
	port int
}

func hostPort(a net.Addr) address {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return address{host: a.String()}
	}
	return address{tcp.IP.String(), tcp.Port} // an IPv4 address also if the socket is IPv6's
}

func intervalJSON(o measure.Options, i measure.Interval) (one jsonInterval) {
	for _, st := range i.Streams {
		sum := newSum(i.Start, i.End, st.Bytes, st.Retransmits, st.Sends)
		sum.Omitted = &i.Omitted
		stream := jsonStream{Socket: st.ID, jsonSum: sum}
		if info := st.Sample.Info; info != nil {
			stream.TCPInfo = info
		}
		if st.Sends {
			stream.SndCwnd, stream.PMTU = known(st.Sample.CwndBytes), known(st.Sample.PMTU)
			stream.RTT, stream.RTTVar = microseconds(st.Sample.RTT), microseconds(st.Sample.RTTVar)
			if info := st.Sample.Info; info != nil && info.Has(tcpinfo.FieldSndWnd) {
				stream.SndWnd = known(int64(info.SndWnd))
			}
		}
		one.Streams = append(one.Streams, stream)
		if o.Direction == measure.Both && !st.Sends {
			one.Reverse = one.Reverse.add(sum)
		} else {
			one.Sum = one.Sum.add(sum)
		}
	}
	return one
}

func endJSON(s measure.Summary, linkBps float64) map[string]any {
	both := s.Options.Direction == measure.Both
	streams := []jsonEndStream{}
	sums := map[string]*jsonSum{}
	for _, st := range s.Streams {
		f := st.Figures()
		var ends jsonEndStream
		suffix := ""
		if both && !st.Sends {
			suffix = "_bidir_reverse"
		}
		if st.SentBytes >= 0 {
			sent := newSum(0, s.Elapsed, st.SentBytes, st.Retransmits, st.Sends)
			ends.Sender = &jsonSender{
				jsonStream: jsonStream{Socket: st.ID, jsonSum: sent},
				MaxSndCwnd: known(f.MaxCwndBytes), MaxSndWnd: known(f.MaxSndWndBytes),
				MaxRTT: microseconds(f.RTTMax), MinRTT: microseconds(f.RTTMin), MeanRTT: microseconds(f.RTTMean),
			}
			if n := len(st.Samples); n > 0 {
				ends.Sender.TCPInfo = tcpInfo(&st.Samples[n-1], &f)
			}
			sums["sum_sent"+suffix] = sums["sum_sent"+suffix].add(sent)
		}
		if byReceiver(st) {
			received := newSum(0, s.Elapsed, st.ReceivedBytes, -1, st.Sends)
			ends.Receiver = &jsonStream{Socket: st.ID, jsonSum: received}
			if st.Receiver != nil {
				ends.Receiver.TCPInfo = tcpInfo(st.Receiver, nil)
			}
			sums["sum_received"+suffix] = sums["sum_received"+suffix].add(received)
		}
		streams = append(streams, ends)
	}
	cpu := map[string]float64{"host_total": s.LocalCPU.Total, "host_user": s.LocalCPU.User, "host_system": s.LocalCPU.System}
	if s.RemoteCPU.Total >= 0 {
		cpu["remote_total"], cpu["remote_user"], cpu["remote_system"] = s.RemoteCPU.Total, s.RemoteCPU.User, s.RemoteCPU.System
	}
	end := map[string]any{"streams": streams, "cpu_utilization_percent": cpu}
	for name, sum := range sums {
		end[name] = sum
	}
	local := s.Streams[0].Sample.CongestionControl
	sender, receiver := local, s.RemoteCongestionControl
	if s.Options.Direction == measure.Receive {
		sender, receiver = receiver, local
	}
	for name, algorithm := range map[string]string{"sender_tcp_congestion": sender, "receiver_tcp_congestion": receiver} {
		if algorithm != "" {
			end[name] = algorithm
		}
	}
	if linkBps > 0 {
		if limit := s.Figures(s.Streams[0].Sends).LimitBps(linkBps); limit > 0 {
			end["limit_bits_per_second"] = limit
		}
	}
	return end
}
