package doctor

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// TestProperties has doctor diagnose random figures. Whatever they are, no sentence may
// contradict them.
func TestProperties(t *testing.T) {
	named := map[Cause]int{}
	for seed := range uint64(5_000) {
		o := randomObservation(rand.New(rand.NewPCG(49, seed)))
		r, err := Diagnose(o)
		if err != nil {
			if problem := contradiction(err.Error()); problem != "" {
				t.Fatalf("seed %d: %s: %v", seed, problem, err)
			}
			continue
		}
		named[r.Cause]++
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		for _, problem := range slices.Concat(problemsOfText(b.String()), problemsOfNumbers(r), problemsOfCauses(o, r)) {
			t.Errorf("seed %d, %s, %s: %s\n%s", seed, r.Cause, r.Strength, problem, b.String())
		}
		if t.Failed() {
			return
		}
	}
	for _, cause := range Causes() {
		if cause != PairDown && cause != AsymmetricMTU && cause != Loss && cause != Stalled && named[cause] == 0 {
			t.Errorf("no random figures show %s", cause)
		}
	}
}

var (
	shares    = regexp.MustCompile(`(-?[\d.e+-]+) %`)
	notFigure = regexp.MustCompile(`NaN|Inf|%!|-\d+(\.\d+)? ([kMGT]?b/s|s|ms|segments|bytes|[KMGT]?i?B)\b`)
)

// contradiction returns what is wrong with a refusal: it has as much as it needs.
func contradiction(refusal string) string {
	if found := notFigure.FindString(refusal); found != "" {
		return "it says " + found
	}
	seen, needed, _ := strings.Cut(refusal, "; needed: ")
	for _, unit := range []string{"s", "segments of data", "samples"} {
		figure := regexp.MustCompile(`([\d.]+) ` + unit + `\b`)
		has, needs := figure.FindStringSubmatch(seen), figure.FindStringSubmatch(needed)
		if has == nil || needs == nil {
			continue
		}
		a, _ := strconv.ParseFloat(has[1], 64)
		if b, _ := strconv.ParseFloat(needs[1], 64); a >= b {
			return has[0] + " of " + needs[0]
		}
	}
	return ""
}

func problemsOfText(text string) (problems []string) {
	if found := notFigure.FindString(text); found != "" {
		problems = append(problems, "it says "+found)
	}
	for _, m := range shares.FindAllStringSubmatch(text, -1) {
		if share, err := strconv.ParseFloat(m[1], 64); err == nil && (share > 100 || share < 0) {
			problems = append(problems, "a share of "+m[0])
		}
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 78 && !strings.HasPrefix(line, "       ") {
			problems = append(problems, "a line of "+strconv.Itoa(n)+" columns")
		}
	}
	return problems
}

func problemsOfNumbers(r Report) (problems []string) {
	if _, err := json.Marshal(r); err != nil {
		problems = append(problems, err.Error())
	}
	outlooks := []Outlook{}
	for _, remedy := range r.Remedies {
		outlooks = append(outlooks, remedy.Outlook)
	}
	if r.RelayPair != nil {
		outlooks = append(outlooks, *r.RelayPair)
	}
	capture := r.Observation.Capture
	for _, o := range outlooks {
		if math.IsNaN(o.Gain) || math.IsInf(o.Gain, 0) || math.IsNaN(o.PredictedBps) || o.PredictedBps < 0 {
			problems = append(problems, "a gain that is none")
		}
		if capture != nil && r.Observation.Capacity == nil && o.PredictedBps > 1.001*max(capture.BurstBps, r.GoodputBps) {
			problems = append(problems, "a prediction above what crossed the path")
		}
	}
	if (r.Strength == Certain) != (r.Doubt == "") && r.Cause != Unexplained {
		problems = append(problems, "its strength and its doubt differ")
	}
	return problems
}

