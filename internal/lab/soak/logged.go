package soak

import (
	"net/netip"
	"strings"
)

// nearSays notes the lines of relay-a's log about flows that did not end as
// both peers wanted.
func (w *world) nearSays(line string) {
	if !strings.Contains(line, "msg=flow ") {
		return
	}
	client, end := field(line, "client"), field(line, "end")
	from, err := netip.ParseAddrPort(client)
	if err != nil || end == "" || end == "end" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reasons[from]++
}

// logged takes one line about a client's flow, if there is one left: a client's
// port is used again by later flows.
func (w *world) logged(client netip.AddrPort) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reasons[client] == 0 {
		return false
	}
	w.reasons[client]--
	return true
}

// field is the value of a key in a line of logfmt, as far as it needs no quotes.
func field(line, key string) string {
	_, rest, found := strings.Cut(line, " "+key+"=")
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(rest, " ")
	return value
}
