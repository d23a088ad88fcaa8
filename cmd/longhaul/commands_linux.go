package main

import (
	"github.com/spf13/cobra"

	"longhaul/internal/tune/cc"
	"longhaul/lab/sandbox"
)

// prepare runs first in the program. It does not return in a process that a
// sandbox started.
func prepare() { sandbox.Init() }

const rootExample = `  longhaul demo
  longhaul relay --listen 10.10.10.20:6000 --forward rhel-vm-2:6000
  longhaul status`

func commands(env *env) []*cobra.Command {
	return []*cobra.Command{
		newDemo(env),
		newLab(env),
		newRelay(env),
		newCC(env),
		newMSS(env),
		newRoute(env),
		newIntercept(env),
		newHost(env),
		newMeasure(env),
		newDoctor(env),
		newTop(env),
		newStatus(env),
		newFleet(env),
		newTrace(env),
		newEvents(env),
		newHistory(env),
		newCheck(env),
		newReady(env),
		newDrain(env),
		newResume(env),
		newReload(env),
		newUpgrade(env),
		newStop(env),
		newPair(env),
		newConfig(env),
		newService(env),
		newCompletion(env),
		newGenDocs(env),
		newVersion(env),
	}
}

func isAvailable(name string) bool { return cc.IsAvailable(name) }
