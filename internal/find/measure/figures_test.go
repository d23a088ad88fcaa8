package measure

import (
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// at is a sample of a sender at a second, with the given RTT in milliseconds.
func at(second int, rtt int, i tcpinfo.Info) Timed {
	i.RTT = time.Duration(rtt) * time.Millisecond
	i.Know(tcpinfo.FieldRTT, tcpinfo.FieldMinRTT, tcpinfo.FieldBusyTime, tcpinfo.FieldRwndLimited, tcpinfo.FieldSndbufLimited, tcpinfo.FieldDeliveryRateBps)
	return Timed{At: time.Duration(second) * time.Second, Info: i}
}

func TestFigures(t *testing.T) {
	one := StreamSummary{CongestionControl: "cubic", CongestionEvents: 3, Samples: []Timed{
		// Before what counts.
		at(-2, 900, tcpinfo.Info{}),
		at(-1, 900, tcpinfo.Info{BusyTime: time.Second, RwndLimited: 500 * time.Millisecond, DeliveryRateBps: 9e9}),
		at(0, 20, tcpinfo.Info{SndCwnd: 10, SndMSS: 1448, BusyTime: 2 * time.Second, RwndLimited: time.Second, DeliveryRateBps: 1e6}),
		at(1, 60, tcpinfo.Info{SndCwnd: 100, SndMSS: 1448, DeliveryRateBps: 5e6}),
		at(2, 40, tcpinfo.Info{SndCwnd: 50, SndMSS: 1448, DeliveryRateBps: 9e9, DeliveryRateAppLimited: true}),
		at(3, 40, tcpinfo.Info{SndCwnd: 50, SndMSS: 1448, PMTU: 1500, MinRTT: 19 * time.Millisecond, BusyTime: 5 * time.Second, RwndLimited: 1500 * time.Millisecond, DeliveryRateBps: 6e6}),
	}}
	silent := StreamSummary{} // of an iperf3 server
	f := figures(one, one, silent)
	want := Figures{
		RTTMin: 19 * time.Millisecond, RTTMedian: 40 * time.Millisecond, RTTP99: 60 * time.Millisecond,
		RTTMean: 40 * time.Millisecond, RTTMax: 60 * time.Millisecond,
		CongestionEvents: 6, MaxCwndBytes: 144800, MaxSndWndBytes: -1, DeliveryBps: 10e6,
		Busy: 6 * time.Second, RwndLimited: time.Second, SndbufLimited: 0,
		SndMSS: 1448, RcvMSS: -1, PMTU: 1500, ReversePMTU: -1, CongestionControl: "cubic",
	}
	if f != want {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
	if got := f.LimitBps(100e6); int(got) != 96533333 { // 100 Mb/s x 1448/1500
		t.Errorf("limit %.0f bit/s", got)
	}
	none := figures(silent)
	if none.CongestionEvents != -1 || none.Busy != -1 || none.RTTP99 != -1 || none.LimitBps(1e6) != -1 {
		t.Errorf("of nothing: %+v", none)
	}
}

func TestCongestionEvents(t *testing.T) {
	state := func(s tcpinfo.CAState, retransmitted, ssthresh uint32) tcpinfo.Info {
		return tcpinfo.Info{CAState: s, TotalRetrans: retransmitted, SndSSThresh: ssthresh}
	}
	const never = 0x7fffffff
	for _, test := range []struct {
		name string
		seen []tcpinfo.Info
		want int64
	}{
		{"none", []tcpinfo.Info{state(tcpinfo.CAOpen, 0, never), state(tcpinfo.CADisorder, 0, never), state(tcpinfo.CAOpen, 0, never)}, 0},
		{"one, seen in recovery for long", []tcpinfo.Info{state(tcpinfo.CAOpen, 0, never), state(tcpinfo.CARecovery, 10, 50), state(tcpinfo.CARecovery, 30, 50), state(tcpinfo.CAOpen, 40, 50)}, 1},
		{"one between two samples", []tcpinfo.Info{state(tcpinfo.CAOpen, 0, never), state(tcpinfo.CAOpen, 7, 50), state(tcpinfo.CAOpen, 7, 50)}, 1},
		{"a timeout in recovery", []tcpinfo.Info{state(tcpinfo.CAOpen, 0, never), state(tcpinfo.CARecovery, 3, 50), state(tcpinfo.CALoss, 9, 20)}, 2},
		{"the next right after one", []tcpinfo.Info{state(tcpinfo.CARecovery, 3, 50), state(tcpinfo.CAOpen, 9, 40)}, 1},
		{"an ECN mark", []tcpinfo.Info{state(tcpinfo.CAOpen, 0, never), state(tcpinfo.CACWR, 0, 50), state(tcpinfo.CAOpen, 0, 50)}, 1},
	} {
		s := newSeries(1)
		for i, info := range test.seen {
			s.add(Timed{At: time.Duration(i) * time.Second, Info: info})
		}
		if s.events != test.want {
			t.Errorf("%s: %d events, want %d", test.name, s.events, test.want)
		}
		s = newSeries(1)
		for i, info := range test.seen {
			s.add(Timed{At: time.Duration(i-10) * time.Second, Info: info})
		}
		if s.events != 0 {
			t.Errorf("%s, before what counts: %d events", test.name, s.events)
		}
	}
}
