package hostcheck

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/pathmtu"
	"longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
)

// doctor checks what doctor and top see of connections.
func (c *checker) doctor() {
	c.connections()
	c.figures()
	if err := pathmtu.CheckPrivilege(); err != nil {
		c.add(Part{Name: "path MTU", State: Limited, Why: "doctor cannot probe packet sizes without CAP_NET_RAW", Remedy: "run doctor as root"})
	} else {
		c.yes("path MTU", "")
	}
	if _, err := process.Sockets(1); err != nil {
		c.add(Part{Name: "programs", State: Limited, Why: "this user sees only its own programs", Remedy: "run doctor and top as root"})
	} else {
		c.yes("programs", "")
	}
}

// connections checks sock_diag. The kernel loads its modules at the first question of
// any user, so that the check asks only if they are loaded.
func (c *checker) connections() {
	const name = "connections"
	for _, module := range []string{"inet_diag", "tcp_diag"} {
		switch c.module(module) {
		case kernel.ModuleMissing:
			c.add(Part{Name: name, State: No, Why: "the kernel has no module " + module, Remedy: c.moduleRemedy(module)})
			return
		case kernel.ModuleBarred:
			c.add(Part{Name: name, State: No, Why: modulesDisabled,
				Remedy: "load " + module + " at boot, before that is set"})
			return
		case kernel.ModuleOnDisk:
			c.yes(name, "the kernel loads "+module+" at the first use")
			return
		}
	}
	diag, err := tcpinfo.OpenDiag()
	if err == nil {
		err = diag.Each(tcpinfo.States(tcpinfo.Established), func(*tcpinfo.Connection) {})
		diag.Close()
	}
	if err != nil {
		c.failed(name, No, err, "modprobe tcp_diag")
		return
	}
	c.yes(name, "")
}

// laterFigures are the figures that kernels have added to tcp_info, each with what
// doctor cannot tell without it.
var laterFigures = []struct {
	field tcpinfo.Field
	tells string
}{
	{tcpinfo.FieldDeliveryRateBps, "the rate of delivery"},
	{tcpinfo.FieldBusyTime, "whether the program, a buffer or the peer's window limits"},
	{tcpinfo.FieldReordSeen, "reordering"},
	{tcpinfo.FieldSndWnd, "the peer's window"},
	{tcpinfo.FieldRcvWnd, "the window that this host announces"},
	{tcpinfo.FieldTotalRTO, "timeouts"},
}

// figures reads which figures the kernel gives, by the length of its answer.
func (c *checker) figures() {
	const name = "figures"
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.failed(name, No, err, "")
		return
	}
	defer unix.Close(fd)
	info, err := tcpinfo.Get(fd)
	if err != nil {
		c.failed(name, No, err, "")
		return
	}
	var lost []string
	for _, f := range laterFigures {
		if !info.Has(f.field) {
			lost = append(lost, f.tells)
		}
	}
	if len(lost) > 0 {
		c.add(Part{Name: name, State: Limited, Why: "tcp_info of this kernel does not tell " + strings.Join(lost, ", "),
			Remedy: "run Linux 6.7 or newer for all figures"})
		return
	}
	c.yes(name, "")
}

// lab checks the namespaces and devices of the lab.
func (c *checker) lab() {
	if c.Sandbox != nil {
		if err := c.Sandbox(); err != nil {
			p := Part{Name: "namespaces", State: No, Why: err.Error(), Remedy: "run the lab as root"}
			if b, ok := kernel.UserNamespaceBarrier(c.root); ok {
				p.Why = b.Sysctl + " is " + b.Value
				p.Remedy = "run the lab as root, or " + b.Remedy()
			}
			c.add(p)
		} else {
			c.yes("namespaces", "")
		}
	}
	c.labDevices()
}

// labDevices checks for TUN, or veth in its place. The kernel loads either module by
// itself.
func (c *checker) labDevices() {
	const name, tun = "devices", "/dev/net/tun"
	tunModule, vethModule := c.module("tun"), c.module("veth")
	lacks := func(s kernel.ModuleState) bool { return s == kernel.ModuleMissing || s == kernel.ModuleBarred }
	tunErr := unix.Faccessat(unix.AT_FDCWD, c.root+tun, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	switch {
	case tunErr == nil && !lacks(tunModule):
		c.yes(name, "TUN")
	case lacks(vethModule):
		remedy := c.moduleRemedy("tun")
		if !lacks(tunModule) {
			remedy = "give this user read and write access to " + tun
		}
		c.add(Part{Name: name, State: No, Why: "neither " + tun + " nor the module veth", Remedy: remedy})
	default:
		p := Part{Name: name, State: Limited, Why: "this user may not open " + tun, Remedy: "give this user read and write access to " + tun}
		switch {
		case lacks(tunModule):
			p.Why, p.Remedy = "the kernel has no module tun", c.moduleRemedy("tun")
		case errors.Is(tunErr, os.ErrNotExist):
			p.Why, p.Remedy = "there is no "+tun, "modprobe tun"
		}
		p.Why += ": the lab uses veth devices, which cost it more CPU"
		c.add(p)
	}
}

// service checks for systemd.
func (c *checker) service() {
	if info, err := os.Stat(c.root + "/run/systemd/system"); err != nil || !info.IsDir() {
		c.add(Part{Name: "systemd", State: No, Why: "systemd does not run here",
			Remedy: "start longhaul relay by this host's own means; service install --root works on an image"})
		return
	}
	c.yes("systemd", "")
}
