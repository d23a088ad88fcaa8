package units

import (
	"encoding/json"
	"testing"
	"time"
)

func TestSecondsInJSON(t *testing.T) {
	type figures struct {
		RTT Seconds `json:"rtt_seconds,omitempty"`
	}
	for _, tt := range []struct {
		rtt  time.Duration
		want string
	}{{0, `{}`}, {63 * time.Millisecond, `{"rtt_seconds":0.063}`}, {1, `{"rtt_seconds":0.000000001}`}, {time.Hour, `{"rtt_seconds":3600}`}} {
		text, err := json.Marshal(figures{Seconds(tt.rtt)})
		if err != nil || string(text) != tt.want {
			t.Errorf("%v is %s, %v; want %s", tt.rtt, text, err, tt.want)
		}
		var back figures
		if err := json.Unmarshal(text, &back); err != nil || back.RTT.Duration() != tt.rtt {
			t.Errorf("%s comes back as %v, %v", text, back.RTT.Duration(), err)
		}
	}
	var unknown figures
	if err := json.Unmarshal([]byte(`{"rtt_seconds":null}`), &unknown); err != nil || unknown.RTT != 0 {
		t.Errorf("null is read as %v, %v", unknown.RTT, err)
	}
	if got := Seconds(4 * time.Second).String(); got != "4s" {
		t.Errorf("4 s are written %s", got)
	}
	if err := json.Unmarshal([]byte(`{"rtt_seconds":"1s"}`), &figures{}); err == nil {
		t.Error("text is read as a number")
	}
}
