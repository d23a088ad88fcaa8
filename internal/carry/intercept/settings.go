package intercept

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/remedy"
)

// bridges finds bridges whose packets pass nftables' chains for routed packets before the
// bridge hands them up. The kernel then forgets the socket that tproxy has chosen, and
// nobody gets the packet. Kernels with Docker often have this setting.
func (c checking) bridges() error {
	type place struct {
		device string
		family int
	}
	settings, known := map[string]map[uint16]bool{}, map[place]bool{} // many tunnels may have one bridge
	for _, t := range c.Tunnels {
		device, err := c.device(t)
		if errors.Is(err, ErrNoInterface) {
			continue // what is gone has no settings
		}
		if err != nil {
			return err
		}
		if device.Type() != "bridge" {
			continue
		}
		own := settings[t.Interface]
		if own == nil {
			if own, err = bridgeSettings(device); err != nil {
				return fmt.Errorf("read the settings of the bridge %s: %w", t.Interface, err)
			}
			settings[t.Interface] = own
		}
		for i, by := range []struct {
			program string
			setting uint16
		}{{"iptables", brNfCallIptables}, {"ip6tables", brNfCallIP6tables}} {
			all, name := "net.bridge.bridge-nf-call-"+by.program, "nf_call_"+by.program
			var set, fix string
			if !families[i].in(t.To) || known[place{t.Interface, i}] {
				continue
			}
			known[place{t.Interface, i}] = true
			switch {
			case sysctl(strings.ReplaceAll(all, ".", "/")) == "1":
				set, fix = all, fmt.Sprintf("sysctl -w %s=0, and for bridges that need it, as Docker's may, ip link set BRIDGE type bridge %s 1", all, name)
			case own[by.setting]:
				set, fix = name+" of "+t.Interface, fmt.Sprintf("ip link set %s type bridge %s 0", t.Interface, name)
			default:
				continue
			}
			return remedy.New(fmt.Errorf("%s is 1, and tunnel %s intercepts at the bridge %s: nobody would get its connections", set, t.Name, t.Interface), fix)
		}
	}
	return nil
}

// Attributes of a bridge in linux/if_link.h.
const (
	brNfCallIptables  = 36
	brNfCallIP6tables = 37
)

// bridgeSettings are the attributes of a bridge that are on.
func bridgeSettings(device netlink.Link) (on map[uint16]bool, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	about := nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = int32(device.Attrs().Index)
	request.AddData(about)
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	on = map[uint16]bool{}
	for _, answer := range answers {
		if len(answer) < unix.SizeofIfInfomsg {
			continue
		}
		within := answer[unix.SizeofIfInfomsg:]
		for _, kind := range []uint16{unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA} {
			all, err := nl.ParseRouteAttrAsMap(within)
			if err != nil {
				return nil, err
			}
			within = all[kind].Value
		}
		all, err := nl.ParseRouteAttrAsMap(within)
		if err != nil {
			return nil, err
		}
		for kind, a := range all {
			on[kind] = len(a.Value) == 1 && a.Value[0] == 1
		}
	}
	return on, nil
}

// Notes returns what an operator should know of the host's settings, each with its remedy.
// Interception works with them.
func (h *Host) Notes(o Options) (all []error) {
	if len(o.Tunnels) == 0 {
		return nil
	}
	if sysctl("net/ipv4/tcp_syncookies") == "2" {
		all = append(all, remedy.New(errors.New("net.ipv4.tcp_syncookies is 2: every intercepted connection begins with a cookie, and of clients without time stamps it has no window scaling"),
			"sysctl -w net.ipv4.tcp_syncookies=1"))
	}
	return all
}

// Settings returns the settings of this host with which interception does not work, each with
// its remedy: one of a kind. An administrator has set them, so nobody sets them back. After an
// error they are not known.
func (h *Host) Settings(o Options) (all []error, err error) {
	c, err := newChecking(o)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for _, step := range []func() error{c.forwarding, c.reversePath, c.bridges} {
		switch err := step(); {
		case err == nil:
		case remedy.Of(err) == "":
			return nil, err
		default:
			all = append(all, err)
		}
	}
	return all, nil
}
