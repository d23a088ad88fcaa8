//go:build linux && nomonitor

package main

const monitoring = false
