//go:build linux && nomonitor

package daemon

const monitoring = false
