//go:build !linux

package main

import "github.com/spf13/cobra"

func prepare() {}

const rootExample = `  longhaul measure far.example.net
  longhaul measure --serve`

// commands are those that every Unix has: a host that cannot be changed can
// still be measured from.
func commands(env *env) []*cobra.Command {
	return []*cobra.Command{newMeasure(env), newCompletion(env), newVersion(env)}
}

// isAvailable leaves the answer to the socket.
func isAvailable(string) bool { return true }

// completeValues has nothing to add to names of commands and flags.
func completeValues(*cobra.Command) {}
