package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/internal/carry/pair/identity"
	"longhaul/test/hostile"
)

// Where everybody is, all on the loopback of the sandbox.
const (
	targetHost = "127.0.0.1" // with the clients
	victimHost = "127.0.0.2" // the relay under attack
	honestHost = "127.0.0.3" // the relay that it is paired with in earnest
	lateHost   = "127.0.0.4" // one that comes during the attack
	evilHost   = "127.0.0.5" // a hostile far end

	pairedPort   = 6000 // a far tunnel, or the near one of the honest pair
	attackedPort = 6001 // the near tunnel that leads to the hostile far end
	plainPort    = 7000 // an unpaired tunnel to the target
	httpPort     = 9463

	echoPort = 5000 // the target
)

// maxFlows is of the attacked tunnel.
const maxFlows = 100

// descriptorLimit is of every process here.
const descriptorLimit = 20_000

// bench is one run of the program.
type bench struct {
	binary      string
	dir         string
	time        time.Duration
	memoryLimit string
	seed        uint64
	progress    io.Writer
	unleashed   bool // attackers have all processors
}

// scenario is an attack with the settings of the relay.
type scenario struct {
	name      string
	attack    hostile.Attack
	unlimited bool // without memory_limit
}

// unlimitedAttacks are run a second time against a relay without memory_limit.
var unlimitedAttacks = map[string]bool{"early": true, "slow-read": true, "far-early": true}

func scenarios() (all []scenario) {
	for _, k := range hostile.Attacks() {
		all = append(all, scenario{name: k.Name, attack: k})
		if unlimitedAttacks[k.Name] {
			all = append(all, scenario{name: k.Name + "-unlimited", attack: k, unlimited: true})
		}
	}
	return all
}

// prepareHost sets up the loopback of the sandbox. Strangers come from many ports.
func prepareHost() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback device up: %w", err)
	}
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	if err := os.WriteFile(ports, []byte("10240 65535"), 0); err != nil {
		return fmt.Errorf("set %s: %w", ports, err)
	}
	return nil
}

// prepare bounds descriptors and finds the program.
func (b *bench) prepare(ctx context.Context) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, descriptorLimit)
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if b.binary != "" {
		return nil
	}
	b.binary = filepath.Join(b.dir, "longhaul")
	return kit.Build(ctx, b.binary)
}

// site are the relays of one scenario, each with keys of its own.
type site struct {
	b      *bench
	s      scenario
	dir    string
	victim *relay
	others []*relay
	evil   string // directory of the attacker's keys, in which the victim is named victim
	key    string // the victim's public key
}

func (b *bench) newSite(ctx context.Context, s scenario) (*site, error) {
	t := &site{b: b, s: s}
	var err error
	if t.dir, err = os.MkdirTemp(b.dir, ""); err != nil {
		return nil, err
	}
	if err := t.introduce(); err != nil {
		return t, err
	}
	isFar := s.attack.Role != hostile.FarPeer
	if isFar {
		t.victim, err = t.start(ctx, "victim", t.farConfig("victim", victimHost, "[evil, honest, late]", s.unlimited))
	} else {
		t.victim, err = t.start(ctx, "victim", t.nearVictim())
	}
	if err != nil {
		return t, err
	}
	if isFar {
		err = t.add(ctx, "honest", t.nearConfig("honest", honestHost))
	} else {
		err = t.add(ctx, "honest", t.farConfig("honest", honestHost, "[victim]", true))
	}
	return t, err
}

