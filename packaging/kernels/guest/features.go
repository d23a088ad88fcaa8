package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/packaging/kernels/result"
)

// checkRelay sends 100 MB through two relays.
func checkRelay(ctx context.Context, _ result.Plan) (o outcome, err error) {
	s, err := sinkAt("", "127.0.0.1:6002")
	if err != nil {
		return o, err
	}
	defer s.Close()
	for _, port := range []int{6001, 6000} {
		stop, err := background("longhaul", "relay", "--control-socket", "off", "--history", "off",
			"--listen", fmt.Sprintf("127.0.0.1:%d", port), "--forward", fmt.Sprintf("127.0.0.1:%d", port+1))
		if err != nil {
			return o, err
		}
		defer func() {
			if stopErr := stop(); stopErr != nil && err == nil {
				err = fmt.Errorf("a relay ended with %w", stopErr)
			}
		}()
		if err := listens(ctx, port); err != nil {
			return o, err
		}
	}
	c, err := dial(ctx, "", "127.0.0.1:6000", "")
	if err != nil {
		return o, err
	}
	defer c.Close()
	return outcome{detail: "100 MB through two relays, digests equal"}, send(c, 100e6)
}

// checkMeasure measures to Debian's iperf3, and has that measure to longhaul.
func checkMeasure(ctx context.Context, _ result.Plan) (outcome, error) {
	stop, err := background("iperf3", "-s", "-B", "127.0.0.1", "-p", "5301")
	if err != nil {
		return outcome{}, err
	}
	defer stop()
	if err := listens(ctx, 5301); err != nil {
		return outcome{}, err
	}
	for _, way := range [][]string{nil, {"--receive"}} {
		out, err := longhaul(ctx, append([]string{"measure", "127.0.0.1:5301", "--time", "2s", "--json"}, way...)...)
		if err != nil {
			return outcome{}, err
		}
		if err := received(out); err != nil {
			return outcome{}, err
		}
	}
	stopOurs, err := background("longhaul", "measure", "--serve", "--listen", "127.0.0.1:5302")
	if err != nil {
		return outcome{}, err
	}
	defer stopOurs()
	if err := listens(ctx, 5302); err != nil {
		return outcome{}, err
	}
	out, err := exec.CommandContext(ctx, "iperf3", "-c", "127.0.0.1", "-p", "5302", "-t", "2", "-J").CombinedOutput()
	if err != nil {
		return outcome{}, fmt.Errorf("iperf3 -c: %w: %s", err, tail(string(out), 300))
	}
	return outcome{detail: "to iperf3, from iperf3, and iperf3 to longhaul"}, received(string(out))
}

