package transport

import (
	"time"
)

// Support is what this kernel and the privilege of this process offer to legs, in the
// calling thread's network namespace.
type Support struct {
	// BeyondSysctls: buffers may exceed the sysctls (CAP_NET_ADMIN in the initial user
	// namespace).
	BeyondSysctls bool
	// Unlocks: an enlarged receive buffer returns to autotuning (SO_BUF_LOCK).
	Unlocks bool
	// SparesReaders: a user timeout spares a peer that lives but does not read
	// (TCP_RTO_MAX_MS).
	SparesReaders bool

	host host
}

// Probe probes the calling thread's network namespace.
func Probe() (Support, error) {
	h, err := probeHost()
	return Support{BeyondSysctls: h.canForce, Unlocks: h.canUnlock, SparesReaders: h.canCapRTO, host: h}, err
}

// Buffer is the largest size that a WAN leg's buffer gets for a path, in bytes of
// payload.
type Buffer struct {
	Name   string // "send buffer"
	Bytes  int
	Wanted int
	Short  bool   // too small even for a path without loss
	Remedy string // if it is short
}

// Buffers returns the sizes of both buffers for a path, of a process with so many bytes
// of memory. forced says whether they may exceed the sysctls.
func (s Support) Buffers(pathRateBps int64, rtt time.Duration, cc string, forced bool, memory int64) [2]Buffer {
	one := func(d direction, w want, now [3]int, plainCap int) Buffer {
		w = w.within(mostBuffer(memory))
		size := chooseSizing(w, now[2], plainCap, forced)
		return Buffer{d.name, size.size, w.size, size.short, d.sysctlRemedy(w.size, now)}
	}
	return [2]Buffer{
		one(sending, sendWant(pathRateBps, rtt), s.host.tcpWmem, s.host.wmemMax),
		one(receiving, receiveWant(pathRateBps, rtt, cc), s.host.tcpRmem, s.host.rmemMax),
	}
}
