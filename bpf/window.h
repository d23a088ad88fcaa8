// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Arithmetic on congestion windows, shared by the window-based algorithms.
// Plain C: it also compiles on the host, for the tests.
//
// Windows are in segments. A suffix _qN marks a fixed-point number with N
// fractional bits.
#pragma once

// The largest window that an algorithm sets. The kernel's counters have 32 bits,
// and 100 Gb/s over 2 s with segments of 536 bytes is 4.7e7 segments.
#define WINDOW_MAX (1u << 28)

// The largest growth for one acknowledged segment: 2^24 segments.
#define GAIN_MAX_Q16 (1ull << 40)

static inline u32 window_bound(u64 cwnd, u32 clamp)
{
	u32 most = clamp < WINDOW_MAX ? clamp : WINDOW_MAX;
	if (cwnd > most)
		return most;
	return cwnd < 1 ? 1 : cwnd;
}

// Whether the window limits the sender, RFC 7661's condition for its growth. In
// slow start half the window in flight is enough, since the flight lags behind a
// window that doubles.
static inline bool window_used(bool slow_start, u32 cwnd, u32 max_packets_out, bool cwnd_limited)
{
	return cwnd_limited || (slow_start && cwnd < 2 * (u64)max_packets_out);
}

// Standard slow start: one segment for each acknowledged, up to ssthresh.
static inline u32 window_slow_start(u32 cwnd, u32 ssthresh, u32 acked, u32 clamp)
{
	u64 wanted = (u64)cwnd + acked;
	return window_bound(wanted < ssthresh ? wanted : ssthresh, clamp);
}

// Additive increase: gain_q16 / cwnd segments for each segment acknowledged.
// credit_q16 keeps the fraction of a segment. Returns the new window.
static inline u32 window_increase(u32 cwnd, u64 *credit_q16, u64 gain_q16, u32 acked, u32 clamp)
{
	if (gain_q16 > GAIN_MAX_Q16)
		gain_q16 = GAIN_MAX_Q16;
	if (acked > 1u << 20)
		acked = 1u << 20;
	if (cwnd < 1)
		cwnd = 1;
	u64 price_q16 = (u64)cwnd << 16; // of one more segment
	u64 credit = *credit_q16 + gain_q16 * acked;
	u64 more = credit / price_q16;
	*credit_q16 = credit - more * price_q16;
	return window_bound(cwnd + more, clamp);
}

// The window to return to after a wrong reduction.
static inline u32 window_undo(u32 cwnd, u32 prior_cwnd)
{
	return cwnd > prior_cwnd ? cwnd : prior_cwnd;
}
