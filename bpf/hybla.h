// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// TCP Hybla's arithmetic. Source, notation and departures: hybla.bpf.c.
#pragma once

#include "window.h"

#define HYBLA_RTT0_US 25000u

// Growth does not exceed the one of this ratio: in slow start it is 2^16 - 1
// segments for each one acknowledged.
#define HYBLA_RHO_MAX_SLOW_START 16u

// In slow start the window grows to at most this multiple of the segments that the
// last round trip delivered.
#define HYBLA_LEAD 4u

// rho, the path's round trip in units of the reference's, at least 1.
static inline u64 hybla_rho_q16(u32 rtt_us)
{
	u64 rho = ((u64)rtt_us << 16) / HYBLA_RTT0_US;
	return rho < 1 << 16 ? 1 << 16 : rho;
}

// 2^f - 1 for f in [0, 1): a polynomial of third degree that is exact at both
// ends and within 2e-4 between.
static inline u64 hybla_exp2m1_q16(u64 f_q16)
{
	u64 f2 = f_q16 * f_q16 >> 16;
	u64 f3 = f2 * f_q16 >> 16;
	return (f_q16 * 45606 + f2 * 14737 + f3 * 5193) >> 16;
}

// Segments that slow start adds for each one acknowledged: 2^rho - 1.
static inline u64 hybla_slow_start_gain_q16(u64 rho_q16)
{
	if (rho_q16 >= HYBLA_RHO_MAX_SLOW_START << 16)
		return ((1ull << HYBLA_RHO_MAX_SLOW_START) - 1) << 16;
	u64 whole = 1ull << (rho_q16 >> 16);
	u64 part_q16 = hybla_exp2m1_q16(rho_q16 & 0xffff);
	return ((whole - 1) << 16) + whole * part_q16;
}

// The growth of congestion avoidance over a window: rho^2 segments.
static inline u64 hybla_avoidance_gain_q16(u64 rho_q16)
{
	if (rho_q16 >= 1ull << 28) // the square would be beyond any use
		return GAIN_MAX_Q16;
	return rho_q16 * rho_q16 >> 16;
}

// The first window of a connection, rho times the usual one.
static inline u32 hybla_initial_window(u32 usual, u64 rho_q16, u32 clamp)
{
	u64 most = (u64)HYBLA_RHO_MAX_SLOW_START << 16;
	return window_bound(usual * (rho_q16 < most ? rho_q16 : most) >> 16, clamp);
}

// The window after acked segments were acknowledged in slow start. The caller
// ensures that cwnd < ssthresh.
static inline u32 hybla_slow_start(u32 cwnd, u32 ssthresh, u32 ceiling, u64 rho_q16, u32 acked, u32 clamp)
{
	if (acked > 1u << 20)
		acked = 1u << 20;
	u64 wanted = cwnd + (hybla_slow_start_gain_q16(rho_q16) * acked >> 16);
	if (wanted > ceiling)
		wanted = ceiling > cwnd ? ceiling : cwnd;
	if (wanted > ssthresh)
		wanted = ssthresh;
	return window_bound(wanted, clamp);
}

// The ceiling of slow start for a round trip after one that delivered so many.
static inline u32 hybla_ceiling(u32 delivered)
{
	u64 ceiling = (u64)HYBLA_LEAD * delivered;
	return ceiling < WINDOW_MAX ? ceiling : WINDOW_MAX;
}

// The window after a loss.
static inline u32 hybla_ssthresh_of(u32 cwnd)
{
	return cwnd / 2 > 2 ? cwnd / 2 : 2;
}
