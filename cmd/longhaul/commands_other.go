//go:build !linux

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func prepare() {}

const rootExample = `  longhaul measure far.example.net
  longhaul measure --serve`

// commands returns the commands that every Unix has: those that measure and change
// nothing.
func commands(env *env) []*cobra.Command {
	return []*cobra.Command{newMeasure(env), newCompletion(env), newVersion(env)}
}

// isAvailable leaves the check to the socket.
func isAvailable(string) bool { return true }

// completeValues adds nothing to the names of commands and flags.
func completeValues(*cobra.Command) {}

// namespaceFlag adds nothing: only Linux has network namespaces.
func namespaceFlag(*pflag.FlagSet, *string) {}

func restartInNamespace(string) error { return nil }
