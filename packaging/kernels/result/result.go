// Package result is what a booted kernel tells the program that booted it.
package result

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// A Plan is what the guest is to do. It reads it from [PlanFile].
type Plan struct {
	Checks []string `json:"checks"`
	// Tests are compiled test binaries, by the folder of their package in the
	// repository: internal/tune/cc. The binary is /src/internal/tune/cc/test.
	Tests []string `json:"tests"`
	// Seconds that a transfer of the check figures takes, the bottleneck's rate there,
	// and its algorithms.
	Seconds    int      `json:"seconds"`
	RateMbps   int      `json:"rate_mbps"`
	Algorithms []string `json:"algorithms"`
	Repeat     int      `json:"repeat"`
}

// PlanFile is the plan's path in the guest.
const PlanFile = "/etc/longhaul-plan.json"

// ScriptFile is the path of a shell script that the guest runs in place of checks.
const ScriptFile = "/etc/longhaul-script"

// Status is how a check ended.
type Status string

// The ways a check ends. Unsupported: longhaul said in one sentence what the kernel
// lacks, with exit status 1.
const (
	OK          Status = "ok"
	Unsupported Status = "unsupported"
	Failed      Status = "failed"
)

// A Check is the outcome of one check.
type Check struct {
	Name    string  `json:"name"`
	Status  Status  `json:"status"`
	Seconds float64 `json:"seconds"`
	// Detail is a sentence: what was seen, what is lacking or what went wrong.
	Detail string `json:"detail,omitempty"`
	// Figures by name, with the unit in the name.
	Figures map[string]float64 `json:"figures,omitempty"`
}

// A Message is one line of the guest: its kernel's release when it begins, a check's
// name when that begins, the check when it ends, and done after the last.
type Message struct {
	Release string `json:"release,omitempty"`
	Machine string `json:"machine,omitempty"`
	Begins  string `json:"begins,omitempty"`
	Check   *Check `json:"check,omitempty"`
	Done    bool   `json:"done,omitempty"`
}

// mark begins a line with a message, among those of the kernel and of programs.
const mark = "@longhaul "

// Write writes a message as one line.
func Write(w io.Writer, m Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", mark, b)
	return err
}

// Read calls f with every message of a console, and copies all of it to log.
func Read(console io.Reader, log io.Writer, f func(Message)) error {
	lines := bufio.NewReader(console)
	for {
		line, err := lines.ReadBytes('\n')
		if _, logErr := log.Write(line); logErr != nil {
			return logErr
		}
		// The kernel may have printed the beginning of the line.
		if at := bytes.Index(line, []byte(mark)); at >= 0 {
			var m Message
			if json.Unmarshal(bytes.TrimSpace(line[at+len(mark):]), &m) == nil {
				f(m)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
