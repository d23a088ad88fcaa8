//go:build linux

package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// processFact is what the relay's process itself uses, this moment's answer
// to a status request included.
type processFact struct {
	Goroutines    int   `json:"goroutines"`
	Threads       int   `json:"threads,omitempty"`
	Descriptors   int   `json:"descriptors,omitempty"`
	ResidentBytes int64 `json:"resident_bytes,omitempty"` // sockets' queues are the kernel's and not in it
}

// ownProcess asks the runtime and /proc. What cannot be read is left out.
func ownProcess() processFact {
	f := processFact{Goroutines: runtime.NumGoroutine()}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.Descriptors = len(open) - 1 // one is that of this very listing
	}
	if tasks, err := os.ReadDir("/proc/self/task"); err == nil {
		f.Threads = len(tasks)
	}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := bytes.Fields(statm); len(fields) > 1 {
			pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			f.ResidentBytes = pages * int64(os.Getpagesize())
		}
	}
	return f
}
