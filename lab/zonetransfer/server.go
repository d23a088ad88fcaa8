package zonetransfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"longhaul/lab"
)

// zoneOrigin is the experiment's zone (a name of RFC 6761).
const zoneOrigin = "zone.test."

var zoneName = dnsmessage.MustNewName(zoneOrigin)

// hostName is the name of the zone's nth host.
func hostName(n int) dnsmessage.Name {
	return dnsmessage.MustNewName(fmt.Sprintf("h%07d.%s", n, zoneOrigin))
}

// writeZone writes an unsigned zone with that many hosts, each with an address
// of its own choice.
func writeZone(w io.Writer, names int, rng *rand.Rand) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "$ORIGIN %s\n$TTL %d\n@ SOA ns1 hostmaster 1 3600 600 864000 300\n@ NS ns1\nns1 A 192.0.2.1\n", zoneOrigin, zoneTTL)
	for n := range names {
		a := randomAddress(rng)
		fmt.Fprintf(out, "h%07d A %d.%d.%d.%d\n", n, a[0], a[1], a[2], a[3])
	}
	return out.Flush()
}

// randomAddress is one of 198.18.0.0/15, which is for such tests (RFC 2544).
func randomAddress(rng *rand.Rand) [4]byte {
	v := rng.Uint32()
	return [4]byte{198, 18 | byte(v>>16)&1, byte(v >> 8), byte(v)}
}

// nameServer is a Knot DNS server in one of the lab's hosts.
type nameServer struct {
	stage *lab.Stage
	host  string
	addr  netip.Addr
	dir   string
	d     *lab.Daemon
}

// The configurations. No message of a transfer has a bound on its time: it is
// for the transport to bring it across, and an experiment on slow ones must
// see them through.
const (
	serverConfig = `server:
    rundir: DIR
    listen: ADDRESS@53
    user: root
    tcp-io-timeout: 0
    tcp-remote-io-timeout: 0
log:
  - target: DIR/log
    any: info
database:
    storage: DIR/db
acl:
  - id: everyone
    address: [0.0.0.0/0]
    action: [transfer, notify, update]
`
	primaryConfig = serverConfig + `policy:
  - id: usual
    algorithm: ecdsap256sha256
zone:
  - domain: zone.test
    storage: DIR
    file: zone
    acl: everyone
    dnssec-signing: on
    dnssec-policy: usual
    serial-policy: increment
    zonefile-sync: -1
    journal-content: changes
`
	secondaryConfig = serverConfig + `remote:
  - id: primary
    address: PRIMARY
zone:
  - domain: zone.test
    storage: DIR
    file: zone
    acl: everyone
    master: primary
    zonefile-sync: -1
    journal-content: changes
`
)

// startServer starts a name server in a host, with the files that prepare
// puts into its directory.
func startServer(ctx context.Context, s *lab.Stage, host string, addr netip.Addr, config string, prepare func(dir string) error) (*nameServer, error) {
	dir, err := os.MkdirTemp("/run", "knot-") // gone with the sandbox
	if err != nil {
		return nil, err
	}
	n := &nameServer{stage: s, host: host, addr: addr, dir: dir}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "db"), 0o700), prepare(dir)); err != nil {
		return nil, err
	}
	config = strings.NewReplacer("DIR", dir, "ADDRESS", addr.String()).Replace(config)
	if err := os.WriteFile(filepath.Join(dir, "knot.conf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if n.d, err = s.Start(ctx, host, dnsPort, lab.FindProgram("knotd"), "-c", filepath.Join(dir, "knot.conf")); err != nil {
		return nil, n.explain(err)
	}
	return n, nil
}

// stop ends the server and removes what it kept.
func (n *nameServer) stop() {
	n.stage.End(n.d)
	_ = os.RemoveAll(n.dir)
}

// await returns the serial number of the zone that the server serves once it
// is a new one, and when that was.
func (n *nameServer) await(ctx context.Context, isNew func(uint32) bool) (uint32, time.Time, error) {
	serial, at, err := awaitSerial(ctx, n.stage.Host(n.host), n.addr, zoneName, isNew, n.d.Ended())
	if err != nil && ctx.Err() == nil {
		err = n.explain(err)
	}
	return serial, at, err
}

// control gives the server a command.
func (n *nameServer) control(ctx context.Context, args ...string) error {
	args = append([]string{"-s", filepath.Join(n.dir, "knot.sock"), "-t", "60"}, args...)
	out, err := exec.CommandContext(ctx, lab.FindProgram("knotc"), args...).CombinedOutput()
	if err != nil {
		return n.explain(fmt.Errorf("knotc %s: %w: %s", strings.Join(args[4:], " "), lab.CauseOr(ctx, err), strings.TrimSpace(string(out))))
	}
	return nil
}

// dump writes the zone that the server has to a file, in the server's own
// order, and returns its path.
func (n *nameServer) dump(ctx context.Context) (string, error) {
	dir := filepath.Join(n.dir, "dump")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := n.control(ctx, "-b", "zone-flush", zoneOrigin, "+outdir", dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "zone"), nil
}

// shownLogBytes bounds what an error shows of a log.
const shownLogBytes = 2000

// explain adds to an error what the server last logged.
func (n *nameServer) explain(err error) error {
	data, readErr := os.ReadFile(filepath.Join(n.dir, "log"))
	if readErr != nil || len(data) == 0 {
		return err
	}
	if len(data) > shownLogBytes {
		data = data[len(data)-shownLogBytes:]
	}
	return fmt.Errorf("%w\nthe name server on %s logged:\n%s", err, n.host, strings.TrimSpace(string(data)))
}

// incoming is a zone transfer that a server has received.
type incoming struct {
	kind     string // AXFR or IXFR
	duration time.Duration
	bytes    int64
}

var finishedTransfer = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(AXFR|IXFR), incoming,.* finished,.* ([0-9.]+) seconds, [0-9]+ messages, ([0-9]+) bytes`)
})

// transfers are those that the server has logged.
func (n *nameServer) transfers() ([]incoming, error) {
	data, err := os.ReadFile(filepath.Join(n.dir, "log"))
	if err != nil {
		return nil, err
	}
	return parseTransfers(string(data)), nil
}

func parseTransfers(log string) []incoming {
	var all []incoming
	for _, m := range finishedTransfer().FindAllStringSubmatch(log, -1) {
		seconds, err := strconv.ParseFloat(m[2], 64)
		bytes, bytesErr := strconv.ParseInt(m[3], 10, 64)
		if err == nil && bytesErr == nil {
			all = append(all, incoming{m[1], time.Duration(seconds * float64(time.Second)), bytes})
		}
	}
	return all
}
