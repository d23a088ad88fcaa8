package hostcheck

import (
	"errors"
	"strings"
	"slices"

	"longhaul/internal/bpffs"
	"longhaul/internal/cc"
	"longhaul/internal/kernel"
)

// cc checks which congestion controls the host has, or can load.
func (c *checker) cc() {
	names, err := c.CC.Names()
	if err != nil {
		c.failed("algorithms", No, err, "")
		return
	}
	for _, name := range names {
		c.ours(name)
	}
	for _, name := range append([]string{"bbr"}, c.Algorithms...) {
		if !slices.Contains(names, name) {
			c.kernels(name)
			names = append(names, name)
		}
	}
}

// ours checks one of longhaul's algorithms.
func (c *checker) ours(name string) {
	loaded := cc.IsAvailable(name)
	if err := kernel.CheckBTF(name); err != nil && !loaded {
		c.failed(name, No, err, "boot a kernel with BTF: Debian 11, Ubuntu 20.10, Red Hat 8.2 or newer")
		return
	}
	if loaded {
		c.yes(name, "loaded")
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
			Remedy: "load it outside of the container or of ip netns exec"})
	case name == "brutal" && !hasCgroup2():
		c.add(Part{Name: name, State: Limited, works: true, Why: "programs cannot set its rate by a socket option: no cgroup2 file system at /sys/fs/cgroup",
			Remedy: "mount -t cgroup2 none /sys/fs/cgroup"})
	case len(notes) > 0:
		c.add(Part{Name: name, State: Limited, works: true, Why: strings.Join(notes, "; "), Remedy: "a newer kernel"})
	default:
		c.yes(name, "can be loaded")
	}
}

func hasCgroup2() bool {
	_, err := kernel.Cgroup2()
	return err == nil
}

// kernels checks one of the kernel's own algorithms.
func (c *checker) kernels(name string) {
	module := "tcp_" + name
	state := c.module(module)
	switch {
	case cc.IsAvailable(name) && !cc.MayUse(name):
		c.add(Part{Name: name, State: Limited, Why: "the kernel keeps it for CAP_NET_ADMIN",
			Remedy: "add it to the sysctl net.ipv4.tcp_allowed_congestion_control"})
	case cc.IsAvailable(name):
		c.yes(name, "the kernel's")
	case state == kernel.ModuleOnDisk:
		// A process with CAP_NET_ADMIN loads it by the first use.
		c.add(Part{Name: name, State: Limited, Why: "its module is not loaded, which only root's first use does",
			Remedy: "modprobe " + module + "; for each boot: echo " + module + " > /etc/modules-load.d/" + module + ".conf"})
	case state == kernel.ModuleBarred:
		c.add(Part{Name: name, State: No, Why: "the kernel takes no more modules (kernel.modules_disabled is 1)",
			Remedy: "load " + module + " at boot, before that is set"})
	case state == kernel.ModuleUnknown:
		c.add(Part{Name: name, State: Unknown, Why: "it is not loaded, and this host has no list of its kernel's modules", Remedy: "modprobe " + module})
	default:
		c.add(Part{Name: name, State: No, Why: "the kernel has no module " + module, Remedy: c.moduleRemedy(module)})
	}
}
