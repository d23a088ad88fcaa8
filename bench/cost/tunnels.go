package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"longhaul/bench/peers"
	"longhaul/internal/run/control"
)

// many is what is asked of a relay with many tunnels, again and again.
type many struct {
	intercepts bool   // each takes 20 networks; else it listens
	prefixes   string // "to" or "from": which of them are the 20
	one        bool   // a tunnel changes each time
	accept     string // of a scrape; empty: it is a reload
	gzip       bool
	detail     string // of metrics
	flows      int    // that stand
}

// timesEach is how often one measurement asks: CPU time is counted in steps of 10 ms.
const timesEach = 10

var (
	cpuOfOne  = metric{"cpu_s_each", "CPU ms each", "%.1f", 1e3, true, func(s sample) float64 { return s.cpu.Seconds() / timesEach }}
	timeOfOne = metric{"s_each", "ms each", "%.0f", 1e3, true, func(s sample) float64 { return s.elapsed.Seconds() / timesEach }}
)

const openMetrics = "application/openmetrics-text;version=1.0.0"

// manyMeasures are reloads and scrapes.
var manyMeasures = func() (list []measure) {
	for _, m := range []struct {
		name, title string
		many
	}{
		{"reload", "A reload without a change", many{}},
		{"reload-one", "A reload that changes one tunnel", many{one: true}},
		{"reload-intercept", "A reload without a change, tunnels that intercept to 20 networks", many{intercepts: true, prefixes: "to"}},
		{"reload-intercept-one", "A reload that changes one of them", many{intercepts: true, prefixes: "to", one: true}},
		{"reload-intercept-from", "A reload without a change, tunnels that intercept from 20 networks", many{intercepts: true, prefixes: "from"}},
		{"scrape", "A scrape as text", many{accept: "text/plain"}},
		{"scrape-gzip", "A scrape as text, compressed", many{accept: "text/plain", gzip: true}},
		{"scrape-openmetrics", "A scrape as OpenMetrics", many{accept: openMetrics}},
		{"scrape-detail", "A scrape as text, metrics: {detail: tunnel}", many{accept: "text/plain", detail: "tunnel"}},
		{"scrape-flows", "A scrape as text, beside 10 000 idle flows", many{accept: "text/plain", flows: 10_000}},
	} {
		list = append(list, measure{name: m.name, title: m.title, many: &m.many, metrics: []metric{timeOfOne, cpuOfOne}})
	}
	return list
}()

// interceptedDevice is where tunnels intercept.
const interceptedDevice = "lan0"

// prepareInterception gives the namespace a device with clients, and has it forward.
func prepareInterception() error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: interceptedDevice}, PeerName: "lan1"}); err != nil {
		return fmt.Errorf("make a device to intercept at: %w", err)
	}
	for _, name := range []string{interceptedDevice, "lan1"} {
		device, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(device)
		}
		if err == nil && name == interceptedDevice {
			var at *netlink.Addr
			if at, err = netlink.ParseAddr("172.16.0.1/12"); err == nil {
				err = netlink.AddrAdd(device, at)
			}
		}
		if err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// configuration of a relay with n tunnels; the first one listens and leads to the target. turn: one tunnel
