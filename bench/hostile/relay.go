package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"longhaul/internal/run/control"
	"longhaul/lab/relays"
)

// relay is a process of longhaul, whose log is counted.
type relay struct {
	name   string
	socket string
	cmd    *exec.Cmd
	exited chan struct{}

	mu      sync.Mutex
	tail    []string
	dying   []string // the first lines that are no records: of a panic
	started bool
	lines   map[string]map[int64]int // by message and second
}

// keptLines is how much of a log is shown when a relay ends.
const keptLines = 20

func startRelay(ctx context.Context, name, socket, binary string, args ...string) (*relay, error) {
	r := &relay{name: name, socket: socket, cmd: exec.Command(binary, args...), exited: make(chan struct{}),
		lines: map[string]map[int64]int{}}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.cmd.Stderr = write
	err = r.cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		return nil, err
	}
	go func() {
		defer read.Close()
		r.readLog(read)
		_ = r.cmd.Wait()
		close(r.exited)
	}()
	err = r.until(ctx, name+" does not start", func(context.Context) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.started
	})
	if err != nil {
		r.kill()
	}
	return r, err
}

// readLog counts the lines of each message and second until the relay ends.
func (r *relay) readLog(log io.Reader) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Message string `json:"msg"`
		}
		broken := json.Unmarshal(lines.Bytes(), &line) != nil
		second := time.Now().Unix()
		r.mu.Lock()
		if broken && len(r.dying) < keptLines {
			r.dying = append(r.dying, lines.Text())
		}
		r.started = r.started || line.Message == "relay started"
		if r.lines[line.Message] == nil {
			r.lines[line.Message] = map[int64]int{}
		}
		r.lines[line.Message][second]++
		if r.tail = append(r.tail, lines.Text()); len(r.tail) > keptLines {
			r.tail = r.tail[1:]
		}
		r.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, log) // behind a line that is too long
}

// busiest is the message of which the log has most lines in one second of a time, and how
// many. Records of ended flows do not count: each is of one flow.
func (r *relay) busiest(from, to time.Time) (message string, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, seconds := range r.lines {
		if m == "flow" {
			continue
		}
		for second, n := range seconds {
			if second >= from.Unix() && second <= to.Unix() && n > most {
				message, most = m, n
			}
		}
	}
	return message, most
}

func (r *relay) running() bool {
	select {
	case <-r.exited:
		return false
	default:
		return true
	}
}

// end is how the relay has ended; empty: it has not.
func (r *relay) end() string {
	if r.running() {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(append([]string{r.cmd.ProcessState.String()}, r.dying...), "\n")
}

func (r *relay) kill() {
	_ = r.cmd.Process.Kill() // an error: it has ended
	<-r.exited
}

// startWithin bounds waits for what a relay does at once.
const startWithin = 30 * time.Second

// until polls a condition.
func (r *relay) until(ctx context.Context, otherwise string, cond func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !cond(ctx) {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w\n%s", otherwise, ctx.Err(), r.log())
		case <-r.exited:
			return fmt.Errorf("%s: %s has ended: %v\n%s", otherwise, r.name, r.cmd.ProcessState, r.log())
		}
	}
	return nil
}

func (r *relay) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.tail, "\n")
}

// status asks the relay as longhaul status --json does.
func (r *relay) status(ctx context.Context) (s relays.Status, err error) {
	body, err := control.Status(ctx, r.socket)
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// resident is the memory of the process, as the kernel counts it.
func (r *relay) resident() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 || fields[1] != "kB" {
		return 0, errors.New("no VmRSS")
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10, err
}

// descriptors is how many files the process has open.
func (r *relay) descriptors() (int, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return len(names), err
}
