// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Brutal's arithmetic. For its purpose see brutal.bpf.c.
#pragma once

#include "window.h"

// Bounds that keep every product below within 64 bits.
#define BRUTAL_RATE_MAX (1ull << 38) // bytes per second; 2.2 Tb/s
#define BRUTAL_RTT_MAX_US (1u << 24)      // 16.8 s

#define BRUTAL_GAIN_MIN 5u      // tenths
#define BRUTAL_GAIN_DEFAULT 20u // tenths: twice the product of rate and round trip
#define BRUTAL_GAIN_MAX 80u     // tenths

#define BRUTAL_ACK_RATE_MIN_Q16 52429u // 0.8
#define BRUTAL_SLOTS 5
#define BRUTAL_ENOUGH_PACKETS 50u
#define BRUTAL_WINDOW_MIN 10u // segments

// The rate without a setting: 1 Mb/s.
#define BRUTAL_RATE_UNTOLD 125000ull

// The packets of one slot of about a second, by outcome.
struct brutal_slot {
	u32 delivered;
	u32 lost;
};

// The latest slots, the one under way first.
struct brutal_history {
	struct brutal_slot slot[BRUTAL_SLOTS];
	u32 now; // number of the slot under way
};

// Counts packets into the slot of number now. Every index is a constant once
// the loops are unrolled, which the verifier insists on.
static ALWAYS_INLINE void brutal_count(struct brutal_history *h, u32 now, u32 delivered, u32 lost)
{
	u32 passed = now - h->now;
	if (passed >= BRUTAL_SLOTS)
		passed = BRUTAL_SLOTS;
#pragma clang loop unroll(full)
	for (u32 n = 0; n < BRUTAL_SLOTS; n++) {
		if (n >= passed)
			continue;
#pragma clang loop unroll(full)
		for (u32 i = BRUTAL_SLOTS - 1; i > 0; i--)
			h->slot[i] = h->slot[i - 1];
		h->slot[0].delivered = 0;
		h->slot[0].lost = 0;
	}
	h->now = now;
	h->slot[0].delivered += delivered;
	h->slot[0].lost += lost;
}

// The share of packets that arrive, at least 0.8; 1 until there are enough packets
// to measure it.
static ALWAYS_INLINE u32 brutal_ack_rate_q16(const struct brutal_history *h)
{
	u64 delivered = 0, lost = 0;
#pragma clang loop unroll(full)
	for (u32 i = 0; i < BRUTAL_SLOTS; i++) {
		delivered += h->slot[i].delivered;
		lost += h->slot[i].lost;
	}
	if (delivered + lost < BRUTAL_ENOUGH_PACKETS)
		return 1 << 16;
	u64 share = (delivered << 16) / (delivered + lost);
	return share < BRUTAL_ACK_RATE_MIN_Q16 ? BRUTAL_ACK_RATE_MIN_Q16 : share;
}

// The part of a rate of whole packets that is payload, both in bytes per second.
static inline u64 brutal_payload_rate(u64 rate, u32 mss, u32 headers)
{
	if (rate > BRUTAL_RATE_MAX)
		rate = BRUTAL_RATE_MAX;
	return rate * mss / ((u64)mss + headers + !mss);
}

// The sending rate with which rate arrives, in bytes per second.
static inline u64 brutal_pace(u64 rate, u32 ack_rate_q16)
{
	if (rate > BRUTAL_RATE_MAX)
		rate = BRUTAL_RATE_MAX;
	if (ack_rate_q16 < BRUTAL_ACK_RATE_MIN_Q16)
		ack_rate_q16 = BRUTAL_ACK_RATE_MIN_Q16;
	return (rate << 16) / ack_rate_q16;
}

// The window for a pace in bytes per second: gain times the bytes on the way.
static inline u32 brutal_window(u64 pace, u32 srtt_us, u32 mss, u32 gain_tenths, u32 clamp)
{
	if (pace > 2 * BRUTAL_RATE_MAX)
		pace = 2 * BRUTAL_RATE_MAX;
	if (srtt_us > BRUTAL_RTT_MAX_US)
		srtt_us = BRUTAL_RTT_MAX_US;
	u64 bytes = pace * srtt_us / 1000000;
	u64 segments = bytes * gain_tenths / 10 / (mss ? mss : 1);
	return window_bound(segments > BRUTAL_WINDOW_MIN ? segments : BRUTAL_WINDOW_MIN, clamp);
}