// differs from that of another turn.
func (m *many) configuration(dir string, s peers.Setup, n, turn int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "control_socket: %s\nhttp_listen: %s:%d\nhistory: off\nlog: {level: error}\n", filepath.Join(dir, "control.sock"), s.Listen.Host, peers.MetricsPort)
	if m.detail != "" {
		fmt.Fprintf(&b, "metrics: {detail: %s}\n", m.detail)
	}
	fmt.Fprintf(&b, "tunnels:\n  - {name: first, listen: %q, forward: %q, max_flows_per_source: off}\n", s.Listen, s.Target)
	for i := 1; i < n; i++ {
		port := 10_000 + i
		if i == n/2 && m.one {
			port += 20_000 + turn%2
		}
		if !m.intercepts {
			fmt.Fprintf(&b, "  - {name: tunnel-%d, listen: \"%s:%d\", forward: \"%s:9\"}\n", i, s.Listen.Host, port, s.Target.Host)
			continue
		}
		some, firstByte := []string(nil), "10"
		if m.prefixes == "from" {
			firstByte = "172"
		}
		for k := range 20 {
			at := i*20 + k // each is another network of 16 addresses
			some = append(some, fmt.Sprintf("%s.%d.%d.%d/28", firstByte, 16+at>>12, at>>4&0xff, at&0xf<<4))
		}
		networks := "to: [" + strings.Join(some, ", ") + "]"
		if m.prefixes == "from" {
			networks = fmt.Sprintf("from: [%s], to: 10.%d.%d.0/24", strings.Join(some, ", "), i/256, i%256)
		}
		fmt.Fprintf(&b, "  - {name: tunnel-%d, intercept: {interface: %s, %s, ports: %d}}\n", i, interceptedDevice, networks, port)
	}
	return b.String()
}

// measureMany starts a relay with many tunnels and asks it.
func (b *bench) measureMany(ctx context.Context, c contender, p peers.Program, dir string, setup peers.Setup, m *many) (s sample, err error) {
	argv, err := p.Command(dir, setup)
	if err != nil {
		return s, err
	}
	file := filepath.Join(dir, "longhaul.yaml")
	write := func(turn int) error {
		return os.WriteFile(file, []byte(m.configuration(dir, setup, b.tunnels, turn)), 0o600)
	}
	if err := write(0); err != nil {
		return s, err
	}
	t := trial{to: setup.Listen}
	defer t.kill()
	if t.relay, err = peers.Start(ctx, []string{argv[0], "relay", "--config", file}, peers.Address{Host: setup.Listen.Host, Port: peers.MetricsPort}); err != nil {
		return s, err
	}
	if s.flows = m.flows; m.flows > 0 {
		s.flows = c.flows(m.flows+b.tunnels) - b.tunnels // each tunnel has a listener
		all, err := connect(load{clients: s.flows, reply: requestSize, once: true}, setup.Listen)
		if err != nil {
			return s, t.explain(err)
		}
		defer all.close()
		if err := all.untilIdle(answerTime); err != nil {
			return s, t.explain(err)
		}
	}
	if err := wait(ctx, settle); err != nil {
		return s, err
	}
	for turn := range timesEach + 1 { // the first one is not counted
		if turn == 1 {
			if s.cpu, err = t.cpu(); err != nil {
				return s, err
			}
			s.cpu = -s.cpu
		}
		if err := write(turn); err != nil {
			return s, err
		}
		begun := time.Now()
		if m.accept != "" {
			err = m.scrape(ctx, setup.Listen)
		} else {
			_, err = control.Do(ctx, filepath.Join(dir, "control.sock"), "reload", nil)
		}
		if err != nil {
			return s, t.explain(err)
		}
		if turn > 0 {
			s.elapsed += time.Since(begun)
		}
	}
	after, err := t.cpu()
	s.cpu += after
	return s, err
}

// scrape reads the metrics once.
func (m *many) scrape(ctx context.Context, relay peers.Address) error {
	url := "http://" + peers.Address{Host: relay.Host, Port: peers.MetricsPort}.String() + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", m.accept)
	encoding := "identity"
	if m.gzip {
		encoding = "gzip"
	}
	request.Header.Set("Accept-Encoding", encoding)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body io.Reader = response.Body
	if m.gzip {
		if body, err = gzip.NewReader(body); err != nil {
			return err
		}
	}
	n, err := io.Copy(io.Discard, body)
	if err == nil && (response.StatusCode != http.StatusOK || n == 0) {
		err = errors.New("the relay shows no metrics: " + response.Status)
	}
	return err
}
