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

// enterNamespace moves the rest of the command, which must stay on this goroutine,
// into a network namespace. It keeps the mount namespace, so that BPF pins outlive
// the command. Under "ip netns exec" they would not.
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
		return remedy.New(fmt.Errorf("open network namespace %s: %w", name, err), "see ip netns")
	}
	defer ns.Close()
	runtime.LockOSThread() // never unlocked: the thread ends with the command
	if err := netns.Set(ns); err != nil {
		return remedy.New(fmt.Errorf("enter network namespace %s: %w", name, err), "run it as root")
	}
	return nil
}
