package process

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

func TestHandle(t *testing.T) {
	cat := exec.Command("cat")
	stdin, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	h, err := Open(cat.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the wait for a running process: %v", err)
	}
	stdin.Close()
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Wait(long); err != nil {
		t.Errorf("the wait for a process that ends: %v", err)
	}
	if err := cat.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cat.Process.Pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("open a process that has ended: %v", err)
	}
}
