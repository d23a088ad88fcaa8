package main

import (
	"fmt"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
	"longhaul/lab/link"
)

// way returns a WAN without a hindrance, with a queue of one bandwidth-delay product.
func way(rtt time.Duration, mbps float64) lab.Conditions {
	return lab.Conditions{RTT: rtt, RateBps: int64(mbps * 1e6), QueueBDP: 1, MTUAB: 1500, MTUBA: 1500, LANMTU: 1500, Seed: 4}
}

// with changes a WAN.
func with(c lab.Conditions, change func(*lab.Conditions)) lab.Conditions {
	change(&c)
	return c
}

// sysctl sets a kernel setting of a host.
func sysctl(host, name, value string) func(*lab.Topology) {
	return func(t *lab.Topology) {
		for i := range t.Hosts {
			if h := &t.Hosts[i]; h.Name == host {
				h.Sysctls = append(slices.Clone(h.Sysctls), lab.Sysctl{Name: name, Value: value})
			}
		}
	}
}

// The causes that this program accepts for others: a reader and a writer are programs.
var (
	reader  = []doctor.Cause{"reader"}
	writer  = []doctor.Cause{doctor.Application}
	healthy = []doctor.Cause{doctor.Healthy}
)

const ms = time.Millisecond

// nginxEnd and the others are the ends of doctor's flags.
const (
	nginxEnd = ":8080"
	sshEnd   = "10.20.20.10:22"
	sinkEnd  = "10.20.20.10:7000"
)

