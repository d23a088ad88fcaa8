//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "check.h"

#include "../window.h"

static void bounds(void)
{
	CHECK(window_bound(0, 100) == 1, "a window of nothing");
	CHECK(window_bound(101, 100) == 100, "the clamp");
	CHECK(window_bound(~0ull, ~0u) == WINDOW_MAX, "the largest window");
	CHECK(WINDOW_MAX > FAST_WINDOW, "100 Gb/s over 2 s must fit");
}

static void used(void)
{
	CHECK(window_used(false, 10, 0, true), "the kernel says it is used");
	CHECK(!window_used(false, 10, 9, false), "not used in avoidance");
	CHECK(window_used(true, 10, 6, false), "half used in slow start");
	CHECK(!window_used(true, 10, 5, false), "less than half used in slow start");
	CHECK(window_used(true, ~0u, ~0u, false), "no wrap");
}

static void slow_start(void)
{
	CHECK(window_slow_start(10, 100, 5, 1000) == 15, "one for each");
	CHECK(window_slow_start(98, 100, 5, 1000) == 100, "up to ssthresh");
	CHECK(window_slow_start(98, 200, 5, 99) == 99, "up to the clamp");
	CHECK(window_slow_start(~0u, ~0u, ~0u, ~0u) == WINDOW_MAX, "no wrap");
}

// Over many ACKs the increase is gain/cwnd for each segment. The kept fraction counts
// at the later window, so small windows are a segment or two behind.
static void increase(void)
{
	for (int i = 0; i < 2000; i++) {
		u64 gain = any_up_to(4ull << 16) + 1, credit = 0;
		u32 cwnd = any_up_to(5000) + 1;
		double exact = cwnd;
		for (int ack = 0; ack < 500; ack++) {
			u32 acked = any() % 8;
			exact += (double)gain / 65536 * acked / cwnd;
			cwnd = window_increase(cwnd, &credit, gain, acked, ~0u);
			CHECK(credit < (u64)cwnd << 16, "credit for a segment is kept back");
		}
		CHECK(near(cwnd, exact, 0.01, 2.5), "window %u, exact %f", cwnd, exact);
	}
	// No product overflows: with all inputs at their maxima the window is bounded
	// by the result in 128 bits.
	for (int i = 0; i < 200000; i++) {
		u64 gain = any_up_to(~0ull), credit = 0;
		u32 cwnd = any_up_to(~0u), acked = any_up_to(~0u), clamp = any_up_to(~0u);
		unsigned __int128 g = gain > GAIN_MAX_Q16 ? GAIN_MAX_Q16 : gain;
		u32 a = acked > 1u << 20 ? 1u << 20 : acked, w = cwnd < 1 ? 1 : cwnd;
		credit = any_up_to(((u64)w << 16) - 1);
		unsigned __int128 more = (g * a + credit) / ((u64)w << 16);
		u64 wide = more + w > ~0ull ? ~0ull : (u64)(more + w);
		u32 want = window_bound(wide, clamp);
		u32 got = window_increase(cwnd, &credit, gain, acked, clamp);
		CHECK(got == want, "window %u, gain %llu, acked %u: %u, want %u", cwnd, gain, acked, got, want);
	}
}

int main(void)
{
	bounds();
	used();
	slow_start();
	increase();
	CHECK(window_undo(5, 9) == 9 && window_undo(9, 5) == 9, "undo");
	return result();
}
