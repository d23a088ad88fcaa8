//go:build linux && !nomonitor

package daemon

// monitoring is whether flows are looked at while they last and recorded when
// they have ended. The tag is for bench/cost, which measures what that costs.
const monitoring = true