// paths returns all paths.
func paths() []path {
	web, shell := []string{"nginx", "curl"}, []string{"ssh", "sshd"}
	all := []path{
		// Windows and buffers.
		{name: "window-rmem", what: "nginx to curl, the receiver's tcp_rmem is at most 56 KiB", truth: []doctor.Cause{doctor.ReceiverWindow},
			needs: web, local: nginxEnd, conditions: way(75*ms, 28), hosts: sysctl("host-b", "net.ipv4.tcp_rmem", "4096 57344 57344"), start: plain},
		{name: "no-scaling", what: "nginx to curl, the receiver has tcp_window_scaling=0", truth: []doctor.Cause{doctor.WindowScaling},
			needs: web, local: nginxEnd, conditions: way(130*ms, 22), hosts: sysctl("host-b", "net.ipv4.tcp_window_scaling", "0"), start: plain},
		{name: "sndbuf-sendfile", what: "nginx with listen sndbuf=40k and sendfile, to curl", truth: []doctor.Cause{doctor.SendBuffer},
			needs: web, local: nginxEnd, conditions: way(70*ms, 26), start: func(s *scene) error { return s.download("sndbuf=40k", "") }},
		{name: "sndbuf-write", what: "nginx with listen sndbuf=24k and without sendfile, to curl", truth: []doctor.Cause{doctor.SendBuffer},
			needs: web, local: nginxEnd, conditions: way(90*ms, 18), start: func(s *scene) error { return s.download("sndbuf=24k", "sendfile off; output_buffers 2 128k;") }},
		{name: "wmem-ssh", what: "ssh, the sender's tcp_wmem is at most 40 KiB", truth: []doctor.Cause{doctor.SendBuffer},
			needs: shell, remote: sshEnd, conditions: way(55*ms, 24), hosts: sysctl("host-a", "net.ipv4.tcp_wmem", "4096 16384 40960"),
			start: func(s *scene) error { return s.upload("") }},

		// Programs that read slowly.
		{name: "reader-curl", what: "nginx to curl --limit-rate 260K", truth: reader, needs: web, local: nginxEnd, conditions: way(45*ms, 30),
			start: func(s *scene) error { return s.download("", "", "--limit-rate", "260K") }},
		{name: "reader-steady", what: "nginx to a program that reads 30 kB each 100 ms", truth: reader, needs: []string{"nginx", "python3"}, local: nginxEnd,
			conditions: way(32*ms, 20), start: func(s *scene) error { return s.reads(30_000, 100*ms, 1<<20) }},
		{name: "reader-bursts", what: "nginx to a program that reads 1.4 MB each 7 s", truth: reader, needs: []string{"nginx", "python3"}, local: nginxEnd,
			conditions: way(80*ms, 25), start: func(s *scene) error { return s.reads(1_400_000, 7*time.Second, 1<<20) }},
		{name: "reader-stopped", what: "nginx to a program that reads 1 MB, and then no more", truth: reader, needs: []string{"nginx", "python3"}, local: nginxEnd,
			conditions: way(40*ms, 30), warm: 3 * time.Second, start: func(s *scene) error { return s.reads(1_000_000, 0, 1) }},
		{name: "reader-never", what: "nginx to a program that never reads", truth: reader, needs: []string{"nginx", "python3"}, local: nginxEnd,
			conditions: way(65*ms, 12), warm: 3 * time.Second, start: func(s *scene) error { return s.reads(1, 0, 0) }},
		{name: "reader-lossy", what: "nginx to a program that reads 20 kB each 80 ms, 0.4 % loss", truth: append(slices.Clone(reader), doctor.RandomLoss),
			needs: []string{"nginx", "python3"}, local: nginxEnd,
			conditions: with(way(50*ms, 20), func(c *lab.Conditions) { c.Loss.Probability = 0.004 }),
			start:      func(s *scene) error { return s.reads(20_000, 80*ms, 1<<20) }},
		{name: "reader-pipe", what: "nginx to curl into a shell that takes 150 kB each 400 ms", truth: reader, needs: web, local: nginxEnd, conditions: way(28*ms, 35),
			start: func(s *scene) error {
				if _, err := s.file("large", large); err != nil {
					return err
				}
				if err := s.nginx("host-a", "", ""); err != nil {
					return err
				}
				return s.shell("host-b", "curl -s http://10.10.10.10:8080/large | while head -c 150000 > /dev/null; do sleep 0.4; done")
			}},
		{name: "reader-trigger", what: "psql COPY into a table whose trigger takes 4 ms a row", truth: reader, needs: []string{"psql", "initdb", "setpriv"},
			remote: "10.20.20.10:5432", conditions: way(36*ms, 40), start: func(s *scene) error {
				if err := s.postgres(); err != nil {
					return err
				}
				out, err := s.psql("create table t (s text); create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.004); return new; end'; " +
					"create trigger slow before insert on t for each row execute function slow()")
				if err != nil {
					return fmt.Errorf("psql: %w: %s", err, out)
				}
				return s.shell("host-a", "yes "+fmt.Sprintf("%0900d", 7)+" | exec "+psql+" -c 'copy t from stdin'")
			}},

		// Programs that write slowly.
		{name: "writer-shell", what: "a shell writes 24 kB each 70 ms through nc", truth: writer, needs: []string{"nc"}, remote: sinkEnd, conditions: way(48*ms, 30),
			start: func(s *scene) error { return s.sink("while head -c 24000 /dev/zero; do sleep 0.07; done") }},
		{name: "writer-trickle", what: "a shell writes the date each 300 ms into ssh", truth: writer, needs: shell, remote: sshEnd, conditions: way(85*ms, 10),
			start: func(s *scene) error { return s.pipe("while date; do sleep 0.3; done") }},
		{name: "writer-nginx", what: "nginx with limit_rate 310k, to curl", truth: writer, needs: web, local: nginxEnd, conditions: way(25*ms, 30),
			start: func(s *scene) error { return s.download("", "limit_rate 310k;") }},
		{name: "writer-scp", what: "scp -l 5000", truth: writer, needs: []string{"scp", "sshd"}, remote: sshEnd, conditions: way(40*ms, 40),
			start: func(s *scene) error { return s.scp("-l 5000") }},
		{name: "writer-xz", what: "xz -9 of random data into ssh", truth: writer, needs: shell, remote: sshEnd, conditions: way(30*ms, 80),
			start: func(s *scene) error { return s.pipe("xz -9 < /dev/urandom") }},
		{name: "inserts", what: "psql, one INSERT in a round trip", truth: writer, needs: []string{"psql", "initdb", "setpriv"}, remote: "10.20.20.10:5432",
			conditions: way(30*ms, 20), start: func(s *scene) error {
				if err := s.postgres(); err != nil {
					return err
				}
				if out, err := s.psql("create table t (i int)"); err != nil {
					return fmt.Errorf("psql: %w: %s", err, out)
				}
				return s.shell("host-a", "yes 'insert into t values (1);' | exec "+psql)
			}},
		{name: "ping-pong", what: "a program asks 300 bytes, and waits for an answer of 200", truth: writer, needs: []string{"python3"}, remote: sinkEnd,
			conditions: way(22*ms, 50), start: func(s *scene) error { return s.exchange(1, 200, "[300]") }},
		{name: "http-keep-alive", what: "curl gets objects of 15 kB from nginx, one after the other on one connection", truth: writer, needs: web, local: nginxEnd,
			conditions: way(58*ms, 35), start: func(s *scene) error {
				if _, err := s.file("small", 15_000); err != nil {
					return err
				}
				if err := s.nginx("host-a", "", ""); err != nil {
					return err
				}
				return s.client("host-b", "curl", "-s", "-o", "/dev/null", "http://10.10.10.10:8080/small?[1-100000]")
			}},
		{name: "nagle", what: "a program writes 500 and 700 bytes, and waits for an answer: Nagle and delayed acknowledgements", truth: []doctor.Cause{"nagle"},
			needs: []string{"python3"}, remote: sinkEnd, conditions: way(7*ms, 100), start: func(s *scene) error { return s.exchange(1, 100, "[500, 700]") }},
		{name: "nagle-far", what: "a program writes a header of 60 bytes and 1800 bytes, and waits for an answer, over 26 ms", truth: []doctor.Cause{"nagle"},
			needs: []string{"python3"}, remote: sinkEnd, conditions: way(26*ms, 40), start: func(s *scene) error { return s.exchange(1, 400, "[60, 1800]") }},
		{name: "pacing", what: "iperf3 --fq-rate 6M", truth: []doctor.Cause{doctor.Pacing}, needs: []string{"iperf3"}, remote: "10.20.20.10:5301",
			conditions: way(38*ms, 30), start: func(s *scene) error {
				if err := s.daemon("host-b", 5301, "iperf3", "-s", "-p", "5301"); err != nil {
					return err
				}
				return s.client("host-a", "iperf3", "-c", "10.20.20.10", "-p", "5301", "-t", "600", "--fq-rate", "6M")
			}},
		{name: "cpu-cgroup", what: "ssh in a control group with 1.5 % of a CPU", truth: []doctor.Cause{doctor.CPU}, needs: shell, remote: sshEnd,
			conditions: way(24*ms, 90), start: func(s *scene) error {
				dir, err := s.cgroup(0.015)
				if err != nil {
					return err
				}
				s.closers = append(s.closers, removeCgroups)
				// Not before it is connected, which takes CPU time.
				if err := s.upload(""); err != nil {
					return err
				}
				if err := sleep(s.ctx, 2*time.Second); err != nil {
					return err
				}
				return s.shell("host-a", "for p in $(pidof ssh); do echo $p > "+dir+"/cgroup.procs; done")
			}},

		// The path.
		{name: "loss-rsync", what: "rsync over ssh, 0.8 % loss", truth: []doctor.Cause{doctor.RandomLoss}, needs: append([]string{"rsync"}, shell...), remote: sshEnd,
			conditions: with(way(52*ms, 24), func(c *lab.Conditions) { c.Loss.Probability = 0.008 }),
			start:      func(s *scene) error { return s.rsync("--inplace") }},
		{name: "loss-far", what: "nginx to curl, 0.25 % loss over 115 ms", truth: []doctor.Cause{doctor.RandomLoss}, needs: web, local: nginxEnd,
			conditions: with(way(115*ms, 45), func(c *lab.Conditions) { c.Loss.Probability = 0.0025 }), start: plain},
		{name: "loss-wifi", what: "scp, 0.6 % loss, and acknowledgements that come in bunches each 18 ms", truth: []doctor.Cause{doctor.RandomLoss},
			needs: []string{"scp", "sshd"}, remote: sshEnd,
			conditions: with(way(34*ms, 30), func(c *lab.Conditions) { c.Loss.Probability = 0.006; c.AggregateBack = 18 * ms }),
			start:      func(s *scene) error { return s.scp("") }},
		{name: "wifi", what: "nginx to curl, acknowledgements come in bunches each 20 ms, a deep queue, nobody else", truth: healthy, needs: web, local: nginxEnd,
			conditions: with(way(30*ms, 22), func(c *lab.Conditions) { c.AggregateBack, c.QueueBDP = 20*ms, 4 }), start: plain},
		{name: "jitter", what: "nginx to curl, each packet takes up to 4 ms more or less, nobody else", truth: append(slices.Clone(healthy), doctor.Reordering),
			needs: web, local: nginxEnd, conditions: with(way(27*ms, 15), func(c *lab.Conditions) { c.Jitter = 4 * ms }), start: plain},
		{name: "policer", what: "nginx to curl, policed to 9 Mb/s with bursts of 15 kB", truth: []doctor.Cause{doctor.Policer}, needs: web, local: nginxEnd,
			conditions: with(way(56*ms, 50), func(c *lab.Conditions) { c.Policer = link.Policer{RateBps: 9e6, BurstBytes: 15_000} }), start: plain},
		{name: "reordering", what: "scp, 3 % of the packets are held back for 40 ms", truth: []doctor.Cause{doctor.Reordering}, needs: []string{"scp", "sshd"}, remote: sshEnd,
			conditions: with(way(45*ms, 35), func(c *lab.Conditions) { c.Reorder = link.Reorder{Probability: 0.03, Hold: 40 * ms} }),
			start:      func(s *scene) error { return s.scp("") }},
		{name: "small-segments", what: "nginx to curl, the receiver's route has advmss 536, 850 packets a second", truth: []doctor.Cause{doctor.SegmentSize},
			needs: web, local: nginxEnd, conditions: with(way(33*ms, 30), func(c *lab.Conditions) { c.PacketsPerSecond = 850 }),
			hosts: func(t *lab.Topology) {
				for i := range t.Hosts {
					if t.Hosts[i].Name == "host-b" {
						t.Hosts[i].TCP.AdvMSS = 536
					}
				}
			}, start: plain},
		{name: "black-hole", what: "ssh, the path's MTU falls to 1310 without ICMP", truth: []doctor.Cause{doctor.BlackHole}, needs: shell, remote: sshEnd,
			conditions: way(44*ms, 20), start: func(s *scene) error { return s.upload("") },
			late: func(s *scene) error {
				return s.Link(lab.WAN).Change(func(x *link.Settings) { x.MTU = 1310 })
			}},
		{name: "outage", what: "nginx to curl, the path is down", truth: []doctor.Cause{doctor.Outage}, needs: web, local: nginxEnd, conditions: way(35*ms, 20), start: plain,
			late: func(s *scene) error { return s.Link(lab.WAN).Change(func(x *link.Settings) { x.Down = true }) }},
		{name: "crowd", what: "nginx to curl beside 4 connections of nc", truth: []doctor.Cause{doctor.Congestion}, needs: append([]string{"nc"}, web...), local: nginxEnd,
			conditions: way(46*ms, 24), start: func(s *scene) error {
				if err := s.bulk(4); err != nil {
					return err
				}
				return plain(s)
			}},
		{name: "crowd-far", what: "ssh beside 7 connections of nc over 95 ms", truth: []doctor.Cause{doctor.Congestion}, needs: append([]string{"nc"}, shell...), remote: sshEnd,
			conditions: way(95*ms, 32), start: func(s *scene) error {
				if err := s.bulk(7); err != nil {
					return err
				}
				return s.upload("")
			}},
		{name: "short-objects", what: "curl gets objects of 45 kB from nginx, a connection each", truth: []doctor.Cause{doctor.ShortFlow}, needs: web, local: nginxEnd,
			conditions: way(62*ms, 40), start: func(s *scene) error {
				if _, err := s.file("small", 45_000); err != nil {
					return err
				}
				if err := s.nginx("host-a", "", ""); err != nil {
					return err
				}
				return s.shell("host-b", "while :; do curl -s -o /dev/null http://10.10.10.10:8080/small; done")
			}},

		// Nothing wrong.
		{name: "healthy", what: "nginx to curl", truth: healthy, needs: web, local: nginxEnd, conditions: way(36*ms, 18), start: plain},
		{name: "healthy-far", what: "ssh over 190 ms", truth: healthy, needs: shell, remote: sshEnd, conditions: way(190*ms, 14), warm: 4 * time.Second,
			start: func(s *scene) error { return s.upload("") }},
		{name: "healthy-bloat", what: "nginx to curl, the queue holds 4 bandwidth-delay products", truth: healthy, needs: web, local: nginxEnd,
			conditions: with(way(40*ms, 10), func(c *lab.Conditions) { c.QueueBDP = 4 }), start: plain},
		{name: "healthy-slow", what: "rsync over ssh, 2 Mb/s, a queue of 64 packets", truth: healthy, needs: append([]string{"rsync"}, shell...), remote: sshEnd, conditions: with(way(20*ms, 2), func(c *lab.Conditions) { c.QueueBDP = 0 }),
			start: func(s *scene) error { return s.rsync("--inplace") }},
		{name: "idle", what: "a connection on which only keep-alives move", needs: []string{"python3"}, remote: sinkEnd, conditions: way(50*ms, 20),
			start: func(s *scene) error {
				if err := s.python("host-b", "import socket\nl = socket.create_server((\"\", 7000))\nc, _ = l.accept()\nc.recv(1)\n"); err != nil {
					return err
				}
				if err := s.listening("host-b", 7000); err != nil {
					return err
				}
				return s.python("host-a", `import socket, time
s = socket.create_connection(("10.20.20.10", 7000))
s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
time.sleep(1000)
`)
			}},
		{name: "busy-host", what: "nginx at nice 19 to curl, beside 12 programs that only compute", truth: []doctor.Cause{doctor.CPU}, starved: true,
			needs: append([]string{"python3"}, web...), local: nginxEnd, conditions: way(30*ms, 60), start: func(s *scene) error {
				if err := s.download("", ""); err != nil {
					return err
				}
				return s.shell("host-a", "renice -n 19 -p $(pidof nginx) > /dev/null; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (while :; do :; done) & done; wait")
			}},
	}
	return all
}