// introduce makes the keys: the victim knows all others, and each of them the victim.
func (t *site) introduce() error {
	victim := identity.New(t.keys("victim"))
	key, _, _, err := victim.Key()
	if err != nil {
		return err
	}
	t.key, t.evil = key.String(), t.keys("evil")
	for _, name := range []string{"evil", "honest", "late"} {
		store := identity.New(t.keys(name))
		own, _, _, err := store.Key()
		if err == nil {
			_, err = store.Pin("victim", key)
		}
		if err == nil {
			_, err = victim.Pin(name, own)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *site) keys(name string) string { return filepath.Join(t.dir, name+".keys") }

// head is what begins each configuration.
func (t *site) head(name string) string {
	return fmt.Sprintf("control_socket: %s\npair_keys: %s\nlog: {format: json}\n", t.socket(name), t.keys(name))
}

func (t *site) socket(name string) string { return filepath.Join(t.dir, name+".s") }

// limited is the part of the victim's configuration that bounds memory and serves HTTP.
func (t *site) limited(unlimited bool) string {
	text := fmt.Sprintf("http_listen: %s:%d\n", victimHost, httpPort)
	if !unlimited && t.b.memoryLimit != "none" {
		text += "memory_limit: " + t.b.memoryLimit + "\n"
	}
	return text
}

// plain is a tunnel that no pair has to do with.
var plain = fmt.Sprintf("  - {name: plain, listen: \"%s:%d\", forward: \"%s:%d\"}\n", victimHost, plainPort, targetHost, echoPort)

// farConfig is a far relay.
func (t *site) farConfig(name, host, from string, unlimited bool) string {
	config, rest := t.head(name), ""
	if name == "victim" {
		config, rest = config+t.limited(unlimited), plain
	}
	return config + fmt.Sprintf("tunnels:\n  - {name: paired, listen: \"%s:%d\", forward: \"%s:%d\", pair_from: %s, max_flows: %d}\n",
		host, pairedPort, targetHost, echoPort, from, maxFlows) + rest
}

// nearConfig is an honest near relay of the victim.
func (t *site) nearConfig(name, host string) string {
	return t.head(name) + fmt.Sprintf("tunnels:\n  - {name: paired, listen: \"%s:%d\", forward: \"%s:%d\", pair: victim}\n",
		host, pairedPort, victimHost, pairedPort)
}

// nearVictim is a near relay with an honest far one and a hostile one.
func (t *site) nearVictim() string {
	return t.head("victim") + t.limited(t.s.unlimited) + "tunnels:\n" +
		fmt.Sprintf("  - {name: paired, listen: \"%s:%d\", forward: \"%s:%d\", pair: honest}\n", victimHost, pairedPort, honestHost, pairedPort) +
		fmt.Sprintf("  - {name: attacked, listen: \"%s:%d\", forward: \"%s:%d\", pair: {peer: evil, lanes: 4, resume: 2s}, connect_timeout: 5s, max_flows: %d}\n",
			victimHost, attackedPort, evilHost, pairedPort, maxFlows) + plain
}

// client is where the client of the honest pair connects.
func (t *site) client() string {
	host := honestHost
	if t.s.attack.Role == hostile.FarPeer {
		host = victimHost
	}
	return fmt.Sprintf("%s:%d", host, pairedPort)
}

// start starts a relay and waits until it says so.
func (t *site) start(ctx context.Context, name, config string) (*relay, error) {
	file := filepath.Join(t.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startRelay(ctx, name, t.socket(name), t.b.binary, "relay", "--config", file)
}

// add starts a relay and waits until its pair stands.
func (t *site) add(ctx context.Context, name, config string) error {
	r, err := t.start(ctx, name, config)
	if err != nil {
		return err
	}
	t.others = append(t.others, r)
	return t.standing(ctx, name)
}

// standing waits until a session with the victim, or of it, stands.
func (t *site) standing(ctx context.Context, name string) error {
	asked := t.others[len(t.others)-1]
	return asked.until(ctx, name+" is not paired", func(ctx context.Context) bool {
		status, err := asked.status(ctx)
		if err != nil || status.Pairs == nil {
			return false
		}
		for _, s := range status.Pairs.Sessions {
			if s.Up {
				return true
			}
		}
		return false
	})
}

// close ends all relays and removes what they had.
func (t *site) close() {
	for _, r := range append(t.others, t.victim) {
		if r != nil {
			r.kill()
		}
	}
	os.RemoveAll(t.dir)
}

// join has a near relay come that was not there, and returns how long it takes until its pair
// stands.
func (t *site) join(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	go func() {
		select {
		case <-t.victim.exited: // nobody will answer
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := t.start(ctx, "late", t.nearConfig("late", lateHost))
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	t.others = append(t.others, r)
	err = t.standing(ctx, "late")
	r.kill()
	t.others = t.others[:len(t.others)-1]
	if err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		return joinWithin, nil
	}
	return time.Since(begun), err
}

// joinWithin bounds the wait for a relay that comes during an attack.
const joinWithin = 20 * time.Second