// problemsOfCauses holds each named cause against the figures.
func problemsOfCauses(o Observation, r Report) (problems []string) {
	f, n := r.Figures, r.Counts
	c := newPatient(o, f)
	holds := func(condition bool, what string) {
		if !condition {
			problems = append(problems, what)
		}
	}
	for _, finding := range r.Findings {
		if finding.Cause == ReceiverWindow || finding.Cause == WindowScaling {
			holds(c.receives() || r.GoodputBps >= 0.499*f.PeerWindow*8/f.RTT.Seconds() || math.IsNaN(f.PeerWindow) || f.RTT == 0, "the window allows twice the goodput")
			holds(r.Cause != Healthy, "a window limits, and there is nothing to fix")
		}
		if finding.Cause == SegmentSize && o.Capture != nil {
			holds(n.FullSegments >= 10, "no full segment was sent")
		}
	}
	switch r.Cause {
	case Healthy:
		holds(o.Capacity != nil || !(f.Rwnd > 0.15) && f.RTT-f.MinRTT >= 5*time.Millisecond, "a window limits it, or no queue is there")
		holds(o.Capture == nil || o.Capacity != nil || n.ZeroWindows == 0 && n.lossShare() < 0.05 && n.FullSegments >= 10 && n.Turns < n.Segments, "the counts show a limit")
	case BlackHole:
		holds(o.Capture == nil || n.Stall.AtEnd && n.Stall.AnsweredBytes < n.Stall.SegmentBytes, "a full segment was answered")
	case Outage:
		holds(o.Capture == nil || n.Stall.Retransmissions > 0 && n.Stall.Heard == 0, "the peer was heard")
	case Reset:
		holds(n.Reset != "" && n.ResetOutstanding > 0, "nothing was cut")
	case Reordering:
		holds(o.Capture == nil || n.OutOfOrder+n.Overtaken >= 3 && n.Spurious >= 3, "the order did not change")
	case SpuriousRetransmissions:
		holds(n.Spurious > 0, "no retransmission was needless")
	case RandomLoss:
		holds(n.Retransmitted > 0, "nothing was lost")
	case Reader:
		holds(o.Capture == nil || n.ZeroWindows > 0 || f.Rwnd > 0.15, "the window stayed open")
	case Application:
		holds(o.Capture == nil || n.Turns > 0 || n.PauseTime > 0 || n.FullSegments*20 < n.Segments, "it had data to send all the time")
	case Unexplained:
		evidence := strings.Join(r.Findings[0].Evidence, " ")
		holds(!strings.Contains(evidence, "no figure stands out") || n.lossShare() <= 0.005 && n.ZeroWindows == 0 && n.WindowFull == 0 && n.Reset == "", "figures stand out")
	}
	return problems
}

