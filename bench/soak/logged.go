package main

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
	_, why, _ := strings.Cut(line, " end=")
	w.reasons[from] = append(w.reasons[from], why)
}

// hasLogged says whether there are as many lines of each client.
func (w *world) hasLogged(lines map[netip.AddrPort]int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for client, n := range lines {
		if len(w.reasons[client]) < n {
			return false
		}
	}
	return true
}

// logged takes what one line says of the end of a client's flow, if there is one
// left: a client's port is used again by later flows.
func (w *world) logged(client netip.AddrPort) (why string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.reasons[client]
	if len(all) == 0 {
		return "", false
	}
	w.reasons[client] = all[1:]
	return all[0], true
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
