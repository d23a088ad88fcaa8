//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/carry/pair/identity"
	"longhaul/test/nettest"
)

// TestMeshOfKeys makes a mesh of 50 sites, some with two hosts, of one file: each host applies it,
// the second time changes nothing, and hosts know each other by TLS.
func TestMeshOfKeys(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "peers.yaml")
	var hosts []string
	for i := range 50 {
		if site := fmt.Sprintf("site-%d", i); i%10 == 0 {
			hosts = append(hosts, site+"/one", site+"/two")
		} else {
			hosts = append(hosts, site)
		}
	}
	keys := func(host string) string { return filepath.Join(dir, strings.ReplaceAll(host, "/", "-")) }
	var list strings.Builder
	for _, host := range hosts {
		code, out, errs := grammarRun("pair", "key", "--as", host, "--dir", keys(host))
		if code != exitOK {
			t.Fatalf("the key of %s: %s", host, errs)
		}
		list.WriteString(out)
	}
	nettest.Must(t, os.WriteFile(file, []byte(list.String()), 0o644))
	for _, run := range []struct{ args, want string }{
		{"", fmt.Sprintf("%d changes made, 0 peers as before; this host is ", len(hosts)-1)},
		{"", fmt.Sprintf("no change, %d peers as before; this host is ", len(hosts)-1)},
		{"--check", fmt.Sprintf("no change, %d peers as before; this host is ", len(hosts)-1)},
	} {
		for _, host := range hosts {
			args := append([]string{"pair", "apply", file, "--dir", keys(host)}, strings.Fields(run.args)...)
			code, out, errs := grammarRun(args...)
			if last := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]; code != exitOK || last != run.want+host+"\n" {
				t.Fatalf("%v ends with %d: %s %s, want %s", args, code, last, errs, run.want+host)
			}
		}
	}
	for i, host := range hosts {
		for _, step := range []int{1, 7, 23} {
			other := hosts[(i+step)%len(hosts)]
			shakeHands(t, host, other, keys(host), keys(other))
		}
	}
}

// shakeHands has one host connect to another, by the name of its site.
func shakeHands(t *testing.T, host, other, hostKeys, otherKeys string) {
	t.Helper()
	site, _, _ := strings.Cut(other, "/")
	client, err := identity.New(hostKeys).ClientTLS(site)
	nettest.Must(t, err)
	far := identity.New(otherKeys)
	near, accepted := net.Pipe()
	defer near.Close()
	defer accepted.Close()
	server := tls.Server(accepted, far.ServerTLS(nil))
	done := make(chan error, 1)
	go func() { done <- server.HandshakeContext(context.Background()) }()
	conn := tls.Client(near, client)
	if err := conn.HandshakeContext(t.Context()); err != nil {
		near.Close()
		t.Fatalf("%s does not know %s: %v, %v", host, other, err, <-done)
	}
	if err := <-done; err != nil {
		t.Fatalf("%s does not know %s: %v", other, host, err)
	}
}
