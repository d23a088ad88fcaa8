package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// placement says on which CPUs a measurement runs. With one flow nothing is
// busy, and a round trip takes 15 µs or 90 µs by whether the scheduler happens
// to wake all three processes on one CPU or on two; so it is told.
type placement int

const (
	anywhere placement = iota
	together           // everything on one CPU
	apart              // the relay on a second one
)

// cpus are those on which this process could run when it was first asked.
var cpus = sync.OnceValue(func() (all unix.CPUSet) {
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() == 0 {
		all.Set(0)
	}
	return all
})

// pinLoad puts the calling thread, and processes that it starts from now on,
// where the load belongs. The function it returns undoes that.
func (p placement) pinLoad() (undo func(), err error) {
	if p == anywhere {
		return func() {}, nil
	}
	return pin(0)
}

// pinRelay does the same for a relay that is about to be started.
func (p placement) pinRelay() error {
	if p != apart {
		return nil
	}
	_, err := pin(1)
	return err
}

// pin puts the calling thread on the n-th of the CPUs that this process had at
// its start.
func pin(n int) (undo func(), err error) {
	all := cpus()
	n %= all.Count()
	for cpu := 0; ; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if n == 0 {
			var one unix.CPUSet
			one.Set(cpu)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				return nil, fmt.Errorf("run on CPU %d: %w", cpu, err)
			}
			return func() { _ = unix.SchedSetaffinity(0, &all) }, nil
		}
		n--
	}
}