// received fails if a report in iperf3's format has no received bytes.
func received(report string) error {
	var r struct {
		End struct {
			Received struct {
				Bytes float64 `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		return fmt.Errorf("read the report: %w", err)
	}
	if r.End.Received.Bytes < 1e6 {
		return fmt.Errorf("only %.0f bytes arrived", r.End.Received.Bytes)
	}
	return nil
}

// checkRoute sets metrics of a route, sees connections take them, and takes them back.
func checkRoute(ctx context.Context, _ result.Plan) (outcome, error) {
	remove, err := pair(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer remove()
	before, err := routes(ctx)
	if err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "route", "set", "--netns", "a", "--to", "10.9.0.0/24", "--cc", "reno", "--initcwnd", "20", "--mtu", "1200", "--lock"); err != nil {
		return outcome{}, err
	}
	c, err := dial(ctx, "a", sinkAddress, "")
	if err != nil {
		return outcome{}, err
	}
	defer c.Close()
	congestion, err := congestionOf(c)
	if err != nil {
		return outcome{}, err
	}
	mss, err := option(c, unix.TCP_MAXSEG)
	if err != nil {
		return outcome{}, err
	}
	if congestion != "reno" || mss > 1160 {
		return outcome{}, fmt.Errorf("the connection has %s and segments of %d bytes, not reno and at most 1160", congestion, mss)
	}
	if err := send(c, 1e6); err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "route", "undo", "--netns", "a", "--to", "10.9.0.0/24"); err != nil {
		return outcome{}, err
	}
	after, err := routes(ctx)
	if err == nil && after != before {
		err = fmt.Errorf("undo left %q, before it was %q", after, before)
	}
	return outcome{detail: "reno and a smaller MTU on a prefix, and back"}, err
}

func routes(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "ip", "-n", "a", "route", "show").Output()
	return string(out), err
}

// checkMSS clamps and raises the MSS of connections between two hosts.
func checkMSS(ctx context.Context, _ result.Plan) (outcome, error) {
	remove, err := pair(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer remove()
	// segment is the segment size of a new connection, which then carries data.
	segment := func() (int, error) {
		c, err := dial(ctx, "a", sinkAddress, "")
		if err != nil {
			return 0, err
		}
		defer c.Close()
		size, err := option(c, unix.TCP_MAXSEG)
		if err != nil {
			return 0, err
		}
		return size, send(c, 1e6)
	}
	plain, err := segment()
	if err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "mss", "set", "--netns", "a", "--dev", "a0", "--to", addressB, "--clamp", "1000"); err != nil {
		return outcome{}, err
	}
	clamped, err := segment()
	if err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "mss", "undo", "--netns", "a", "--dev", "a0", "--to", addressB); err != nil {
		return outcome{}, err
	}
	// b announces a small MSS, though the path carries more.
	if err := ip(ctx, "-n b route change 10.9.0.0/24 dev b0 src "+addressB+" advmss 536"); err != nil {
		return outcome{}, err
	}
	small, err := segment()
	if err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "mss", "set", "--netns", "a", "--dev", "a0", "--to", addressB, "--raise", "1460"); err != nil {
		return outcome{}, err
	}
	raised, err := segment()
	if err != nil {
		return outcome{}, err
	}
	list, err := longhaul(ctx, "mss", "list", "--netns", "a", "--json")
	if err != nil {
		return outcome{}, err
	}
	if _, err := longhaul(ctx, "mss", "undo", "--netns", "a", "--yes"); err != nil {
		return outcome{}, err
	}
	after, err := segment()
	if err != nil {
		return outcome{}, err
	}
	o := outcome{detail: fmt.Sprintf("segments of %d bytes clamped to %d; of %d raised to %d, then %d", plain, clamped, small, raised, after)}
	if clamped > 1000 || clamped < 900 || small > 536 || raised < 1400 || after != small || !strings.Contains(list, "1460") {
		return o, errors.New(o.detail)
	}
	left, err := exec.CommandContext(ctx, "tc", "-n", "a", "qdisc", "show", "dev", "a0").Output()
	if err == nil && strings.Contains(string(left), "clsact") {
		err = fmt.Errorf("undo left %s", left)
	}
	return o, err
}

// checkAlgorithm loads a congestion control, sends with it and unloads it.
func checkAlgorithm(name string) func(context.Context, result.Plan) (outcome, error) {
	return func(ctx context.Context, _ result.Plan) (outcome, error) {
		remove, err := pair(ctx)
		if err != nil {
			return outcome{}, err
		}
		defer remove()
		said, err := longhaul(ctx, "cc", "load", name)
		if err != nil {
			return outcome{}, err
		}
		c, err := dial(ctx, "a", sinkAddress, name)
		if err != nil {
			return outcome{}, err
		}
		defer c.Close()
		if err := send(c, 2e6); err != nil {
			return outcome{}, err
		}
		if again, err := longhaul(ctx, "cc", "load", name); err != nil || !strings.Contains(again, "already") {
			return outcome{}, fmt.Errorf("a second load: %q, %w", again, err)
		}
		if _, err := longhaul(ctx, "cc", "unload", name); err != nil {
			return outcome{}, err
		}
		b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
		if err == nil && slices.Contains(strings.Fields(string(b)), name) {
			err = fmt.Errorf("unload left %s in the kernel", name)
		}
		return outcome{detail: sentence(said)}, err
	}
}

// checkDoctor has doctor look at a connection with a small send buffer over a path of
// 100 ms, and expects that cause.
func checkDoctor(ctx context.Context, _ result.Plan) (outcome, error) {
	remove, err := pair(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer remove()
	err = commands(ctx, `
		tc -n a qdisc add dev a0 root netem delay 50ms limit 10000
		tc -n b qdisc add dev b0 root netem delay 50ms limit 10000`)
	if err != nil {
		return outcome{}, err
	}
	c, err := dial(ctx, "a", sinkAddress, "")
	if err != nil {
		return outcome{}, err
	}
	defer c.Close()
	if err := c.SetWriteBuffer(32 << 10); err != nil {
		return outcome{}, err
	}
	go func() {
		data := make([]byte, 64<<10)
		for {
			if _, err := c.Write(data); err != nil {
				return // closed
			}
		}
	}()
	select { // its first round trips differ
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return outcome{}, ctx.Err()
	}
	out, err := longhaul(ctx, "doctor", "--netns", "a", "--remote", sinkAddress, "--time", "5s", "--json")
	if err != nil {
		return outcome{}, err
	}
	fmt.Println(out)
	if !strings.Contains(out, `"send-buffer"`) {
		return outcome{}, fmt.Errorf("doctor does not name the send buffer: %s", tail(out, 600))
	}
	return outcome{detail: "a small send buffer over 100 ms found"}, nil
}
