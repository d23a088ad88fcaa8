package ccnames

import "testing"

func TestFirst(t *testing.T) {
	for name, want := range map[string]string{"hybla": "hybla", Second("hybla"): "hybla", "lh_brutal": "brutal", "lh": "lh", "": "", "bbr": "bbr"} {
		if got := First(name); got != want {
			t.Errorf("%q means %q, want %q", name, got, want)
		}
	}
}
