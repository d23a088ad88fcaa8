//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "check.h"

#include "../brutal.h"

static void history(void)
{
	struct brutal_history h = {0};
	brutal_count(&h, 7, 20, 20);
	CHECK(brutal_ack_rate_q16(&h) == 65536, "too few packets to tell");
	brutal_count(&h, 7, 70, 0);
	CHECK(near(brutal_ack_rate_q16(&h) / 65536.0, 90.0 / 110, 1e-3, 0), "of one slot: %u", brutal_ack_rate_q16(&h));
	brutal_count(&h, 8, 90, 10);
	CHECK(near(brutal_ack_rate_q16(&h) / 65536.0, 180.0 / 210, 1e-3, 0), "of two slots: %u", brutal_ack_rate_q16(&h));
	brutal_count(&h, 8, 0, 1000);
	CHECK(brutal_ack_rate_q16(&h) == BRUTAL_ACK_RATE_MIN_Q16, "the floor: %u", brutal_ack_rate_q16(&h));
	// Each slot is forgotten after BRUTAL_SLOTS of them.
	brutal_count(&h, 11, 900, 100);
	brutal_count(&h, 13, 0, 0);
	CHECK(near(brutal_ack_rate_q16(&h) / 65536.0, 0.9, 1e-3, 0), "what is old counts: %u", brutal_ack_rate_q16(&h));
	brutal_count(&h, 100, 0, 0);
	CHECK(brutal_ack_rate_q16(&h) == 65536, "after a long pause");
	// At 100 Gb/s for the whole window, losses included, and over the wrap of the
	// slots' number.
	struct brutal_history fast = {.now = ~0u - 2};
	for (u32 i = 0; i < BRUTAL_SLOTS; i++)
		brutal_count(&fast, ~0u - 1 + i, 25000000, 2500000);
	CHECK(near(brutal_ack_rate_q16(&fast) / 65536.0, 1 / 1.1, 1e-3, 0), "at 100 Gb/s: %u", brutal_ack_rate_q16(&fast));
	for (int i = 0; i < 30000; i++) {
		brutal_count(&fast, fast.now + any() % 8, any_up_to(~0u / 8), any_up_to(~0u / 8));
		u32 rate = brutal_ack_rate_q16(&fast);
		CHECK(rate >= BRUTAL_ACK_RATE_MIN_Q16 && rate <= 65536, "ack rate %u", rate);
	}
}

static void rates(void)
{
	for (int i = 0; i < 50000; i++) {
		u64 rate = any_up_to(BRUTAL_RATE_MAX);
		u32 mss = 88 + any() % 65000, headers = 40 + any() % 60;
		double payload = (double)rate * mss / (mss + headers);
		CHECK(near(brutal_payload_rate(rate, mss, headers), payload, 1e-9, 1), "payload of %llu", rate);
		u32 ack = BRUTAL_ACK_RATE_MIN_Q16 + any() % (65536 - BRUTAL_ACK_RATE_MIN_Q16 + 1);
		CHECK(near(brutal_pace(rate, ack), (double)rate * 65536 / ack, 1e-9, 1), "pace of %llu at %u", rate, ack);

		u32 rtt_us = any_up_to(BRUTAL_RTT_MAX_US), gain = BRUTAL_GAIN_MIN + any() % (BRUTAL_GAIN_MAX - BRUTAL_GAIN_MIN + 1);
		double window = (double)rate * rtt_us / 1e6 * gain / 10 / mss;
		window = window < BRUTAL_WINDOW_MIN ? BRUTAL_WINDOW_MIN : window > WINDOW_MAX ? WINDOW_MAX : window;
		CHECK(near(brutal_window(rate, rtt_us, mss, gain, ~0u), window, 1e-6, 1.1), "window of %llu over %u us: %u, want %f", rate,
		      rtt_us, brutal_window(rate, rtt_us, mss, gain, ~0u), window);
	}
	// The design's extreme, with the largest compensation and gain.
	u64 pace = brutal_pace(FAST_RATE, 0);
	CHECK(near(pace, FAST_RATE / 0.8, 1e-4, 0), "pace at 100 Gb/s: %llu", pace);
	CHECK(near(brutal_window(pace, LONG_RTT_US, 1448, 20, ~0u), FAST_RATE / 0.8 * 2 * 2 / 1448, 1e-4, 0), "window at 100 Gb/s and 2 s");
	// Nonsense does not crash.
	CHECK(brutal_payload_rate(~0ull, 0, 0) == 0, "no payload");
	CHECK(brutal_window(~0ull, ~0u, 0, 80, ~0u) == WINDOW_MAX, "everything at its most");
	CHECK(brutal_used(~0u, ~0u, 0, 65536) <= 2 * BRUTAL_RATE_MAX, "use at its most");
	CHECK(near(brutal_used(1000, 1500, 250000, 58982), 1000 * 1500 * 4 * 0.9, 1e-4, 0), "use: %llu", brutal_used(1000, 1500, 250000, 58982));
	CHECK(brutal_gain(0) == 20 && brutal_gain(1) == 5 && brutal_gain(200) == 80 && brutal_gain(15) == 15, "gains");
}

