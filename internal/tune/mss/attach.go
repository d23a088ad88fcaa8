package mss

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// Ways to attach the program, as [Status.Hook] has them.
const (
	hookTCX    = "tcx"
	hookClsact = "clsact"
)

// direction is one of the two hooks of a device.
type direction struct {
	name   string // of the pin
	attach ebpf.AttachType
	parent uint32 // of the clsact filter
}

// Outgoing first: with an answer under way, a connection is best changed at
// both its ends' SYNs or at neither.
var directions = []direction{
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
}

// attach attaches the program to both hooks of its device, in place of an
// older one that longhaul attached.
func (h *Host) attach(a attachment, d device, p *program) (hook string, err error) {
	for _, at := range directions {
		used := hookTCX
		if h.Clsact {
			err = ebpf.ErrNotSupported
		} else {
			err = h.attachLink(h.pins().Path(a.dir, at.name), d, at, p.program)
		}
		if errors.Is(err, ebpf.ErrNotSupported) {
			used = hookClsact
			err = h.attachFilter(a.dir, d, at, p.program)
		}
		if err != nil {
			return "", fmt.Errorf("attach to %s, %s: %w", d.name, at.name, err)
		}
		hook = used
	}
	return hook, nil
}

// attachLink makes and pins a tcx link, or updates the pinned one. It comes
// before what others attached, whose verdict may end the way of a packet.
func (h *Host) attachLink(pin string, d device, at direction, p *ebpf.Program) error {
	old, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer old.Close()
		if index, err := linkDevice(old); err == nil && index == d.index {
			return old.Update(p)
		}
		if err := old.Unpin(); err != nil {
			return err
		}
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: d.index, Program: p, Attach: at.attach, Anchor: link.Head()})
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(pin)
}

// linkDevice is the index of the device that a link is attached to, 0 if that
// is gone.
func linkDevice(l link.Link) (int, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	tcx := info.TCX()
	if tcx == nil {
		return 0, errors.New("the link is of another kind")
	}
	return int(tcx.Ifindex), nil
}

// filterName marks our filters of the clsact qdisc.
const filterName = "longhaul_mss"

// clsactPin is a map of one number: 1 if longhaul made the device's clsact
// qdisc, 0 if it only put filters into it.
const clsactPin = "clsact"

// attachFilter makes a filter of the clsact qdisc, or replaces ours. What it is
// about to do is pinned before it does it.
func (h *Host) attachFilter(dir string, d device, at direction, p *ebpf.Program) error {
	exists, err := hasClsact(d.index)
	if err != nil {
		return err
	}
	if err := h.markClsact(dir, !exists); err != nil {
		return fmt.Errorf("record the qdisc: %w", err)
	}
	if !exists {
		if err := netlink.QdiscAdd(clsact(d.index)); err != nil && !errors.Is(err, unix.EEXIST) {
			return kernel.LacksModule(err, feature, "sch_ingress", "CONFIG_NET_SCH_INGRESS")
		}
	}
	ours, err := filters(d.index, at)
	if err != nil {
		return err
	}
	filter := &netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: d.index, Parent: at.parent, Protocol: unix.ETH_P_ALL},
		Fd:           p.FD(),
		Name:         filterName,
		DirectAction: true,
	}
	if len(ours) > 0 {
		filter.FilterAttrs = ours[0].FilterAttrs
		return netlink.FilterReplace(filter)
	}
	return kernel.LacksModule(netlink.FilterAdd(filter), feature, "cls_bpf", "CONFIG_NET_CLS_BPF")
}

func clsact(index int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

func hasClsact(index int) (bool, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return false, err
	}
	all, err := netlink.QdiscList(l)
	return slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }), err
}

