package hostcheck

import (
	"errors"
	"runtime"
	"slices"
	"strings"

	"longhaul/internal/sys/bpffs"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/ccnames"
)

// cc checks which congestion controls the host has, or can load.
func (c *checker) cc() {
	own, err := c.CC.Names()
	if err != nil {
		c.failed("algorithms", No, err, "")
		return
	}
	for _, name := range own {
		c.ours(name)
	}
	done := slices.Clone(own)
	for _, name := range append([]string{"bbr"}, c.Algorithms...) {
		if name = ccnames.First(name); !slices.Contains(done, name) {
			c.kernels(name)
			done = append(done, name)
		}
	}
}

// ours checks one of longhaul's algorithms.
func (c *checker) ours(name string) {
	second := ccnames.Second(name)
	// The kernel may have another one under the first name.
	isTaken := cc.IsAvailable(name) && c.module("tcp_"+name) == kernel.ModuleLoaded
	switch {
	case cc.IsAvailable(second):
		c.yes(name, "loaded as "+second)
		return
	case cc.IsAvailable(name) && !isTaken:
		c.yes(name, "loaded")
		return
	}
	if err := kernel.CheckBTF(name); err != nil {
		c.failed(name, No, err, btfRemedy())
		return
	}
	if c.noBPF(name, kernel.BPF, kernel.Perfmon, kernel.NetAdmin) {
		return
	}
	notes, err := c.CC.TryOut(name)
	switch {
	case errors.As(err, new(*kernel.ErrUnsupported)):
		c.failed(name, No, err, "")
	case err != nil:
		c.failed(name, No, err, "see longhaul cc load "+name+" --dry-run")
	case !(bpffs.Dir{Root: bpffs.DefaultRoot}).Mounted() && kernel.PrivateMounts():
		c.add(Part{Name: name, State: Limited, Why: "it cannot be loaded from this mount namespace, which has no BPF filesystem at " + bpffs.DefaultRoot,
			Remedy: "load it outside of the container or of ip netns exec, or mount the host's there"})
	case len(notes) > 0:
		c.add(Part{Name: name, State: Limited, Why: strings.Join(notes, "; "), Remedy: c.kernelRemedy()})
	case ccnames.NeedsRate(name) && !hasCgroup2():
		c.add(Part{Name: name, State: Limited, Why: "programs cannot set its rate by a socket option: no cgroup2 file system at /sys/fs/cgroup",
			Remedy: "mount -t cgroup2 none /sys/fs/cgroup"})
	case isTaken:
		c.yes(name, "as "+second+": the kernel has a "+name)
	default:
		c.yes(name, "can be loaded")
	}
}

// btfRemedy names releases whose kernels have BTF. Those of other architectures may not.
func btfRemedy() string {
	if runtime.GOARCH == "amd64" {
		return "boot the kernel of Debian 11, Ubuntu 20.10, Red Hat 8.2 or newer"
	}
	return "boot a kernel that is built with it"
}

func hasCgroup2() bool {
	_, err := kernel.Cgroup2()
	return err == nil
}

// kernels checks one of the kernel's own algorithms.
func (c *checker) kernels(name string) {
	module := "tcp_" + name
	p := Part{Name: name, kernels: true}
	switch state := c.module(module); {
	case cc.IsAvailable(name) && !cc.MayUse(name):
		p.State, p.Why = Limited, "the kernel keeps it for CAP_NET_ADMIN"
		p.Remedy = "add it to the sysctl net.ipv4.tcp_allowed_congestion_control"
	case cc.IsAvailable(name):
		p.State, p.Detail = Yes, "the kernel's"
	case state == kernel.ModuleOnDisk:
		p.State, p.Why = Limited, "its module is not loaded, and only a socket of root's loads it"
		p.Remedy = "modprobe " + module + "; for each boot: echo " + module + " > /etc/modules-load.d/" + module + ".conf"
	case state == kernel.ModuleBarred:
		p.State, p.Why = No, modulesDisabled
		p.Remedy = "load " + module + " at boot, before that is set"
	case state == kernel.ModuleUnknown:
		p.State, p.Why = Unknown, "it is not loaded, and this host has no list of its kernel's modules"
		p.Remedy = "modprobe " + module
	default:
		p.State, p.Why, p.Remedy = No, "the kernel has no module "+module, c.moduleRemedy(module)
	}
	c.add(p)
}

const modulesDisabled = "the kernel takes no more modules (kernel.modules_disabled is 1)"