// randomObservation makes an observation of a kernel, or of a capture, whose figures need
// not fit together.
func randomObservation(r *rand.Rand) Observation {
	chance := func(p float64) bool { return r.Float64() < p }
	log := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	count := func(p, high float64) int64 {
		if !chance(p) {
			return 0
		}
		return int64(log(1, high))
	}
	span := func(p float64, high time.Duration) time.Duration { return time.Duration(count(p, float64(high))) }

	o := Observation{Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.MustParseAddrPort("203.0.113.9:443"), CongestionControl: "cubic"}
	step := time.Duration(log(float64(20*time.Millisecond), float64(time.Second)))
	mss := []uint32{48, 536, 1360, 1448, 8948, 65483}[r.IntN(6)]
	minRTT := time.Duration(log(float64(20*time.Microsecond), float64(time.Second)))
	queue := time.Duration(float64(minRTT) * log(0.001, 3))
	perStep := log(1, 1e7)
	busy, rwnd, sndbuf := r.Float64(), r.Float64(), r.Float64()
	if chance(0.5) {
		rwnd = 0
	}
	if chance(0.5) {
		busy = 1
	}
	window, windowVaries := log(float64(1), 1e7), chance(0.4)
	loss, needless, late := log(1e-5, 1), r.Float64(), r.Float64()
	if chance(0.5) {
		loss = 0
	}
	if chance(0.6) {
		late = 0
	}
	stalls, notSent, cwnd := chance(0.1), log(1, 1e6), uint32(log(1, 2000))
	missing := []tcpinfo.Field{}
	for f := tcpinfo.FieldState; f <= tcpinfo.FieldTotalRTOTime; f++ {
		if chance(0.05) {
			missing = append(missing, f)
		}
	}
	capture := chance(0.6)
	answers, shut := 0.0, chance(0.03) // segments back for each one sent; the window stays closed
	if chance(0.3) {
		answers = log(0.01, 2)
	}
	deviation, waited, pressure := time.Duration(float64(queue)*r.Float64()), r.Float64()*r.Float64(), r.Float64()
	queued := r.Float64()
	for k := range 1 + r.IntN(60) {
		at := time.Duration(k) * step
		acked := uint64(float64(k) * perStep)
		if stalls {
			acked = 1
		}
		segments := float64(k)*perStep/float64(mss) + 1
		s := Sample{At: at, SendBuffer: 1 << 20, SendQueued: int64(queued * (1 << 20)), CPU: time.Duration(float64(at) * r.Float64())}
		wnd := window
		if windowVaries {
			wnd *= r.Float64()
		}
		s.Info = tcpinfo.Info{
			State: tcpinfo.Established, Options: tcpinfo.Options(r.IntN(16)), SndMSS: mss, RTT: minRTT + queue, MinRTT: minRTT,
			SndCwnd: cwnd, SndSSThresh: 40, Unacked: uint32(float64(cwnd) * r.Float64() * 1.2), SndWnd: uint32(wnd),
			BytesAcked: acked, BytesSent: acked, BytesReceived: acked / uint64(1+r.IntN(1000)), DataSegsOut: uint32(segments), Delivered: uint32(segments),
			TotalRetrans: uint32(segments * loss * (1 + r.Float64()*0.2)), DSACKDups: uint32(segments * loss * needless), ReordSeen: uint32(segments * loss * late),
			Reordering: uint32(r.IntN(100)), NotsentBytes: uint32(notSent), MaxPacingRateBps: tcpinfo.Unlimited,
			BusyTime: time.Duration(float64(at) * busy), RwndLimited: time.Duration(float64(at) * rwnd * 1.1), SndbufLimited: time.Duration(float64(at) * sndbuf * 0.2),
			Backoff: uint8(r.IntN(3)), RcvWnd: uint32(window), RTTVar: deviation, DataSegsIn: uint32(segments * answers),
		}
		s.Waited, s.Pressure = time.Duration(float64(at)*waited), time.Duration(float64(at)*pressure)
		if shut {
			s.Info.SndWnd, s.Info.RwndLimited, s.Info.BytesAcked, s.Info.Unacked = 0, at, 1, 0
		}
		if chance(0.02) {
			s.Info.SndWnd = 0
		}
		for f := tcpinfo.FieldState; f <= tcpinfo.FieldTotalRTOTime; f++ {
			if !slices.Contains(missing, f) {
				s.Info.Know(f)
			}
		}
		if capture {
			s.SendBuffer, s.SendQueued, s.CPU = -1, -1, -1
		}
		o.Samples = append(o.Samples, s)
	}
	last := &o.Samples[len(o.Samples)-1]
	if chance(0.1) {
		for k := range o.Samples {
			o.Samples[k].Info.MaxPacingRateBps = int64(log(1e3, 1e9))
		}
	}
	if !capture {
		if chance(0.5) {
			o.Path = Path{MTU: []int{0, 576, 1400, 1500, 9000}[r.IntN(5)], ReverseMTU: []int{0, 576, 1500}[r.IntN(3)], DeviceMTU: []int{0, 1500}[r.IntN(2)], Answers: chance(0.5)}
		}
		if chance(0.5) {
			o.Capacity = &Trial{Streams: 4, GoodputBps: log(1e4, 1e9), MinRTT: minRTT, RTT: minRTT + queue/2, LossShare: r.Float64() * r.Float64(), SegmentBytes: float64(mss), WindowLimited: chance(0.2), PeerWindow: window * 2}
		}
		if chance(0.1) {
			o.Connections, o.FromStart, o.TotalBytes, o.Time = 5, true, int64(log(1e3, 1e7)), last.At
		}
		return o
	}
	o.Elsewhere = true
	segments := count(0.97, 1e5)
	part := func(p float64) int64 { return min(count(p, 1e5), segments) }
	n := Counts{
		Segments: segments, FullSegments: part(0.6), Bytes: segments * int64(mss) / int64(1+r.IntN(3)), Retransmitted: part(0.4),
		OutOfOrder: part(0.2), Overtaken: part(0.2), Extent: part(0.2), Fast: part(0.2), AfterTimeout: part(0.2), TailProbes: part(0.1),
		ZeroWindows: count(0.2, 1000), ZeroWindowTime: span(0.2, last.At+1), ZeroWindowAtEnd: chance(0.1), WindowFull: part(0.3), Probes: count(0.1, 100),
		WindowMin: int64(window / 2), WindowMedian: int64(window), WindowMax: int64(window),
		MinRTT: minRTT, MedianRTT: minRTT + queue, P95RTT: minRTT + 2*queue, MaxFlight: min(count(1, 1e7), segments*int64(mss)),
		Pauses: count(0.5, 100), PauseTime: span(0.5, last.At+time.Second), Turns: count(0.5, 1000), Copies: count(0.05, 100), BackwardSteps: count(0.05, 10),
	}
	n.Delivered, n.Spurious, n.LongestZeroWindow = n.Bytes, min(count(0.5, 1e4), n.Retransmitted), n.ZeroWindowTime
	n.WaitedForPeer = time.Duration(r.Float64() * float64(n.PauseTime))
	if chance(0.1) {
		n.Missing = count(1, 1e6)
	}
	if chance(0.2) {
		n.Reset, n.ResetOutstanding = []ResetBy{ResetBySender, ResetByReceiver}[r.IntN(2)], count(0.7, 1e5)
	}
	if chance(0.3) {
		n.Stall = Stall{Time: span(1, 2*last.At+time.Second), Retransmissions: count(0.9, 20), AtEnd: chance(0.5), SegmentBytes: int64(mss), AnsweredBytes: int64(mss) * int64(r.IntN(2)) / int64(1+r.IntN(3)), Heard: count(0.4, 20)}
	}
	o.Capture = &Capture{AtSender: chance(0.5), Handshake: chance(0.7), Counts: n, Time: last.At + time.Duration(r.Float64()*float64(step))}
	if o.Capture.AtSender && chance(0.5) {
		o.Capture.Bursts, o.Capture.BurstBps = 5, log(1e4, 1e9)
	}
	if !o.Capture.AtSender {
		for k := range o.Samples { // a capture elsewhere knows less
			i := &o.Samples[k].Info
			known := *i
			*i = tcpinfo.Info{SndMSS: known.SndMSS, BytesAcked: known.BytesAcked, BytesReceived: known.BytesReceived, MinRTT: known.MinRTT, SndWnd: known.SndWnd, DataSegsOut: known.DataSegsOut, TotalRetrans: known.TotalRetrans}
			i.Know(tcpinfo.FieldSndMSS, tcpinfo.FieldBytesAcked, tcpinfo.FieldBytesReceived, tcpinfo.FieldMinRTT, tcpinfo.FieldDataSegsOut, tcpinfo.FieldTotalRetrans)
			if o.Capture.Handshake {
				i.Know(tcpinfo.FieldSndWnd)
			}
		}
	}
	if chance(0.3) {
		o.Capture.AgreedMSS, o.Capture.SenderMSS = int(mss), int(mss)+100*r.IntN(3)
	}
	return o
}
