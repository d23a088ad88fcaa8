package web

import (
	"iter"
	"net/netip"
	"reflect"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

func TestTopClients(t *testing.T) {
	at := func(s string) flow.Address { return flow.Address{AddrPort: netip.MustParseAddrPort(s)} }
	flows := []monitor.Flow{
		{Client: at("10.0.0.1:1"), UpBps: 10, BytesUp: 5},
		{Client: at("10.0.0.1:2"), DownBps: 30, BytesDown: 7},
		{Client: at("10.0.0.2:1"), UpBps: 20, BytesUp: 1},
		{Client: at("[fd00::1]:1"), BytesUp: 9}, // idle
		{UpBps: 99},                             // not known yet
	}
	want := []clientRow{
		{"10.0.0.1", 2, 10, 30, 12},
		{"10.0.0.2", 1, 20, 0, 1},
		{"fd00::1", 1, 0, 0, 9},
	}
	if got := sumClients(each(flows)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for i := range 20 {
		flows = append(flows, monitor.Flow{Client: flow.Address{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 1)}})
	}
	if got := sumClients(each(flows)); len(got) != topClients || !reflect.DeepEqual(got[:2], want[:2]) {
		t.Errorf("%+v", got)
	}
}

func each(flows []monitor.Flow) iter.Seq[*monitor.Flow] {
	return func(yield func(*monitor.Flow) bool) {
		for i := range flows {
			if !yield(&flows[i]) {
				return
			}
		}
	}
}
