// Package hostevents says that the network configuration of this host has changed: links,
// addresses, routing rules, local routes, and tables of nftables. It says what kind of thing
// changed and who did it, never how it stands now: the listener reads that itself.
//
// The kernel sends a message for every change of any program. What cannot matter is thrown
// away as early as possible: routes that are no local ones by a filter in the kernel, tables
// of others by their name. A reader that is too slow loses messages, and gets [Seen.Lost].
package hostevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what to watch.
type Options struct {
	// Table is the name of the table of nftables to watch; empty: none is watched. It takes
	// CAP_NET_ADMIN.
	Table string
	// Own is the netlink port of changes of nftables that are not to be seen, since the listener
	// makes them itself; 0: all are seen.
	Own uint32
}

// Seen is what has changed since it was taken last.
type Seen struct {
	Links     bool // of any interface: made, deleted, up, down
	Addresses bool
	Routing   bool // rules, or routes that deliver to this host
	Table     bool // the watched table
	Lost      bool // messages were lost: anything may have changed
	// By names the programs that did it, as far as the kernel or /proc says.
	RoutingBy, TableBy string
}

// Any reports whether anything has changed.
func (s Seen) Any() bool { return s.Links || s.Addresses || s.Routing || s.Table || s.Lost }

// Watch gathers the changes.
type Watch struct {
	// C gets a value when there is something to take. It has room for one.
	C chan struct{}

	table string
	files []*os.File
	end   chan struct{}
	ended sync.WaitGroup

	mu   sync.Mutex
	seen Seen
}

const (
	// pause is between two readings of the kernel's messages, so that many changes cost
	// as few wakeups as one.
	pause = 100 * time.Millisecond
	// settle is left to a command for the rest of its changes: ip route flush deletes until it
	// finds nothing, also what was set again meanwhile.
	settle = 50 * time.Millisecond
	// room is for the messages of a pause.
	room = 4 << 20
	// messageBytes is room for what the kernel sends at once.
	messageBytes = 1 << 16
)

// Open begins to watch the network namespace of the process.
func Open(o Options) (*Watch, error) {
	w := &Watch{C: make(chan struct{}, 1), table: o.Table, end: make(chan struct{})}
	routing, err := subscribe(unix.NETLINK_ROUTE, localRoutes, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("watch links, addresses and routes: %w", err)
	}
	w.follow(routing, w.routing)
	if o.Table == "" {
		return w, nil
	}
	tables, err := subscribe(unix.NETLINK_NETFILTER, notFrom(o.Own), unix.NFNLGRP_NFTABLES)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	w.follow(tables, w.tables)
	return w, nil
}

// subscribe opens a socket that gets the messages of the groups which pass the filter. Without the
// filter more comes, which is looked at for nothing.
func subscribe(protocol int, filter []unix.SockFilter, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil { // without privilege
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, g := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Offsets into a message of the kernel.
const (
	typeAt     = 4
	portAt     = 12
	rtTableAt  = unix.NLMSG_HDRLEN + 4 // struct rtmsg
	rtTypeAt   = unix.NLMSG_HDRLEN + 7
	genBytes   = 4 // struct nfgenmsg
	tableNameA = 1 // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE and so on
	genProcess = 3 // NFTA_GEN_PROC_NAME
)

// localRoutes is a classic BPF filter: of routes only those that deliver to this host, in
// another table than that of the host's addresses.
var localRoutes = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: typeAt},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: asLoaded(unix.RTM_NEWROUTE)},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: asLoaded(unix.RTM_DELROUTE)},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: rtTypeAt},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.RTN_LOCAL},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: rtTableAt},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.RT_TABLE_LOCAL},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// notFrom is a filter of what was not changed by way of a socket of that port: the rules of many
// tunnels are more messages than the listener has room for. What the kernel sends at once is of one
// change.
func notFrom(port uint32) []unix.SockFilter {
	if port == 0 { // the kernel's own
		return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}}
	}
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// asLoaded is a number of this machine's byte order as a filter loads it.
func asLoaded(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}

// follow reads a socket until the watch is closed.
func (w *Watch) follow(f *os.File, each func(kind uint16, port uint32, body []byte)) {
	w.files = append(w.files, f)
	w.ended.Go(func() {
		conn, err := f.SyscallConn()
		if err != nil {
			return
		}
		buffer := make([]byte, messageBytes)
		for {
			var got int
			var failed error
			err := conn.Read(func(fd uintptr) bool {
				got, _, failed = unix.Recvfrom(int(fd), buffer, 0)
				return !errors.Is(failed, unix.EAGAIN)
			})
			if err != nil { // closed
				return
			}
			w.take(buffer[:max(0, got)], failed, each)
			select {
			case <-w.end:
				return
			case <-time.After(settle):
			}
			for failed == nil { // what has come meanwhile
				if err := conn.Control(func(fd uintptr) { got, _, failed = unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT) }); err != nil {
					return
				}
				if !errors.Is(failed, unix.EAGAIN) {
					w.take(buffer[:max(0, got)], failed, each)
				}
			}
			w.announce()
			select {
			case <-w.end:
				return
			case <-time.After(pause):
			}
		}
	})
}

// take looks at the messages of one reading.
func (w *Watch) take(b []byte, failed error, each func(kind uint16, port uint32, body []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if failed != nil {
		w.seen.Lost = w.seen.Lost || !errors.Is(failed, unix.EINTR)
		return
	}
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			w.seen.Lost = true // cut short
			return
		}
		each(binary.NativeEndian.Uint16(b[typeAt:]), binary.NativeEndian.Uint32(b[portAt:]), b[unix.NLMSG_HDRLEN:length])
		b = b[min((length+3)&^3, len(b)):]
	}
}

// announce wakes the listener if there is something to take.
func (w *Watch) announce() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen.Any() {
		return
	}
	select {
	case w.C <- struct{}{}:
	default:
	}
}

func (w *Watch) routing(kind uint16, port uint32, _ []byte) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		w.seen.Links = true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.seen.Addresses = true
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		w.seen.Routing = true
		if w.seen.RoutingBy == "" {
			w.seen.RoutingBy = programOf(port)
		}
	}
}

func (w *Watch) tables(kind uint16, _ uint32, body []byte) {
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < genBytes {
		return
	}
	switch name := body[genBytes:]; {
	case kind&0xff == unix.NFT_MSG_NEWGEN: // the end of a transaction
		if w.seen.Table && w.seen.TableBy == "" {
			w.seen.TableBy = text(name, genProcess)
		}
	case text(name, tableNameA) == w.table:
		w.seen.Table = true
	}
}

// text is the attribute of that kind, as a string without its end.
func text(b []byte, kind uint16) string {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return ""
		}
		if binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return unix.ByteSliceToString(b[unix.SizeofNlAttr:length])
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return ""
}

// programOf names the process with a netlink socket of that port, if it still runs: the
// kernel gives the first socket of a process its number as the port.
func programOf(port uint32) string {
	if port == 0 || int(port) == os.Getpid() {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", port))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// Take returns what has changed, and forgets it.
func (w *Watch) Take() Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = Seen{}
	return seen
}

// Close ends the watch.
func (w *Watch) Close() {
	close(w.end)
	for _, f := range w.files {
		f.Close()
	}
	w.ended.Wait()
}
