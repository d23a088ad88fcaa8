package linkflag

import (
	"strings"
	"testing"

	"longhaul/lab/link"
)

func TestValues(t *testing.T) {
	var (
		place link.LossPlace
		aqm   link.AQM
		burst float64
		mtu   int
		bdp   float64
		flow  bool
		loss  link.RateLoss
	)
	for _, mistake := range []struct {
		set         func(string) error
		value, want string
	}{
		{LossPlace(&place), "behind", `invalid place "behind"`},
		{AQM(&aqm), "red", "choose none, codel, fq_codel or pie"},
		{OnOff(&aqm.ECN), "yes", "choose on or off"},
		{PoliceScope(&flow), "host", "choose link or flow"},
		{RateLoss(&loss), "10Mbit:5%", "like 10Mbit-100Mbit:10%"},
		{RateLoss(&loss), "10Mbit-1Mbit:5%", "like 10Mbit-100Mbit:10%"},
		{LossBurst(&burst), "0", `invalid burst length "0"`},
		{MTU(&mtu), "67", "from 68 to 65535"},
		{BDP(&bdp), "-1", "bandwidth-delay products"},
		{BDP(&bdp), "NaN", "bandwidth-delay products"},
	} {
		if err := mistake.set(mistake.value); err == nil || !strings.Contains(err.Error(), mistake.want) {
			t.Errorf("%s: error %v, want %q", mistake.value, err, mistake.want)
		}
	}
	for _, good := range []struct {
		set   func(string) error
		value string
	}{
		{LossPlace(&place), "after"}, {AQM(&aqm), "fq_codel"}, {OnOff(&aqm.ECN), "on"},
		{PoliceScope(&flow), "flow"}, {RateLoss(&loss), "10Mbit-100Mbit:10%"}, {LossBurst(&burst), "4"}, {MTU(&mtu), "576"}, {BDP(&bdp), "0.5bdp"},
	} {
		if err := good.set(good.value); err != nil {
			t.Errorf("%s: %v", good.value, err)
		}
	}
	if place != link.LossAfter || aqm != (link.AQM{Algorithm: link.FQCoDel, ECN: true}) || !flow || loss != (link.RateLoss{FromBps: 10e6, ToBps: 100e6, Share: 0.1}) || burst != 4 || mtu != 576 || bdp != 0.5 {
		t.Errorf("got %v, %v, %v, %v, %v", place, aqm, burst, mtu, bdp)
	}
}
