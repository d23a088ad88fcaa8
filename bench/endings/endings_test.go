package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/test/nettest"
)

// The test binary is the copy loop too.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == peers.CopyLoopCommand {
		main()
		return
	}
	nettest.Main(m)
}

// longhaul gets every ending right, and the copy loop the four wrong that its
// two io.Copy cannot know.
func TestEndings(t *testing.T) {
	s := suite(time.Minute)
	o := kit.Options{Program: nettest.Longhaul(t), Through: []string{"longhaul", "go-copy-loop"}}
	wrong := map[string][]string{}
	for _, trial := range s.Trials {
		err := trial.All(t.Context(), o, 1, func(way string, m kit.Measured) {
			if m.Value > 0 {
				wrong[way] = append(wrong[way], trial.Name)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string][]string{"go-copy-loop": {"target-resets", "target-refuses", "client-resets", "relay-killed"}}
	if diff := cmp.Diff(want, wrong); diff != "" {
		t.Errorf("wrong endings (-want +got):\n%s", diff)
	}
	if !slices.Contains(s.Ways(), "haproxy-nolinger") || len(s.Trials) != 6 {
		t.Errorf("ways %q, %d cases", s.Ways(), len(s.Trials))
	}
}
