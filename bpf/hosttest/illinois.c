//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "check.h"

#include "../illinois.h"

// The paper's functions as it writes them, in doubles.
static double paper_alpha(double da, double dm)
{
	double max = 10, min = 0.3, d1 = dm / 100;
	if (da <= d1)
		return max;
	double k1 = (dm - d1) * min * max / (max - min), k2 = (dm - d1) * min / (max - min) - d1;
	return k1 / (k2 + da);
}

static double paper_beta(double da, double dm)
{
	double max = 0.5, min = 0.125, d2 = dm / 10, d3 = dm * 8 / 10;
	if (da <= d2)
		return min;
	if (da >= d3)
		return max;
	double k3 = (min * d3 - max * d2) / (d3 - d2), k4 = (max - min) / (d3 - d2);
	return k3 + k4 * da;
}

static void curves(void)
{
	for (int i = 0; i < 100000; i++) {
		u64 dm = any_up_to(ILLINOIS_RTT_MAX_US), da = any_up_to(dm);
		if (dm < 1000) // where a microsecond is coarse
			continue;
		double beta = illinois_beta_of(da, dm) / 65536.0;
		CHECK(near(beta, paper_beta(da, dm), 0, 2e-3), "beta(%llu, %llu) = %f, want %f", da, dm, beta, paper_beta(da, dm));
		u64 d1 = dm / 100;
		if (da <= d1)
			continue;
		u32 alpha = illinois_alpha_of(da, d1, dm);
		// d1 is cut to a microsecond; near it the curve is steep.
		CHECK(near(alpha / 65536.0, paper_alpha(da, dm), 0.01, 1.0 / (dm / 1000)), "alpha(%llu, %llu) = %f, want %f", da, dm,
		      alpha / 65536.0, paper_alpha(da, dm));
		CHECK(alpha >= ILLINOIS_ALPHA_MIN - 2 && alpha <= ILLINOIS_ALPHA_MAX, "alpha out of its range: %u", alpha);
	}
	// Tiny delays do not divide by zero, and stay within the ranges.
	for (u64 dm = 0; dm < 1000; dm++) {
		for (u64 da = 0; da <= dm; da += 7) {
			u32 beta = illinois_beta_of(da, dm);
			CHECK(beta >= ILLINOIS_BETA_MIN && beta <= ILLINOIS_BETA_MAX, "beta(%llu, %llu) = %u", da, dm, beta);
			u32 alpha = da > dm / 100 ? illinois_alpha_of(da, dm / 100, dm) : ILLINOIS_ALPHA_MAX;
			CHECK(alpha >= ILLINOIS_ALPHA_MIN - 2 && alpha <= ILLINOIS_ALPHA_MAX, "alpha(%llu, %llu) = %u", da, dm, alpha);
		}
	}
}

static void round_of(struct illinois *s, u32 rtt_us, u32 cwnd)
{
	for (int i = 0; i < 10; i++)
		illinois_sample(s, rtt_us);
	illinois_round(s, cwnd);
}

static void rounds(void)
{
	struct illinois s = {0};
	illinois_reset(&s);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_ONE && s.beta_q16 == ILLINOIS_BETA_MAX, "it does not begin as Reno");
	round_of(&s, 100000, 14);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_ONE && s.beta_q16 == ILLINOIS_BETA_MAX, "small windows are Reno's");
	round_of(&s, 100000, 15);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_MAX && s.beta_q16 == ILLINOIS_BETA_MIN, "no delay: %u %u", s.alpha_q16, s.beta_q16);
	round_of(&s, 200000, 100);
	CHECK(near(s.alpha_q16, ILLINOIS_ALPHA_MIN, 0.001, 0) && s.beta_q16 == ILLINOIS_BETA_MAX, "full delay: %u %u", s.alpha_q16, s.beta_q16);
	// One calm round is not enough, theta are.
	u32 slow = s.alpha_q16;
	for (u32 i = 1; i < ILLINOIS_THETA; i++) {
		round_of(&s, 100000, 100);
		CHECK(s.alpha_q16 == slow, "after %u calm rounds alpha is %u", i, s.alpha_q16);
		CHECK(s.beta_q16 == ILLINOIS_BETA_MIN, "beta waits");
	}
	round_of(&s, 100000, 100);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_MAX, "after theta calm rounds alpha is %u", s.alpha_q16);
	// Delay in between starts the count again.
	round_of(&s, 150000, 100);
	round_of(&s, 100000, 100);
	round_of(&s, 100000, 100);
	round_of(&s, 150000, 100);
	for (u32 i = 1; i < ILLINOIS_THETA; i++)
		round_of(&s, 100000, 100);
	CHECK(s.alpha_q16 < ILLINOIS_ALPHA_ONE, "the count was not started again: %u", s.alpha_q16);
	round_of(&s, 100000, 100);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_MAX, "calm again: %u", s.alpha_q16);
	// A round without a sample changes nothing.
	illinois_round(&s, 100);
	CHECK(s.alpha_q16 == ILLINOIS_ALPHA_MAX, "a round without samples");

	// A long round on a fast path: as many samples as segments of the window.
	struct illinois fast = {0};
	fast.rtt_sum_us = (u64)FAST_WINDOW * ILLINOIS_RTT_MAX_US;
	fast.rtt_count = FAST_WINDOW;
	fast.rtt_min_us = 1;
	fast.rtt_max_us = ILLINOIS_RTT_MAX_US;
	illinois_round(&fast, FAST_WINDOW);
	CHECK(near(fast.alpha_q16, ILLINOIS_ALPHA_MIN, 0.001, 0), "alpha on a fast path: %u", fast.alpha_q16);
	CHECK(~0ull / ILLINOIS_RTT_MAX_US > FAST_WINDOW, "the sum of a round's samples must fit");
}

int main(void)
{
	curves();
	rounds();
	CHECK(illinois_ssthresh_of(100, ILLINOIS_BETA_MAX) == 50, "half");
	CHECK(illinois_ssthresh_of(160, ILLINOIS_BETA_MIN) == 140, "an eighth");
	CHECK(illinois_ssthresh_of(2, ILLINOIS_BETA_MAX) == 2, "the least window");
	CHECK(illinois_ssthresh_of(WINDOW_MAX, ILLINOIS_BETA_MAX) == WINDOW_MAX / 2, "the largest window");
	return result();
}
