package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
)

const zoneName = "example.net"

// nameServer serves the zone on a host, at the loopback address.
type nameServer struct {
	*kit.World
	host   string
	dir    string
	knot   bool
	serial int
	daemon *lab.Daemon
}

func coredns() string {
	if file := os.Getenv("COREDNS"); file != "" {
		return file
	}
	file, _ := exec.LookPath("coredns")
	return file
}

// newNameServer starts a name server with the records of a zone, beside its SOA.
func newNameServer(ctx context.Context, w *kit.World, host string, knot bool, records string) (*nameServer, error) {
	s := &nameServer{World: w, host: host, dir: filepath.Join(w.Dir, "zone"), knot: knot}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`server:
    rundir: %s
    listen: 127.0.0.1@53
    user: root
database:
    storage: %[1]s/db
zone:
  - domain: %s
    storage: %[1]s
    file: zone
    zonefile-load: whole
    zonefile-sync: -1
`, s.dir, zoneName)
	if !knot {
		config = fmt.Sprintf("%s:53 {\n    bind 127.0.0.1\n    file %s/zone %[1]s {\n        reload 100ms\n    }\n}\n", zoneName, s.dir)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "config"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := s.write(records); err != nil {
		return nil, err
	}
	return s, s.start(ctx)
}

func (s *nameServer) start(ctx context.Context) (err error) {
	name, flag := coredns(), "-conf"
	if s.knot {
		name, flag = lab.FindProgram("knotd"), "-c"
	}
	s.daemon, err = s.Start(ctx, s.host, 53, name, flag, filepath.Join(s.dir, "config"))
	return err
}

// write writes the zone's file, in one step.
func (s *nameServer) write(records string) error {
	s.serial++
	text := fmt.Sprintf("$ORIGIN %s.\n$TTL %d\n@ SOA ns hostmaster %d 3600 600 864000 1\n@ NS ns\nns A 127.0.0.1\n%s", zoneName, int(ttl.Seconds()), s.serial, records)
	file := filepath.Join(s.dir, "zone")
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// set has the server serve other records, and returns when it began to, at the latest.
func (s *nameServer) set(ctx context.Context, records string) (since time.Time, err error) {
	mark := fmt.Sprintf("serial-%d", s.serial+1) // no answer about an earlier one is cached anywhere
	if err := s.write(records + mark + " A 127.0.0.1\n"); err != nil {
		return since, err
	}
	if s.knot {
		cmd := exec.CommandContext(ctx, lab.FindProgram("knotc"), "-s", filepath.Join(s.dir, "knot.sock"), "-b", "zone-reload", zoneName)
		if said, err := cmd.CombinedOutput(); err != nil {
			return since, fmt.Errorf("knotc zone-reload: %w\n%s", err, said)
		}
	}
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = s.Host(s.host).Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, "127.0.0.1:53")
			return err
		})
		return c, err
	}}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := r.LookupNetIP(ctx, "ip4", mark+"."+zoneName+".")
		if err == nil {
			return time.Now(), nil
		}
		if err := kit.Pause(ctx, 20*time.Millisecond); err != nil {
			return since, fmt.Errorf("the name server does not serve its zone: %w", err)
		}
	}
}

// serviceName is the name of a service in the zone.
func serviceName(i int) string { return fmt.Sprintf("_s%d._tcp", i) }

// record is an SRV record.
type record struct {
	host                   string // in the zone
	port, priority, weight uint16
}

func (r record) name() string { return fmt.Sprintf("%s.%s:%d", r.host, zoneName, r.port) }

// answer is what the server says of a service.
type answer struct {
	records []record // those in force, also while bad is set
	bad     string   // why it answers without targets now; empty: with them
}

// text is the answer in the zone's file.
func (a answer) text(i int) string {
	b := &strings.Builder{}
	switch a.bad {
	case "":
		for _, r := range a.records {
			fmt.Fprintf(b, "%s SRV %d %d %d %s\n", serviceName(i), r.priority, r.weight, r.port, r.host)
		}
	case badEmpty:
		fmt.Fprintf(b, "%s TXT \"none\"\n", serviceName(i))
	case badRoot:
		fmt.Fprintf(b, "%s SRV 0 0 0 .\n", serviceName(i))
	}
	return b.String()
}
