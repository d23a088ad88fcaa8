package lab

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/lab/link"
)

// Lab is a built topology.
type Lab struct {
	topology Topology
	hosts    map[string]*hosts.Host
	links    map[string]*link.Link
}

// Build builds a topology. The process must be inside a sandbox.
func Build(t Topology) (*Lab, error) {
	l := &Lab{topology: t, hosts: map[string]*hosts.Host{}, links: map[string]*link.Link{}}
	if err := l.build(); err != nil {
		l.Close()
		return nil, fmt.Errorf("build the lab: %w", err)
	}
	return l, nil
}

func (l *Lab) build() error {
	for _, spec := range l.topology.Hosts {
		h, err := hosts.New(spec.Name)
		if err != nil {
			return err
		}
		l.hosts[spec.Name] = h
		for _, s := range spec.Sysctls {
			if err := setSysctl(h, s); err != nil {
				return err
			}
		}
	}
	for _, c := range l.topology.Cables {
		if err := hosts.Cable(l.hosts[c.A.Host], c.A.Device, l.hosts[c.B.Host], c.B.Device, c.MTU); err != nil {
			return err
		}
		if err := errors.Join(l.address(c.A), l.address(c.B)); err != nil {
			return err
		}
	}
	for _, spec := range l.topology.Links {
		if err := l.buildLink(spec); err != nil {
			return err
		}
	}
	for _, spec := range l.topology.Hosts {
		for _, route := range spec.Routes {
			route.TCP = spec.TCP
			if err := l.hosts[spec.Name].Route(route); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Lab) buildLink(spec LinkSpec) error {
	a, err := l.port(spec.A, spec.AB.MTU)
	if err != nil {
		return err
	}
	b, err := l.port(spec.B, spec.BA.MTU)
	if err != nil {
		a.Close()
		return err
	}
	emulated, err := link.New(a, b, spec.AB, spec.BA)
	if err != nil {
		return errors.Join(err, a.Close(), b.Close())
	}
	l.links[spec.Name] = emulated
	for _, end := range []Endpoint{spec.A, spec.B} {
		if err := l.hosts[end.Host].Up(end.Device); err != nil {
			return err
		}
		if err := l.address(end); err != nil {
			return err
		}
	}
	emulated.Start()
	return nil
}

// nearEnds counts the near ends of Ethernet pairs, for unique names.
var nearEnds atomic.Uint64

// port opens a host's device of an emulated link: a TUN device, or an Ethernet pair
// if it may not open /dev/net/tun.
func (l *Lab) port(end Endpoint, mtu int) (link.Port, error) {
	host := l.hosts[end.Host]
	var port link.Port
	err := host.Do(func() (err error) {
		port, err = link.OpenTUN(end.Device, mtu)
		return err
	})
	if err != nil && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)) {
		// The near ends of all labs share this process's namespace.
		near := fmt.Sprintf("near%d", nearEnds.Add(1))
		return link.OpenVeth(near, end.Device, host.Namespace(), mtu)
	}
	return port, err
}

// address adds a device's addresses, and sets its host's metrics on the connected
// routes.
func (l *Lab) address(end Endpoint) error {
	host := l.hosts[end.Host]
	for _, prefix := range end.Addresses {
		if err := host.Address(end.Device, prefix); err != nil {
			return err
		}
		route := hosts.Route{To: prefix.Masked(), Device: end.Device, TCP: l.spec(end.Host).TCP}
		if err := host.Route(route); err != nil {
			return err
		}
	}
	return nil
}

// Add adds a host to a lab that is built.
func (l *Lab) Add(name string) (*hosts.Host, error) {
	h, err := hosts.New(name)
	if err == nil {
		l.hosts[name] = h
	}
	return h, err
}

// Host returns a host by name, or nil.
func (l *Lab) Host(name string) *hosts.Host { return l.hosts[name] }

// Link returns an emulated link by name, or nil.
func (l *Lab) Link(name string) *link.Link { return l.links[name] }

// LostByMachine counts the packets lost between the kernel and the emulated links, in
// either direction. It is 0 unless the machine is overloaded.
func (l *Lab) LostByMachine() uint64 {
	var lost uint64
	for _, emulated := range l.links {
		for _, dir := range []link.Direction{link.AToB, link.BToA} {
			c := emulated.Counters(dir)
			lost += c.DeviceDrops + c.WriteErrors
		}
	}
	return lost
}

// Topology returns the lab's topology.
func (l *Lab) Topology() Topology { return l.topology }

// SetCongestionControl sets the congestion control of all routes of a host. An empty
// name means StockCongestionControl.
func (l *Lab) SetCongestionControl(host, algorithm string) error {
	for _, route := range l.spec(host).Routes {
		route.TCP = hosts.Metrics{CongestionControl: cmp.Or(algorithm, StockCongestionControl)}
		if err := l.hosts[host].Route(route); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) spec(host string) HostSpec {
	for _, spec := range l.topology.Hosts {
		if spec.Name == host {
			return spec
		}
	}
	return HostSpec{}
}

// HostNames returns the names of the hosts in the topology's order.
func (l *Lab) HostNames() []string {
	names := make([]string, len(l.topology.Hosts))
	for i, spec := range l.topology.Hosts {
		names[i] = spec.Name
	}
	return names
}

// Close takes the lab down.
func (l *Lab) Close() error {
	var errs []error
	for _, emulated := range l.links {
		errs = append(errs, emulated.Close())
	}
	for _, h := range l.hosts {
		h.Close()
	}
	return errors.Join(errs...)
}

// NameHosts mounts the sandbox's own /etc/hosts, so that programs started after it
// resolve the names of the lab's hosts.
func (l *Lab) NameHosts() error {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	// Many programs look up their host's own name, and would wait for a missing name
	// server.
	if name, err := os.Hostname(); err == nil {
		fmt.Fprintf(&b, "127.0.0.1 %s\n", name)
	}
	for _, spec := range l.topology.Hosts {
		fmt.Fprintf(&b, "%s %s\n", spec.Address, spec.Name)
	}
	f, err := os.CreateTemp("", "longhaul-hosts-")
	if err != nil {
		return err
	}
	// The mount keeps the removed file, which disappears with the sandbox.
	defer os.Remove(f.Name())
	_, err = f.WriteString(b.String())
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = unix.Mount(f.Name(), "/etc/hosts", "", unix.MS_BIND, "")
		if errors.Is(err, unix.ENOENT) {
			// The mount of an earlier lab: mounting on a removed file fails.
			_ = unix.Unmount("/etc/hosts", unix.MNT_DETACH)
			err = unix.Mount(f.Name(), "/etc/hosts", "", unix.MS_BIND, "")
		}
	}
	if err != nil {
		return fmt.Errorf("name the lab's hosts in /etc/hosts: %w", err)
	}
	return nil
}

// KernelRelease returns the release of the running kernel, like uname -r.
func KernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
