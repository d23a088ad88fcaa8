package hostcheck

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/mss"
	"longhaul/internal/tune/route"
)

// elsewhere runs a try-out on a thread in a network namespace of its own, which ends
// with it. Its loopback device is up.
func elsewhere(try func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
		} else if err = raiseLoopback(); err == nil {
			err = try()
		}
		done <- err
	}()
	return <-done
}

func raiseLoopback() error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	lo, err := handle.LinkByName("lo")
	if err == nil {
		err = handle.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("raise the loopback device: %w", err)
	}
	return nil
}

// mss tries the program that rewrites the MSS.
func (c *checker) mss() {
	const name = "rules"
	if c.noBPF(name, kernel.BPF, kernel.NetAdmin, kernel.SysAdmin) {
		return
	}
	if _, err := ledger.Here(); err != nil {
		c.failed(name, No, err, "")
		return
	}
	var hook string
	err := elsewhere(func() (err error) {
		hook, err = mss.TryOut()
		return err
	})
	if err != nil {
		c.failed(name, No, err, c.kernelRemedy()+"; or set the MSS by route: longhaul route set --advmss")
		return
	}
	if hook == "clsact" {
		for _, module := range []string{"sch_ingress", "cls_bpf"} {
			if state := c.module(module); state == kernel.ModuleMissing || state == kernel.ModuleBarred {
				c.add(Part{Name: name, State: No, Why: "the kernel has neither tcx nor the module " + module, Remedy: c.moduleRemedy(module)})
				return
			}
		}
	}
	c.yes(name, "by "+hook)
}

// route tries a route with metrics, in a network namespace of its own.
func (c *checker) route() {
	const name = "metrics"
	if err := route.CheckPrivilege(); err != nil {
		c.add(Part{Name: name, State: Unknown, Why: "trying it out needs CAP_NET_ADMIN", Remedy: "run the check as root"})
		return
	}
	if missing, err := kernel.Missing(kernel.SysAdmin); err != nil || len(missing) > 0 {
		c.yes(name, "not tried out, which needs CAP_SYS_ADMIN")
		return
	}
	dir, err := os.MkdirTemp("", "longhaul-check-")
	if err != nil {
		c.failed(name, Unknown, err, "")
		return
	}
	defer os.RemoveAll(dir)
	err = elsewhere(func() error {
		table := &route.Table{Ledger: dir, By: ledger.By{Owner: "longhaul host check"}}
		_, err := table.Set(route.Change{
			Prefix: netip.MustParsePrefix("192.0.2.0/24"), Device: "lo",
			Metrics: map[route.Metric]route.Value{route.InitCwnd: {Number: 40}, route.AdvMSS: {Number: 1400}, route.CongestionControl: {Name: "reno"}},
		})
		return err
	})
	if err != nil {
		c.failed(name, No, err, c.kernelRemedy())
		return
	}
	c.yes(name, "")
}
