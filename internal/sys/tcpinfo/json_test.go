package tcpinfo

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
)

func TestJSON(t *testing.T) {
	raw := make([]byte, 248)
	for i := 0; i < len(raw); i += 4 {
		raw[i] = byte(i) // times of whole microseconds
	}
	for i := 104; i < 128; i += 8 {
		raw[i+4] = 0 // finite rates
	}
	for i := 160; i < 192; i += 8 {
		raw[i+4] = 0
	}
	for _, length := range []int{0, 104, 192, 248} {
		want := parse(raw[:length], binary.LittleEndian)
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Info
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%d bytes:\ngot  %+v\nwant %+v", length, got, want)
		}
		if length == 248 && (!strings.Contains(string(b), `"rwnd_limited_us":`) || !strings.Contains(string(b), `"snd_mss":`) || !strings.Contains(string(b), `"dsack_dups":`)) {
			t.Errorf("names: %s", b)
		}
	}
	var i Info
	if err := json.Unmarshal([]byte(`{"rtt_us": "much"}`), &i); err == nil {
		t.Error("a text was taken for a time")
	}
}

// The names follow the order of the fields.
func TestNamesOfFields(t *testing.T) {
	for f, want := range map[Field]string{
		FieldState: "state", FieldSndWScale: "snd_wscale", FieldRTO: "rto_us", FieldSndMSS: "snd_mss",
		FieldRcvRTT: "rcv_rtt_us", FieldMaxPacingRateBps: "max_pacing_rate_bps",
		FieldDSACKDups: "dsack_dups", FieldTotalRTOTime: "total_rto_time_us",
	} {
		if names[f] != want {
			t.Errorf("%q, want %q", names[f], want)
		}
	}
}
