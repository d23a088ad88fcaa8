// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// TCP Illinois's arithmetic. Source, notation and departures: illinois.bpf.c.
#pragma once

#include "window.h"

// The paper's constants, with 16 fractional bits.
#define ILLINOIS_ALPHA_MIN 19661u  // 0.3 segments
#define ILLINOIS_ALPHA_ONE 65536u  // Reno's
#define ILLINOIS_ALPHA_MAX 655360u // 10 segments
#define ILLINOIS_BETA_MIN 8192u    // 1/8
#define ILLINOIS_BETA_MAX 32768u   // 1/2, which is also Reno's
#define ILLINOIS_THETA 5u          // rounds
#define ILLINOIS_SMALL_WINDOW 15u  // segments

// Round trips are cut off here, so that products of two delays and two
// constants fit 64 bits.
#define ILLINOIS_RTT_MAX_US (60u * 1000 * 1000)

struct illinois {
	u64 credit_q16;   // growth short of a segment
	u64 rtt_sum_us;   // of this round's samples
	u32 rtt_count;    // how many there are
	u32 rtt_min_us;   // of the connection; 0 if no sample yet
	u32 rtt_max_us;   // likewise
	u32 round_end;    // the round is over when this is acknowledged
	u32 alpha_q16;    // segments per round trip
	u32 beta_q16;     // share of the window that a loss costs
	u32 calm_rounds;  // in a row, after delay was seen
	bool seen_delay;  // more than d1, since alpha was last at its maximum
};

static inline void illinois_reset(struct illinois *s)
{
	s->alpha_q16 = ILLINOIS_ALPHA_ONE;
	s->beta_q16 = ILLINOIS_BETA_MAX;
	s->calm_rounds = 0;
	s->seen_delay = false;
}

// One round trip measured, in microseconds.
static inline void illinois_sample(struct illinois *s, u32 rtt_us)
{
	if (rtt_us > ILLINOIS_RTT_MAX_US)
		rtt_us = ILLINOIS_RTT_MAX_US;
	if (!s->rtt_min_us || rtt_us < s->rtt_min_us)
		s->rtt_min_us = rtt_us;
	if (rtt_us > s->rtt_max_us)
		s->rtt_max_us = rtt_us;
	s->rtt_sum_us += rtt_us;
	s->rtt_count++;
}

// alpha beyond d1. With D = dm - d1 and A = alpha_max - alpha_min the paper's
// k1 / (k2 + da) is D alpha_min alpha_max / (D alpha_min + A (da - d1)).
// Delays in microseconds, d1 <= da.
static inline u32 illinois_alpha_of(u64 da, u64 d1, u64 dm)
{
	if (da > dm)
		da = dm;
	u64 d_min = (dm - d1) * ILLINOIS_ALPHA_MIN;
	u64 down = d_min + (ILLINOIS_ALPHA_MAX - ILLINOIS_ALPHA_MIN) * (da - d1);
	return down ? d_min * ILLINOIS_ALPHA_MAX / down : ILLINOIS_ALPHA_MAX;
}

// beta: its least value up to d2 = dm/10, its greatest from d3 = 8 dm/10,
// linear between.
static inline u32 illinois_beta_of(u64 da, u64 dm)
{
	u64 d2 = dm / 10, d3 = dm * 8 / 10;
	if (da <= d2)
		return ILLINOIS_BETA_MIN;
	if (da >= d3)
		return ILLINOIS_BETA_MAX;
	return ILLINOIS_BETA_MIN + (ILLINOIS_BETA_MAX - ILLINOIS_BETA_MIN) * (da - d2) / (d3 - d2);
}

// The end of a round: alpha and beta for the next one.
static inline void illinois_round(struct illinois *s, u32 cwnd)
{
	u32 count = s->rtt_count;
	u64 sum_us = s->rtt_sum_us;
	s->rtt_count = 0;
	s->rtt_sum_us = 0;
	if (cwnd < ILLINOIS_SMALL_WINDOW) {
		s->alpha_q16 = ILLINOIS_ALPHA_ONE;
		s->beta_q16 = ILLINOIS_BETA_MAX;
		return;
	}
	if (!count)
		return;
	u64 mean_us = sum_us / count;
	u64 da = mean_us > s->rtt_min_us ? mean_us - s->rtt_min_us : 0;
	u64 dm = s->rtt_max_us - s->rtt_min_us, d1 = dm / 100;
	s->beta_q16 = illinois_beta_of(da, dm);
	if (da > d1) {
		s->seen_delay = true;
		s->calm_rounds = 0;
		s->alpha_q16 = illinois_alpha_of(da, d1, dm);
		return;
	}
	// One calm round may be chance.
	if (s->seen_delay && ++s->calm_rounds < ILLINOIS_THETA)
		return;
	s->seen_delay = false;
	s->calm_rounds = 0;
	s->alpha_q16 = ILLINOIS_ALPHA_MAX;
}

// The window after a loss.
static inline u32 illinois_ssthresh_of(u32 cwnd, u32 beta_q16)
{
	u32 left = cwnd - (u32)((u64)cwnd * beta_q16 >> 16);
	return left > 2 ? left : 2;
}
