//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netns"

	"longhaul/internal/words/remedy"
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
	ns, err := openNamespace(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	return setNamespace(name, ns)
}

func openNamespace(name string) (netns.NsHandle, error) {
	get := netns.GetFromName
	if strings.Contains(name, "/") {
		get = netns.GetFromPath
	}
	ns, err := get(name)
	if err != nil {
		return ns, remedy.New(fmt.Errorf("open network namespace %s: %w", name, err), "see ip netns")
	}
	return ns, nil
}

// setNamespace moves this goroutine's thread, and ties the two together.
func setNamespace(name string, ns netns.NsHandle) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the command
	if err := netns.Set(ns); err != nil {
		fix := "run it as root"
		if errors.Is(err, syscall.EINVAL) {
			fix = "give the name or the path of a network namespace"
		}
		return remedy.New(fmt.Errorf("enter network namespace %s: %w", name, err), fix)
	}
	return nil
}

// restartInNamespace runs the program again in a network namespace, unless it is there
// already. It is for commands that open sockets on several threads: a program keeps the
// namespace of the thread that executes it. Like [enterNamespace] it keeps the mount
// namespace.
func restartInNamespace(name string) error {
	if name == "" {
		return nil
	}
	ns, err := openNamespace(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	own, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open this program's network namespace: %w", err)
	}
	defer own.Close()
	if own.Equal(ns) {
		return nil
	}
	if err := setNamespace(name, ns); err != nil {
		return err
	}
	if err := syscall.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("run longhaul again in network namespace %s: %w", name, err)
	}
	return nil
}
