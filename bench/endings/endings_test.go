package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"longhaul/bench/peers"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
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
	var stdout, stderr bytes.Buffer
	args := []string{"--json", "--repeat", "1", "--within", "1m", "--relays", "longhaul,go-copy-loop", "--longhaul", nettest.Longhaul(t)}
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	var res result
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		t.Fatal(err)
	}
	if len(res.Relays) != 2 {
		t.Fatalf("%d relays, want 2", len(res.Relays))
	}
	for _, e := range res.Relays[0].Endings {
		if e.OK != 1 || len(e.Wrong) > 0 {
			t.Errorf("longhaul, %s: %s", e.Sequence, e)
		}
	}
	var wrong []string
	for _, e := range res.Relays[1].Endings {
		if e.OK == 0 {
			wrong = append(wrong, e.Sequence)
		}
	}
	if diff := cmp.Diff([]string{"target resets", "target refuses", "client resets", "relay killed"}, wrong); diff != "" {
		t.Errorf("endings that the copy loop gets wrong (-want +got):\n%s", diff)
	}
}

func TestTable(t *testing.T) {
	var short ending
	short.Sequence = "target resets"
	short.OK = 1
	for _, n := range []int64{300, 100, 200} {
		short.add(&tcpscript.Failure{Step: "client expects 1K, reset", Actor: "client", Got: "got an end", Bytes: n})
	}
	short.add(&tcpscript.Failure{Step: "target accepts", Actor: "target", Got: "nobody connected", Bytes: -1})
	res := result{Kernel: "6.18", Repeat: 5, Sequences: []string{"target resets", "relay killed"}, Relays: []relayResult{
		{Name: "a", Version: "1.2", Note: "-x", Endings: []ending{short, {Sequence: "relay killed", OK: 5}}},
	}}
	var out strings.Builder
	if err := res.writeMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	want := `| relay | target resets | relay killed | wrong |
|---|---|---|---|
| a 1.2 (-x) | ✗ 1× ok, 3× client got an end after 100 to 300 bytes, 1× target nobody connected | ok | 1 of 2 |

5 runs of each, Linux 6.18.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--relays envoy": `unknown relay "envoy": choose from longhaul, haproxy`,
		"--endings x":    `unknown ending "x": choose from target resets, target refuses`,
		"--repeat 0":     "--repeat 0: use 1 or more",
		"--within 0s":    "--within 0s: use more than 0",
	} {
		var stdout, stderr bytes.Buffer
		if err := run(t.Context(), strings.Fields(args), &stdout, &stderr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v, want %s", args, err, want)
		}
	}
}