// markClsact records that there are filters, unless already recorded.
func (h *Host) markClsact(dir string, make bool) error {
	value := uint32(0)
	if make {
		value = 1
	}
	mark, err := ebpf.NewMap(&ebpf.MapSpec{Name: "mss_clsact", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer mark.Close()
	if err := mark.Put(uint32(0), value); err != nil {
		return err
	}
	if err := mark.Pin(h.pins().Path(dir, clsactPin)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// removeFilters removes our filters of a device, and the qdisc if it is ours and has
// no other filters.
func (h *Host) removeFilters(a attachment) error {
	mark, err := ebpf.LoadPinnedMap(h.pins().Path(a.dir, clsactPin), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer mark.Close()
	var made uint32
	if err := mark.Lookup(uint32(0), &made); err != nil {
		return err
	}
	if !a.here {
		return fmt.Errorf("the rules of device %d are filters of another network namespace: run the command there", a.index)
	}
	if a.deviceName() == "" {
		return nil // which removes its filters
	}
	others := 0
	for _, at := range directions {
		all, err := allFilters(a.index, at)
		if err != nil {
			return err
		}
		for _, f := range all {
			if bpf, ok := f.(*netlink.BpfFilter); !ok || bpf.Name != filterName {
				others++
			} else if err := netlink.FilterDel(f); err != nil {
				return err
			}
		}
	}
	if made == 0 || others > 0 {
		return nil
	}
	if err := netlink.QdiscDel(clsact(a.index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// filters returns our filters at a hook of a device.
func filters(index int, at direction) (ours []*netlink.BpfFilter, err error) {
	all, err := allFilters(index, at)
	for _, f := range all {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == filterName {
			ours = append(ours, bpf)
		}
	}
	return ours, err
}

func allFilters(index int, at direction) ([]netlink.Filter, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, err
	}
	all, err := netlink.FilterList(l, at.parent)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil // there is no clsact qdisc
	}
	return all, err
}

// attachedAt returns how the program of a device is attached to one of its hooks;
// empty if it is not attached.
func (h *Host) attachedAt(a attachment, at direction) (hook string, err error) {
	l, err := link.LoadPinnedLink(h.pins().Path(a.dir, at.name), nil)
	if err == nil {
		index, err := linkDevice(l)
		l.Close()
		if err != nil || index == a.index {
			return hookTCX, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if !a.here {
		return "", nil
	}
	if ours, err := filters(a.index, at); err != nil || len(ours) == 0 {
		return "", err
	}
	return hookClsact, nil
}

// hook returns how the program of a device is attached, and any problem with that.
func (h *Host) hook(a attachment) (hook, problem string) {
	attached := 0
	for _, at := range directions {
		if used, err := h.attachedAt(a, at); err == nil && used != "" {
			attached++
			hook = used
		}
	}
	switch {
	case attached == len(directions):
		return hook, ""
	case a.here && a.deviceName() == "":
		return "", "not in force: the device is deleted; clear the rule"
	case attached == 0:
		return "",
			"not in force: no program is attached, perhaps because the device was recreated; set or clear the rule again"
	}
	return "", "not in force: the program is attached to one hook only; set or clear the rule again"
}

// dropDead removes the pins of a device without an attached program, and returns their
// rules. A new device can get the index of a deleted one. Links and filters end with
// their device, pinned maps do not. dropDead changes nothing else: a qdisc of the new
// device is not ours.
func (h *Host) dropDead(a attachment) (dropped []Rule, dead bool, err error) {
	for _, at := range directions {
		hook, err := h.attachedAt(a, at)
		if err != nil {
			return nil, false, fmt.Errorf("read the attachments of device %d: %w", a.index, err)
		}
		if hook != "" {
			return nil, false, nil
		}
	}
	if p, err := openMaps(h.pins().Path(a.dir)); err == nil {
		// Unreadable rules are not listed.
		rules, _ := p.rules(a.deviceName())
		p.Close()
		for _, n := range rules {
			dropped = append(dropped, n.rule)
		}
	}
	if err := os.RemoveAll(h.pins().Path(a.dir)); err != nil {
		return nil, false, fmt.Errorf("remove the pins of device %d: %w", a.index, err)
	}
	return dropped, true, nil
}

// deviceName returns the name of the device; empty if it is deleted, or in another
// network namespace.
func (a attachment) deviceName() string {
	if !a.here {
		return ""
	}
	l, err := netlink.LinkByIndex(a.index)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// remove detaches all programs of a device and removes its pins. The pins that record
// the attachments come last.
func (h *Host) remove(a attachment) error {
	for _, at := range directions {
		if err := detachLink(h.pins().Path(a.dir, at.name)); err != nil {
			return fmt.Errorf("detach from device %d: %w", a.index, err)
		}
	}
	if err := h.removeFilters(a); err != nil {
		return fmt.Errorf("detach from device %d: %w", a.index, err)
	}
	if err := os.RemoveAll(h.pins().Path(a.dir)); err != nil {
		return fmt.Errorf("remove the pins of device %d: %w", a.index, err)
	}
	return nil
}

// detachLink ends a pinned link, if there is one. It detaches the link first: after
// the removal of the pin alone the kernel would detach it some time later.
func detachLink(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer l.Close()
		err = l.Detach()
		if errors.Is(err, unix.ENOLINK) { // the device is gone
			err = nil
		}
	}
	return errors.Join(err, os.Remove(pin))
}
