package top

import (
	"os/exec"
	"testing"
)

// Whoever watches a relay is told of its end.
func TestRelayThatEnds(t *testing.T) {
	cmd := exec.Command("sleep", "60") // a process is all that it takes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := Watch(noCause, cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Refresh(); err != nil || len(w.Table().Connections()) > 0 {
		t.Errorf("%v, %d connections", err, len(w.Table().Connections()))
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := w.Refresh(); err != ErrRelayEnded {
		t.Errorf("after its end: %v", err)
	}
}
