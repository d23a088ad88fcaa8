//go:build linux && !nomonitor

package daemon

// monitoring enables the sampling of running flows and the records of ended ones. The
// tag is for bench/cost, which measures their cost.
const monitoring = true
