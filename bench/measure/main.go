// Command measure holds longhaul measure against iperf3 on the same paths, in turn: what
// goodput each finds, and what processor time it takes for it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
)

func main() { kit.Main(suite().Entry()) }

const port = 5201

// The tools.
const (
	ours   = "longhaul"
	iperf3 = "iperf3"
)

func suite() kit.Suite {
	wan := func(rateBps int64, rtt time.Duration) lab.Topology {
		return lab.TwoSites(lab.Conditions{RTT: rtt, RateBps: rateBps, QueueBDP: 1, MTUAB: 1500, MTUBA: 1500, LANMTU: 1500, Seed: 1})
	}
	end := func(host string, address netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: "lan", Addresses: []netip.Prefix{netip.PrefixFrom(address, 8)}}
	}
	cable := lab.Topology{
		Hosts:  []lab.HostSpec{{Name: "host-a", Address: lab.HostA}, {Name: "host-b", Address: lab.HostB}},
		Cables: []lab.Cable{{A: end("host-a", lab.HostA), B: end("host-b", lab.HostB), MTU: 1500}},
	}
	for i := range cable.Hosts {
		cable.Hosts[i].TCP.CongestionControl = "cubic"
	}
	s := kit.Suite{Usual: kit.Options{Repeat: 5, Time: 10 * time.Second}, QuickTime: 2 * time.Second,
		Missing: func(way string) string {
			if way == iperf3 {
				return lab.MissingProgram(iperf3, iperf3)
			}
			return ""
		},
		Experiment: experiment.Experiment{
			Name:    "measure",
			Summary: "longhaul measure beside iperf3: goodput, and the processor time for it",
			Source:  "no report: the two run in turn on the same paths",
			Short:   "longhaul measure beside iperf3",
			Long: `measure runs longhaul measure and iperf3 in turn on the same paths. The
processor time is that of the whole life of the processes, with their start.`,
			Example: `  go run ./bench/measure
  go run ./bench/measure --case cable --repeat 3 --json`,
		}}
	for _, p := range []struct {
		name, about string
		topology    lab.Topology
	}{
		{"100mbit", "100 Mb/s, 20 ms", wan(100e6, 20*time.Millisecond)},
		{"1gbit", "1 Gb/s, 10 ms", wan(1e9, 10*time.Millisecond)},
		{"cable", "a cable", cable},
	} {
		s.Trials = append(s.Trials, kit.Trial{Name: p.name, About: p.about, Ways: []string{ours, iperf3},
			Run: func(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
				return measure(ctx, o, p.topology, way, note)
			}})
	}
	return s
}

// measure runs a tool once over a path.
func measure(ctx context.Context, o kit.Options, t lab.Topology, way string, note func(kit.Measured)) error {
	// What is started is killed at the end of its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, err := kit.NewWorld(t, o.Program, o.Report)
	if err != nil {
		return err
	}
	defer w.Close()
	serve := []string{o.Program, "measure", "--serve", "--port", strconv.Itoa(port)}
	ask := []string{o.Program, "measure", lab.HostB.String(), "--json", "--time", o.Time.String()}
	if way == iperf3 {
		serve = []string{iperf3, "-s", "-p", strconv.Itoa(port)}
		ask = []string{iperf3, "-c", lab.HostB.String(), "-J", "-t", fmt.Sprintf("%.0f", o.Time.Seconds())}
	}
	var said, out bytes.Buffer
	server := exec.CommandContext(ctx, serve[0], serve[1:]...)
	server.Stdout, server.Stderr = &said, &said
	if err := w.Host("host-b").Start(server); err != nil {
		return err
	}
	// A trial connection would be taken for a client.
	deadline := time.Now().Add(10 * time.Second)
	up, err := false, error(nil)
	for !up && err == nil && time.Now().Before(deadline) {
		if up, err = w.Host("host-b").Listening(port); !up && err == nil {
			err = kit.Pause(ctx, 5*time.Millisecond)
		}
	}
	client := exec.CommandContext(ctx, ask[0], ask[1:]...)
	client.Stdout, client.Stderr = &out, &said
	if err == nil && !up {
		err = errors.New("the server does not listen")
	}
	if err == nil {
		err = w.Host("host-a").Start(client)
	}
	if err == nil {
		err = client.Wait()
	}
	_ = server.Process.Signal(os.Interrupt)
	_ = server.Wait() // iperf3 has its own view of an interrupt's status
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, &said, &out)
	}
	var told struct {
		End struct {
			Sum struct {
				Bytes         float64
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		return err
	}
	if told.End.Sum.Bytes == 0 {
		return fmt.Errorf("nothing arrived\n%s", &out)
	}
	cpu := func(c *exec.Cmd) float64 {
		return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds() * 1e9 / told.End.Sum.Bytes
	}
	note(kit.Measured{Name: "goodput", Unit: "Mb/s", Value: told.End.Sum.BitsPerSecond / 1e6})
	note(kit.Measured{Name: "client's CPU", Unit: "s/GB", Value: cpu(client)})
	note(kit.Measured{Name: "server's CPU", Unit: "s/GB", Value: cpu(server)})
	return nil
}
