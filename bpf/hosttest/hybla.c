//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "check.h"

#include "../hybla.h"

static double rho_of(u32 rtt_us)
{
	return rtt_us < HYBLA_RTT0_US ? 1 : (double)rtt_us / HYBLA_RTT0_US;
}

int main(void)
{
	// 2^f - 1 is exact at both ends, rises, and is within the stated error.
	CHECK(hybla_exp2m1_q16(0) == 0, "at 0");
	for (u64 f = 0, before = 0; f < 65536; f++) {
		u64 got = hybla_exp2m1_q16(f);
		CHECK(near(got, (exp2(f / 65536.0) - 1) * 65536, 0, 65536 * 2e-4), "2^%f - 1: %f", f / 65536.0, got / 65536.0);
		CHECK(got >= before && got < 65536, "not rising at %llu", f);
		before = got;
	}
	for (u32 rtt_us = 0; rtt_us <= 3 * LONG_RTT_US; rtt_us += 111) {
		double rho = rho_of(rtt_us);
		u64 rho_q16 = hybla_rho_q16(rtt_us);
		CHECK(near(rho_q16 / 65536.0, rho, 0, 1.0 / 65536), "rho of %u us: %f", rtt_us, rho_q16 / 65536.0);

		double slow = exp2(rho) - 1, most = 65535;
		CHECK(near(hybla_slow_start_gain_q16(rho_q16) / 65536.0, slow < most ? slow : most, 1e-3, 0),
		      "slow start at %u us: %f, want %f", rtt_us, hybla_slow_start_gain_q16(rho_q16) / 65536.0, slow);
		CHECK(near(hybla_avoidance_gain_q16(rho_q16) / 65536.0, rho * rho, 1e-4, 0),
		      "avoidance at %u us: %f, want %f", rtt_us, hybla_avoidance_gain_q16(rho_q16) / 65536.0, rho * rho);
	}
	// Reno where the path is short: 1 segment for each, 1 per window.
	CHECK(hybla_slow_start_gain_q16(hybla_rho_q16(1)) == 65536, "slow start at rho 1");
	CHECK(hybla_avoidance_gain_q16(hybla_rho_q16(1)) == 65536, "avoidance at rho 1");

	// With any input the window stays within its bounds and never falls.
	for (int i = 0; i < 200000; i++) {
		u64 rho_q16 = hybla_rho_q16(any_up_to(~0u));
		u32 cwnd = any_up_to(WINDOW_MAX - 1) + 1, ssthresh = any_up_to(~0u), ceiling = hybla_ceiling(any_up_to(~0u));
		u32 acked = any_up_to(~0u), clamp = ~0u;
		if (ssthresh <= cwnd)
			continue;
		u32 got = hybla_slow_start(cwnd, ssthresh, ceiling, rho_q16, acked, clamp);
		CHECK(got >= cwnd && got <= ssthresh && got <= WINDOW_MAX && (got <= ceiling || got == cwnd),
		      "slow start from %u: %u, ssthresh %u, ceiling %u", cwnd, got, ssthresh, ceiling);
		u64 credit = 0;
		u32 avoided = window_increase(cwnd, &credit, hybla_avoidance_gain_q16(rho_q16), acked, clamp);
		CHECK(avoided >= cwnd && avoided <= WINDOW_MAX, "avoidance from %u: %u", cwnd, avoided);
		u32 initial = hybla_initial_window(any_up_to(1000), rho_q16, clamp);
		CHECK(initial >= 1 && initial <= 16000, "initial window %u", initial);
	}
	// At 300 ms: a first window of 120 segments, at most four times what a
	// round delivered, and at 100 Gb/s over 2 s no overflow.
	u64 rho = hybla_rho_q16(300000);
	CHECK(hybla_initial_window(10, rho, ~0u) == 120, "first window %u", hybla_initial_window(10, rho, ~0u));
	CHECK(hybla_slow_start(120, ~0u, hybla_ceiling(120), rho, 1, ~0u) == 480, "the ceiling");
	CHECK(hybla_slow_start(120, 300, hybla_ceiling(120), rho, 1, ~0u) == 300, "ssthresh");
	CHECK(hybla_ceiling(FAST_WINDOW) == 4ull * FAST_WINDOW, "the ceiling of a fast path");
	CHECK(hybla_ssthresh_of(100) == 50 && hybla_ssthresh_of(1) == 2, "halving");

	// Throughput in avoidance does not depend on the round trip: over one
	// second the window in units of rho grows by the same rate, W/rtt.
	double reference = 0;
	for (u32 rtt_us = 25000; rtt_us <= 600000; rtt_us *= 2) {
		u64 gain = hybla_avoidance_gain_q16(hybla_rho_q16(rtt_us)), credit = 0;
		u32 cwnd = 1000 * rho_of(rtt_us), start = cwnd;
		for (u32 t = 0; t < 20000000; t += rtt_us)
			cwnd = window_increase(cwnd, &credit, gain, cwnd, ~0u);
		double growth = (cwnd - start) / (rtt_us / 1e6);
		if (!reference)
			reference = growth;
		CHECK(near(growth, reference, 0.05, 0), "at %u us the rate grows by %f, at 25 ms by %f", rtt_us, growth, reference);
	}
	return result();
}
