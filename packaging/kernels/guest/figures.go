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

	"longhaul/packaging/kernels/result"
)

// checkFigures measures congestion controls with iperf3 over the kernel's own netem
// and tbf: 300 ms, 10 % of the packets lost before the bottleneck.
func checkFigures(ctx context.Context, plan result.Plan) (outcome, error) {
	remove, err := lossyPath(ctx, plan.RateMbps)
	if err != nil {
		return outcome{}, err
	}
	defer remove()
	for _, name := range plan.Algorithms {
		if name == "haul" || name == "brutal" {
			if _, err := longhaul(ctx, "cc", "load", name); err != nil {
				return outcome{}, err
			}
			defer longhaul(context.WithoutCancel(ctx), "cc", "unload", name)
		}
	}
	figures := map[string][]float64{}
	for range plan.Repeat {
		for _, name := range plan.Algorithms {
			bps, err := transfer(ctx, name, plan)
			if err != nil {
				return outcome{}, err
			}
			fmt.Printf("%s: %.2f Mb/s\n", name, bps/1e6) // for the log
			figures[name] = append(figures[name], 100*bps/limitBps(plan.RateMbps))
		}
	}
	o := outcome{figures: map[string]float64{}}
	var all []string
	for _, name := range plan.Algorithms {
		shares := figures[name]
		slices.Sort(shares)
		o.figures[name+"_percent_of_limit"] = shares[len(shares)/2]
		all = append(all, fmt.Sprintf("%s %.1f %% (%.1f to %.1f)", name, shares[len(shares)/2], shares[0], shares[len(shares)-1]))
	}
	o.detail = strings.Join(all, ", ")
	return o, nil
}

// limitBps is the payload that the bottleneck carries: 1448 bytes of each IP packet of
// 1500.
func limitBps(rateMbps int) float64 {
	return float64(rateMbps) * 1e6 * 1448 / 1500
}

// lossyPath makes the path a, r1, r2, b. r1 loses packets and r2 has the bottleneck,
// with a queue of one bandwidth-delay product. netem must lose packets and not the
// large ones that the kernel would make of several, so a makes none. tbf counts
// Ethernet headers, so its rate is that of frames of 1514 bytes.
func lossyPath(ctx context.Context, rateMbps int) (remove func(), err error) {
	productBytes := rateMbps * 1e6 / 8 * 3 / 10
	buffers := fmt.Sprintf("4096 %d 16000000", 6*productBytes)
	remove = func() {
		for _, host := range []string{"a", "r1", "r2", "b"} {
			_ = ip(context.Background(), "netns del "+host) // missing after a failure
		}
	}
	err = commands(ctx, fmt.Sprintf(`
		ip netns add a
		ip netns add r1
		ip netns add r2
		ip netns add b
		ip link add a0 netns a type veth peer name r10 netns r1
		ip link add r11 netns r1 type veth peer name r20 netns r2
		ip link add r21 netns r2 type veth peer name b0 netns b
		ip -n a link set a0 up gso_max_segs 1
		ip -n b link set b0 up gso_max_segs 1
		ip -n r1 link set r10 up
		ip -n r1 link set r11 up
		ip -n r2 link set r20 up
		ip -n r2 link set r21 up
		ip -n a addr add 10.9.1.1/24 dev a0
		ip -n r1 addr add 10.9.1.2/24 dev r10
		ip -n r1 addr add 10.9.2.1/24 dev r11
		ip -n r2 addr add 10.9.2.2/24 dev r20
		ip -n r2 addr add 10.9.3.1/24 dev r21
		ip -n b addr add 10.9.3.2/24 dev b0
		ip -n a route add default via 10.9.1.2
		ip -n r1 route add 10.9.3.0/24 via 10.9.2.2
		ip -n r2 route add 10.9.1.0/24 via 10.9.2.1
		ip -n b route add default via 10.9.3.1
		tc -n r1 qdisc add dev r11 root netem delay 150ms loss random 10%% limit 100000
		tc -n r2 qdisc add dev r20 root netem delay 150ms limit 100000
		tc -n r2 qdisc add dev r21 root tbf rate %dbit burst 16kb limit %d`,
		rateMbps*1e6*1514/1500, productBytes))
	for host, settings := range map[string][]string{
		"r1": {"net/ipv4/ip_forward=1"}, "r2": {"net/ipv4/ip_forward=1"},
		"a": {"net/ipv4/tcp_wmem=" + buffers, "net/ipv4/tcp_rmem=4096 131072 16000000"},
		"b": {"net/ipv4/tcp_rmem=" + buffers, "net/ipv4/tcp_wmem=4096 131072 16000000"},
	} {
		if err != nil {
			break
		}
		err = inside(host, func() error {
			for _, s := range settings {
				name, value, _ := strings.Cut(s, "=")
				if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		remove()
		return nil, err
	}
	return remove, nil
}

// transfer sends with iperf3 from a to b and returns the goodput at the receiver.
func transfer(ctx context.Context, algorithm string, plan result.Plan) (bps float64, err error) {
	server := exec.CommandContext(ctx, "ip", "netns", "exec", "b", "iperf3", "-s")
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer server.Wait()
	defer server.Process.Kill()
	if err := inside("b", func() error { return listens(ctx, 5201) }); err != nil {
		return 0, err
	}
	args := []string{"netns", "exec", "a", "iperf3", "-c", "10.9.3.2", "-t", fmt.Sprint(plan.Seconds), "-J"}
	if algorithm == "brutal" {
		// A route gives it its rate.
		if _, err := longhaul(ctx, "cc", "use", "brutal", "--netns", "a", "--to", "10.9.3.0/24", "--rate", fmt.Sprintf("%dMbit", plan.RateMbps)); err != nil {
			return 0, err
		}
		defer longhaul(context.WithoutCancel(ctx), "cc", "undo", "--netns", "a", "--to", "10.9.3.0/24")
	} else {
		args = append(args, "-C", algorithm)
	}
	out, err := exec.CommandContext(ctx, "ip", args...).Output()
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil || err != nil || r.Error != "" {
		return 0, fmt.Errorf("iperf3 with %s: %w: %s", algorithm, errors.Join(err, jsonErr), r.Error)
	}
	return r.End.Received.BitsPerSecond, nil
}
