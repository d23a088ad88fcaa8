//go:build linux

package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netns"

	"longhaul/internal/remedy"
)

func namespaceFlag(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "netns", "", "network namespace: a `NAME` of ip netns, or a path")
}

// enterNamespace has the rest of the command, which must stay on this
// goroutine, run in a network namespace. It stays in the mount namespace, so
// that what is pinned outlives the command, as it would not under "ip netns
// exec".
func enterNamespace(name string) error {
	if name == "" {
		return nil
	}
	get := netns.GetFromName
	if strings.Contains(name, "/") {
		get = netns.GetFromPath
	}
	ns, err := get(name)
	if err != nil {
		return remedy.New(fmt.Errorf("cannot open the network namespace %s: %w", name, err), "see ip netns")
	}
	defer ns.Close()
	runtime.LockOSThread() // for good: the thread ends with the command
	if err := netns.Set(ns); err != nil {
		return remedy.New(fmt.Errorf("cannot enter the network namespace %s: %w", name, err), "run it as root")
	}
	return nil
}