// Connections of one budget, as brutal.bpf.c has them.
struct connection {
	struct brutal_need now, before;
	u64 share, demand; // bytes per second; what it would send if it could
	bool here;
};

#define BUDGET 12500000ull // 100 Mb/s

// A period: each connection reports its use, and takes its share at the end.
static void period(struct brutal_tallies *t, u32 number, struct connection *c, int n)
{
	for (int i = 0; i < n; i++) {
		if (!c[i].here)
			continue;
		u64 used = c[i].share < c[i].demand ? c[i].share : c[i].demand;
		struct brutal_need need = {0, BRUTAL_GREEDY}; // whoever comes
		if (c[i].share)
			need = brutal_need_of(used, c[i].share);
		c[i].before = c[i].now;
		c[i].now = need;
		brutal_roll(t, number);
		brutal_tell(&t->now, &need);
		c[i].share = brutal_share(t, &c[i].now, &c[i].before, BUDGET);
	}
}

// The total rate of all.
static u64 sent(const struct connection *c, int n)
{
	u64 sum = 0;
	for (int i = 0; i < n; i++)
		if (c[i].here)
			sum += c[i].share < c[i].demand ? c[i].share : c[i].demand;
	return sum;
}

static void budgets(void)
{
	enum { N = 8 };
	struct connection c[N];
	struct brutal_tallies t;
	u32 now = ~0u - 20; // the number wraps on the way

#define BEGIN(count, wanted)                                                                        \
	memset(c, 0, sizeof c), memset(&t, 0, sizeof t), t.period = now;                            \
	for (int i = 0; i < N; i++)                                                                 \
		c[i].here = i < (count), c[i].demand = (wanted)
#define RUN(periods)                                                                                \
	for (int k = 0; k < (periods); k++)                                                         \
	period(&t, ++now, c, N)

	BEGIN(1, ~0ull);
	RUN(1);
	CHECK(c[0].share == BUDGET, "one alone has %llu", c[0].share);

	BEGIN(4, ~0ull);
	RUN(3);
	for (int i = 0; i < 4; i++)
		CHECK(near(c[i].share, BUDGET / 4, 0.001, 0), "one of four greedy has %llu", c[i].share);

	// Two that need little leave the rest to the others.
	BEGIN(4, ~0ull);
	c[0].demand = c[1].demand = BUDGET / 50;
	RUN(6);
	u64 rest = (BUDGET - 2 * (BUDGET / 50) * 5 / 4) / 2;
	for (int i = 2; i < 4; i++)
		CHECK(near(c[i].share, rest, 0.01, 0), "a greedy one beside modest ones has %llu, want %llu", c[i].share, rest);
	CHECK(sent(c, N) <= BUDGET, "together %llu", sent(c, N));
	CHECK(sent(c, N) > BUDGET * 9 / 10, "left unused: %llu", BUDGET - sent(c, N));

	// A modest one that turns greedy has its part within three periods.
	c[0].demand = ~0ull;
	RUN(3);
	CHECK(near(c[0].share, c[2].share, 0.05, 0), "%llu beside %llu", c[0].share, c[2].share);
	CHECK(sent(c, N) <= BUDGET * 101 / 100, "together %llu", sent(c, N));

	// A new connection has its part at once, the others within two periods.
	BEGIN(2, ~0ull);
	RUN(5);
	c[2].here = true;
	RUN(1);
	CHECK(c[2].share <= BUDGET / 3 + 1, "one that comes begins with %llu", c[2].share);
	RUN(2);
	CHECK(sent(c, N) <= BUDGET * 101 / 100, "with one more together %llu", sent(c, N));

	// A closed connection leaves its part within three.
	c[2].here = c[1].here = false;
	RUN(3);
	CHECK(c[0].share == BUDGET, "left alone has %llu", c[0].share);

	// With any steady needs they stay within the budget, and use it if any of
	// them needs it.
	for (int trial = 0; trial < 500; trial++) {
		int n = 1 + any() % N;
		BEGIN(n, any_up_to(2 * BUDGET));
		RUN(40);
		u64 together = sent(c, N);
		bool wanted = false;
		for (int i = 0; i < n; i++)
			wanted |= c[i].share <= c[i].demand;
		CHECK(together <= BUDGET * 102 / 100, "%d connections send %llu together", n, together);
		CHECK(!wanted || together >= BUDGET * 7 / 10, "%d connections send only %llu together", n, together);
		for (int i = 0; i < n; i++)
			CHECK(c[i].share >= BUDGET / n, "%llu is less than an even part of %d", c[i].share, n);
	}
	// Nothing overflows with nonsense in the tallies.
	for (int i = 0; i < 50000; i++) {
		struct brutal_tally tally = {any_up_to(~0ull), any_up_to(~0u), any_up_to(~0u)};
		struct brutal_need need = {any_up_to(~0u), any() % 3};
		u64 rate = any_up_to(BRUTAL_RATE_MAX), share = brutal_share_by(&tally, &need, rate);
		CHECK(share <= rate, "a share of %llu of %llu", share, rate);
	}
}

int main(void)
{
	history();
	rates();
	budgets();
	return result();
}