static inline u32 brutal_gain(u32 tenths)
{
	if (!tenths)
		return BRUTAL_GAIN_DEFAULT;
	if (tenths < BRUTAL_GAIN_MIN)
		return BRUTAL_GAIN_MIN;
	return tenths > BRUTAL_GAIN_MAX ? BRUTAL_GAIN_MAX : tenths;
}

// A budget's connections report their need to each other, once in each period of
// about a quarter of a second. A connection is greedy if it needs more than its
// share, and modest if it does not use all of it.
struct brutal_tally {
	u64 modest_need; // of all modest ones, bytes per second
	u32 greedy;      // how many
	u32 modest;      // how many
};

// The report of one connection.
struct brutal_need {
	u32 modest_need_256; // in units of 256 bytes per second
	u8 told;             // BRUTAL_...
};

enum {
	BRUTAL_NOTHING,
	BRUTAL_GREEDY,
	BRUTAL_MODEST,
};

// A budget's tallies: of the period under way and of the one before.
struct brutal_tallies {
	struct brutal_tally now, before;
	u32 period;
};

static ALWAYS_INLINE void brutal_roll(struct brutal_tallies *t, u32 period)
{
	u32 passed = period - t->period;
	if (passed == 0 || passed > ~0u / 2) // clocks of two connections may differ a little
		return;
	if (passed == 1) {
		t->before = t->now;
	} else {
		t->before.modest_need = 0;
		t->before.greedy = 0;
		t->before.modest = 0;
	}
	t->now.modest_need = 0;
	t->now.greedy = 0;
	t->now.modest = 0;
	t->period = period;
}

static ALWAYS_INLINE void brutal_tell(struct brutal_tally *t, const struct brutal_need *need)
{
	if (need->told == BRUTAL_GREEDY) {
		t->greedy++;
	} else if (need->told == BRUTAL_MODEST) {
		t->modest++;
		t->modest_need += (u64)need->modest_need_256 << 8;
	}
}

// A connection's sending rate without its compensation of losses: segments of size
// bytes each, headers included, over elapsed_us. In bytes per second.
static inline u64 brutal_used(u32 segments, u32 size, u32 elapsed_us, u32 ack_rate_q16)
{
	if (segments > 1u << 24)
		segments = 1u << 24;
	if (size > 1u << 16)
		size = 1u << 16;
	u64 rate = (u64)segments * size * 1000000 / (elapsed_us ? elapsed_us : 1);
	if (rate > 2 * BRUTAL_RATE_MAX)
		rate = 2 * BRUTAL_RATE_MAX;
	return rate * ack_rate_q16 >> 16;
}

// A connection's report on its use of a share, both in bytes per second. It is
// modest if a quarter more than its use is still within the share.
static inline struct brutal_need brutal_need_of(u64 used, u64 share)
{
	struct brutal_need need = {0, BRUTAL_GREEDY};
	u64 wanted = used + used / 4;
	if (wanted < share && wanted >> 8 <= ~0u) {
		need.told = BRUTAL_MODEST;
		need.modest_need_256 = wanted >> 8;
	}
	return need;
}

// A connection's share of a budget of rate bytes per second by one tally, with its
// own report mine: the rest after the modest ones, divided by the number of greedy
// ones and itself; but never less than an even split.
static ALWAYS_INLINE u64 brutal_share_by(const struct brutal_tally *t, const struct brutal_need *mine, u64 rate)
{
	u64 taken = t->modest_need;
	u64 greedy = t->greedy + 1ull, all = t->greedy + 1ull + t->modest;
	if (mine->told == BRUTAL_GREEDY && t->greedy) {
		greedy--;
		all--;
	} else if (mine->told == BRUTAL_MODEST && t->modest) {
		u64 need = (u64)mine->modest_need_256 << 8;
		taken = taken > need ? taken - need : 0;
		all--;
	}
	u64 rest = rate > taken ? rate - taken : 0;
	u64 share = rest / greedy, even = rate / all;
	return share > even ? share : even;
}

// The lesser of the shares by both tallies: the earlier one is complete, the later
// one has the connections that have come since.
static ALWAYS_INLINE u64 brutal_share(const struct brutal_tallies *t, const struct brutal_need *now,
				      const struct brutal_need *before, u64 rate)
{
	u64 by_now = brutal_share_by(&t->now, now, rate);
	u64 by_before = brutal_share_by(&t->before, before, rate);
	return by_now < by_before ? by_now : by_before;
}
