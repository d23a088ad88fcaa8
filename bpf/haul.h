// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul's arithmetic and decisions. What it does and why: haul.bpf.c.
//
// Rates are bytes of payload per second, times microseconds, windows segments.
// A suffix _q16 marks a share or a factor with 16 fractional bits.
#pragma once

#include "window.h"

#define HAUL_ONE 65536u // 1.0 in q16

// Bounds that keep every product below within 64 bits: 2.2 Tb/s, 16.8 s.
#define HAUL_RATE_MAX (1ull << 38)
#define HAUL_RTT_MAX_US (1u << 24)

#define HAUL_WINDOW_MIN 4u // segments

// Start-up doubles each round trip: a gain of x ln(x)/(1 - 1/x), x = 2, since a
// rate sample is the mean over the round trip before, while the rate doubles.
#define HAUL_STARTUP_GAIN_Q16 181680u // 2.772
#define HAUL_STARTUP_GROWTH_Q16 81920u // 1.25: a round that grows by less is flat
#define HAUL_STARTUP_FLAT_ROUNDS 3u
#define HAUL_STARTUP_PACKETS 128u // delivered, before their loss is made up for

#define HAUL_DRAIN_GAIN_Q16 32768u // 0.5
#define HAUL_PROBE_GAIN_Q16 58982u // 0.9

#define HAUL_QUARTER_SAMPLES 12u // round trips that tell the queue as it is now, at least
#define HAUL_BW_EPOCHS 5u	 // that a largest delivery is kept for, once or twice
#define HAUL_LATE_MAX 4u	 // eighths
#define HAUL_LATE_PACKETS 256u	 // in an epoch: with fewer, bursts blur what is sent

// Loss below this share is not made up for.
#define HAUL_LOSS_SMALL_Q16 1311u // 0.02
#define HAUL_LOSS_LONELY_Q16 262u // 0.004: above, loss-based rivals get nowhere
#define HAUL_LOSS_MAX_Q16 32768u  // 0.5
#define HAUL_LOSS_PACKETS 1024u   // that the recent share of loss is pooled over

#define HAUL_EPOCH_PACKETS 48u // an epoch is a round trip with at least as many,
#define HAUL_EPOCH_ROUNDS 8u   // or as many rounds

#define HAUL_PROBE_INTERVAL_US 10000000u
#define HAUL_RIVAL_EPOCHS 6u // with a queue that does not yield: somebody fills it
#define HAUL_RIVAL_MIN_US 10000000u  // before the first trial
#define HAUL_RIVAL_KEPT_US 30000000u // that a rival is remembered for

enum haul_mode {
	HAUL_STARTUP, // double until the path is full
	HAUL_DRAIN,   // empty the queue that start-up left
	HAUL_CRUISE,  // keep a small queue
	HAUL_PROBE,   // send less for a round, to learn the path's own delay and loss
	HAUL_RIVAL,   // somebody fills the queue: take part as CUBIC does
	HAUL_TRIAL,   // has the rival gone?
};

// haul is the state of a connection.
struct haul {
	u64 rate;	   // to send at, what gets lost included
	u64 bw, bw_before; // the largest delivery of this period, and of the one before
	u64 full_bw;	   // what growth is held against; with a long queue, the rate before it
	u64 peak;	   // of what the path carried lately
	u64 delivery, sent; // in the last epoch
	u64 pace_before;    // in the epoch before

	// The epoch under way: counters at its start.
	u32 epoch_us, epoch_delivered, epoch_lost, epoch_spurious, epoch_sent;
	u32 round_delivered; // the round ends when what was sent beyond this is acknowledged
	u32 rtt_low_us;	     // least round trip of the epoch, ~0 if none
	u32 last_ack_us;

	// The last epoch: time, packets delivered and lost; the queue at the end of
	// the one before, at its own end, and the least in it.
	u32 took_us, got, missed;
	u32 queue_before_us, queue_us, queue_low_us;

	// Least round trip: of the current and of the previous period.
	u32 min_rtt_us, min_rtt_next_us, min_rtt_start_us;
	u32 low_us; // when the path was last seen empty

	u32 loss_q16;  // recent share
	u32 floor_q16; // of it that does not depend on how fast we send
	u32 floor_us;  // when it was last measured
	u32 waste_q16; // packets that were sent again in vain, for each delivered

	// CUBIC's, beside a rival.
	u32 window, window_max, window_cut, k_ms, cut_us, rival_us, cut_lost;

	// Least round trip of the quarter under way, and of the one before.
	u32 quarter_low_us, recent_low_us, quarter_start_us, quarter_samples;
	u64 quarter_sum_us;
	u32 noise_us; // by which the least of a quarter exceeds the path's, without a queue

	u8 mode;
	u8 period; // epochs of the bandwidth's period
	u8 rounds; // of the epoch
	u8 phase;  // epochs in this mode
	u8 flat;   // rounds of start-up without growth
	u8 calm;   // epochs without a queue, and without more delivery or beside a rival
	u8 streak; // times that delivery rose since the last of them
	u8 full;   // epochs with a queue that does not yield
	u8 late;   // eighths that the pace is raised by, since it is kept late
	u8 vain;   // epochs in which most was lost
	bool over;	  // the queue is longer than wanted
	bool had_rival;	  // not long ago
	bool limited;	  // by the application or the receiver, in this epoch
	bool was_limited; // or by anything else, in the one before
	bool timeout;	  // in recovery from one

	// What comes of it.
	u64 pace;
	u32 cwnd;
};

// haul_ack is what an acknowledgement says.
struct haul_ack {
	u32 now_us;
	u32 delivered, lost, sent; // packets, ever; wrap
	u32 spurious;		   // of those taken for lost, that were there after all
	u32 prior_delivered;	   // when the packet acknowledged was sent
	u32 sample_delivered;	   // packets over
	u32 sample_us;		   // 0 if there is no sample
	u32 rtt_us;		   // 0 if there is no sample
	u32 srtt_us;
	u32 in_flight, mss, clamp;
	bool limited; // by the application or the receiver
	bool timeout; // in recovery from one
};

static inline u64 haul_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 haul_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

// How long ago a time was; a time that lies ahead was now.
static inline u32 haul_since(u32 now_us, u32 then_us)
{
	s32 d = (s32)(now_us - then_us);
	return d < 0 ? 0 : d;
}

// How far a counter has come; one that went back stands still.
static inline u32 haul_counted(u32 now, u32 then)
{
	s32 d = (s32)(now - then);
	return d < 0 ? 0 : d;
}

static inline u64 haul_bound_rate(u64 rate)
{
	return rate > HAUL_RATE_MAX ? HAUL_RATE_MAX : rate;
}

static inline u64 haul_scale(u64 rate, u32 factor_q16)
{
	return haul_bound_rate(haul_bound_rate(rate) * factor_q16 >> 16);
}

// The rate of some packets over some time.
static inline u64 haul_rate_of(u32 packets, u32 mss, u32 us)
{
	u64 bytes = haul_min(packets, 1u << 26) * haul_min(mss, 1u << 16);
	return haul_bound_rate(bytes * 1000000 / (us ? us : 1));
}

// The segments that a rate puts on the way in some time.
static inline u32 haul_segments(u64 rate, u32 us, u32 mss)
{
	u64 bytes = haul_bound_rate(rate) * haul_min(us, HAUL_RTT_MAX_US) / 1000000;
	return haul_min(bytes / (mss ? mss : 1), WINDOW_MAX);
}

static inline u32 haul_share_q16(u32 part, u32 rest)
{
	u64 all = (u64)part + rest;
	return all ? ((u64)part << 16) / all : 0;
}

// The bits of a number; 0 has none.
static inline u32 haul_bits(u64 n)
{
	u32 bits = 0;
	if (n >> 32)
		n >>= 32, bits += 32;
	if (n >> 16)
		n >>= 16, bits += 16;
	if (n >> 8)
		n >>= 8, bits += 8;
	if (n >> 4)
		n >>= 4, bits += 4;
	if (n >> 2)
		n >>= 2, bits += 2;
	return bits + (n >> 1 ? 2 : n);
}

// Square and cube roots, rounded down, by Newton's method from a power of two
// that is not below: without a loop whose ways the verifier would have to follow.
GLOBAL u32 haul_sqrt(u64 n)
{
	u64 root = 1ull << ((haul_bits(n) + 1) / 2);
#pragma clang loop unroll(full)
	for (int i = 0; i < 6; i++)
		root = haul_max((root + n / root) / 2, 1);
	return root * root > n ? root - 1 : root;
}

GLOBAL u32 haul_cbrt(u64 n)
{
	u64 root = 1ull << ((haul_bits(n) + 2) / 3);
#pragma clang loop unroll(full)
	for (int i = 0; i < 7; i++)
		root = haul_max((2 * root + n / (root * root)) / 3, 1);
	return root * root * root > n ? root - 1 : root;
}

// The rate to send at so that some rate arrives past the loss that is the path's own.
static inline u64 haul_made_up(u64 delivery, u32 floor_q16)
{
	if (floor_q16 < HAUL_LOSS_SMALL_Q16)
		return haul_bound_rate(delivery);
	return haul_bound_rate((haul_bound_rate(delivery) << 16) / (HAUL_ONE - haul_min(floor_q16, HAUL_LOSS_MAX_Q16)));
}

// The queue to keep: the slower a flow, the longer, so that flows that see the
// same queue come to the same rate; and a small part of the round trip, by
// which the rate grows where there is no queue.
static inline u32 haul_target_us(u32 min_rtt_us, u64 rate, u32 mss)
{
	u64 per_second = rate / (mss ? mss : 1);
	u32 own = haul_sqrt(156250000000ull / (per_second ? per_second : 1)); // 1.25 sqrt(0.1 s / rate)
	u32 most = haul_max(14000, min_rtt_us / 12);
	return haul_min(1000 + min_rtt_us / 40 + own, most);
}

// A queue that means congestion, or a part of it: by quarters.
static inline u32 haul_congested_us(const struct haul *h, u32 quarters)
{
	return haul_max(20000, h->min_rtt_us / 8) / 4 * quarters + h->noise_us;
}

// The rate to send at so that some rate arrives, with what is sent in vain;
// with a long queue, sending less in vain is the cure.
static inline u64 haul_needed(const struct haul *h, u64 delivery)
{
	u32 waste_q16 = h->queue_us > haul_congested_us(h, 4) ? 0 : haul_min(h->waste_q16, HAUL_ONE / 4);
	return haul_made_up(delivery, h->floor_q16 + waste_q16);
}

// Loss that is more than chance of a floor: four standard deviations of the pool.
static inline u32 haul_margin_q16(u32 floor_q16)
{
	u64 variance_q32 = (u64)floor_q16 * (HAUL_ONE - haul_min(floor_q16, HAUL_ONE)) / HAUL_LOSS_PACKETS;
	return haul_max(HAUL_LOSS_SMALL_Q16, 4 * haul_sqrt(variance_q32));
}

static inline void haul_begin_epoch(struct haul *h, const struct haul_ack *a)
{
	h->epoch_us = a->now_us;
	h->epoch_delivered = a->delivered;
	h->epoch_lost = a->lost;
	h->epoch_spurious = a->spurious;
	h->epoch_sent = a->sent;
	h->round_delivered = a->delivered;
	h->rtt_low_us = ~0u;
	h->rounds = 0;
	h->limited = false;
}

static inline void haul_enter(struct haul *h, u8 mode)
{
	h->mode = mode;
	h->phase = 0;
}

// Beside a rival: CUBIC's window, RFC 9438, by the time since the last cut.
// It is a function of time only, since its flow is never short of data here.
GLOBAL u32 haul_cubic(const struct haul *h, u32 now_us, u32 rtt_us)
{
	if (!h)
		return 0;
	u64 t_ms = haul_min(haul_since(now_us, h->cut_us) / 1000, 200000);
	// C = 0.4 segments/s^3, so 0.4e-9 per ms^3.
	u64 away = t_ms > h->k_ms ? t_ms - h->k_ms : h->k_ms - t_ms;
	u64 change = haul_min(away, 400000) * haul_min(away, 400000) / 1000 * haul_min(away, 400000) / 2500000;
	u64 cubic = t_ms > h->k_ms ? h->window_max + change : h->window_max > change ? h->window_max - change : 0;
	// Reno's: 3 (1 - 0.7) / (1 + 0.7) = 0.53 segments for each round trip.
	u64 reno = h->window_cut + t_ms * 529 / haul_max(rtt_us, 1000);
	return window_bound(haul_max(cubic, reno), WINDOW_MAX);
}

static inline void haul_cubic_start(struct haul *h, u32 now_us, u32 window)
{
	h->window = h->window_max = h->window_cut = window;
	h->k_ms = 0;
	h->cut_us = now_us;
}

GLOBAL int haul_cubic_cut(struct haul *h, u32 now_us)
{
	if (!h)
		return 0;
	u32 w = h->window;
	h->window_max = w < h->window_max ? w - w / 10 : w; // fast convergence
	h->window = h->window_cut = haul_max((u64)w * 8 / 10, HAUL_WINDOW_MIN);
	// K = cbrt((W_max - W_cut) / C)
	u64 drop = h->window_max > h->window_cut ? h->window_max - h->window_cut : 0;
	h->k_ms = haul_cbrt(drop * 2500000000ull);
	h->cut_us = now_us;
	return 0;
}

// The recent share of lost packets is pooled over the last thousand or so.
// What was taken for lost and was there after all counts as negative.
static inline void haul_pool_loss(struct haul *h, s32 lost, u32 delivered, u32 ever)
{
	u32 n = delivered + (lost > 0 ? lost : 0);
	u32 pool = haul_max(n, haul_min(ever, HAUL_LOSS_PACKETS));
	if (!pool)
		return;
	u64 kept = (u64)h->loss_q16 * (pool - n);
	u64 change = (u64)(lost > 0 ? lost : -lost) << 16;
	h->loss_q16 = (lost > 0 ? kept + change : kept > change ? kept - change : 0) / pool;
	// The path's own loss is not more than all loss.
	u32 most = h->loss_q16 + h->loss_q16 / 4 + 100;
	if (h->floor_q16 > most && pool >= HAUL_LOSS_PACKETS)
		h->floor_q16 -= (h->floor_q16 - most) / 4;
}

static inline void haul_leave_startup(struct haul *h)
{
	h->rate = haul_needed(h, h->bw);
	haul_enter(h, HAUL_DRAIN);
}

GLOBAL int haul_startup_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	h->bw = haul_max(h->bw, h->delivery);
	if (h->limited)
		return 0;
	if (h->bw >= haul_scale(h->full_bw, HAUL_STARTUP_GROWTH_Q16)) {
		h->full_bw = h->bw;
		h->flat = 0;
		// What gets lost while more and more arrives is the path's own loss.
		if (h->queue_us < haul_congested_us(h, 4) && a->delivered >= HAUL_STARTUP_PACKETS)
			h->floor_q16 = haul_min(h->loss_q16, HAUL_LOSS_MAX_Q16 / 2);
	} else if (++h->flat >= HAUL_STARTUP_FLAT_ROUNDS) {
		haul_leave_startup(h);
	}
	h->rate = haul_needed(h, h->bw);
	return 0;
}

GLOBAL int haul_meet_rival(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	h->full = 0;
	if (h->floor_q16 >= HAUL_LOSS_LONELY_Q16) {
		// Nobody who takes loss for congestion fills the queue of a path that
		// loses: the path itself has become longer.
		h->min_rtt_us = h->min_rtt_next_us = haul_max(h->rtt_low_us == ~0u ? a->srtt_us : h->rtt_low_us, 1);
		h->min_rtt_start_us = h->low_us = a->now_us;
		h->rate = h->bw = h->bw_before = haul_min(h->full_bw, 4 * h->delivery);
		h->over = false;
		haul_enter(h, HAUL_CRUISE);
		return 0;
	}
	// The first time with the rate before the queue grew, unless that is long ago.
	u64 rate = h->had_rival ? h->delivery : haul_min(h->full_bw, 2 * h->delivery);
	u32 window = haul_segments(rate, a->srtt_us, a->mss);
	haul_enter(h, HAUL_RIVAL);
	h->had_rival = true;
	h->rival_us = a->now_us;
	h->cut_lost = a->lost;
	haul_cubic_start(h, a->now_us, haul_max(window, HAUL_WINDOW_MIN));
	return 0;
}

// Counts epochs with a queue that does not yield although we send less. The
// rate when it began is kept in full_bw.
static inline bool haul_is_crowded(struct haul *h, u32 gain_q16)
{
	u32 queue_us = h->queue_us;
	if (queue_us < haul_congested_us(h, h->had_rival ? 2 : 4)) {
		h->full = 0;
		return false;
	}
	u32 ours = (u64)h->took_us * (HAUL_ONE - haul_min(gain_q16, HAUL_ONE)) >> 16;
	if (queue_us + ours / 2 < h->queue_before_us)
		return false;
	// Nor is it anybody else's while we send much more than arrives.
	if (haul_needed(h, h->delivery) < haul_scale(h->sent, 49152)) { // 0.75
		h->full = 0;
		return false;
	}
	h->full++;
	return h->full >= (h->had_rival ? 2 : HAUL_RIVAL_EPOCHS);
}

GLOBAL int haul_cruise_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 target = haul_target_us(h->min_rtt_us, h->rate, a->mss) + h->noise_us, queue = h->queue_us;
	u64 base = haul_needed(h, haul_max(h->bw, h->bw_before));
	u32 horizon = 3 * h->min_rtt_us;

	if (h->loss_q16 > h->floor_q16 + haul_margin_q16(h->floor_q16) + h->waste_q16) {
		// More is lost than the path's own share: is it us?
		if (queue <= target) {
			haul_enter(h, HAUL_PROBE);
			return 0;
		}
		h->rate = haul_min(h->rate, haul_scale(base, 55706)); // 0.85
		h->loss_q16 = h->floor_q16;
		h->calm = 0;
		return 0;
	}
	if (haul_since(a->now_us, h->rival_us) > HAUL_RIVAL_KEPT_US)
		h->had_rival = false;
	if (h->had_rival && h->missed && h->floor_q16 < HAUL_LOSS_LONELY_Q16) {
		// It is back, or was never gone: it takes this loss for congestion.
		h->full_bw = h->rate;
		haul_meet_rival(h, a);
		haul_cubic_cut(h, a->now_us);
		return 0;
	}
	if (queue > target) {
		if (!h->over)
			h->full_bw = h->rate;
		h->over = true;
		u32 less = haul_min(((u64)(queue - target) << 16) / horizon, HAUL_ONE / 2);
		h->calm = 0;
		h->streak /= 2;
		if (haul_is_crowded(h, HAUL_ONE - less)) {
			haul_meet_rival(h, a);
			return 0;
		}
		if (h->full > 2) // it does not help
			return 0;
		h->rate = haul_scale(base, HAUL_ONE - less);
		return 0;
	}
	h->full = 0;
	h->over = false;
	if (h->limited)
		return 0;
	// Room: send a little more, by what fills the queue. Where more arrives the
	// path has become wider: follow it faster as long as it does.
	h->peak = haul_max(base, h->peak - h->peak / 512);
	u32 more = haul_max(((u64)(target - queue) << 16) / horizon, 512);
	if (base >= haul_scale(h->full_bw, HAUL_ONE + HAUL_ONE / 12)) {
		if (h->streak < 3) // 1/16, 1/8, 1/4
			h->streak++;
		h->full_bw = base;
		h->calm = 0;
	} else if (++h->calm >= (h->streak ? 4 : 8)) {
		h->streak = 0;
		h->full_bw = base;
		h->calm = 0;
	}
	if (h->streak && !h->had_rival) // what a rival has left is not ours alone
		more = haul_max(more, 2 * base < h->peak ? HAUL_ONE / 4 : HAUL_ONE / 32 << h->streak);
	h->rate = haul_max(haul_scale(base, HAUL_ONE + more), haul_min(h->rate, haul_scale(base, 81920)));
	u32 busy_us = haul_since(a->now_us, h->low_us);
	// Others empty the queue now: take part, or nobody sees the path without it.
	if (busy_us > HAUL_PROBE_INTERVAL_US || (busy_us > HAUL_PROBE_INTERVAL_US / 3 * 2 && queue < h->queue_before_us && queue < target / 3 * 2) ||
	    (h->loss_q16 >= HAUL_LOSS_SMALL_Q16 / 2 && haul_since(a->now_us, h->floor_us) > HAUL_PROBE_INTERVAL_US))
		haul_enter(h, HAUL_PROBE);
	return 0;
}

GLOBAL int haul_probe_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->phase == 0) { // what was sent at the lower rate is on the way
		h->phase = 1;
		return 0;
	}
	// It has arrived.
	u32 n = h->missed + h->got, share = haul_share_q16(h->missed, h->got);
	u32 weight = haul_min(n, 512) >> (h->waste_q16 > HAUL_ONE / 20 ? 2 : 0); // what is spurious is known late
	u32 floor = ((u64)h->floor_q16 * (512 - weight) + (u64)share * weight) >> 9;
	floor = haul_min(floor, HAUL_LOSS_MAX_Q16);
	bool ours = h->loss_q16 > floor + haul_margin_q16(floor) && share < h->loss_q16;
	h->floor_q16 = floor;
	h->floor_us = a->now_us;
	h->loss_q16 = floor;
	haul_enter(h, HAUL_CRUISE);
	if (ours)
		h->rate = haul_min(h->rate, haul_scale(haul_needed(h, h->delivery), 62259)); // 0.95
	h->calm = 0;
	h->low_us = a->now_us; // if the path was not empty now, it was tried
	if (haul_is_crowded(h, HAUL_PROBE_GAIN_Q16))
		haul_meet_rival(h, a);
	return 0;
}

static inline void haul_leave_rival(struct haul *h, const struct haul_ack *a)
{
	haul_enter(h, HAUL_CRUISE);
	h->rate = haul_rate_of(h->window, a->mss, a->srtt_us);
	h->bw = h->bw_before = h->rate;
	h->rival_us = a->now_us;
	h->calm = h->full = 0;
	h->over = false;
}

GLOBAL int haul_rival_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->mode == HAUL_TRIAL) {
		if (++h->phase < 3)
			return 0;
		if (h->queue_us < haul_congested_us(h, 2)) {
			haul_leave_rival(h, a);
		} else {
			haul_enter(h, HAUL_RIVAL);
			h->rival_us = a->now_us;
			h->cut_lost = a->lost;
		}
		return 0;
	}
	if (h->queue_us < haul_congested_us(h, 1)) {
		if (++h->calm >= 8)
			haul_leave_rival(h, a);
	} else {
		h->calm = 0;
	}
	return 0;
}

// The largest delivery of the last epochs; where the queue was never empty, it
// is what the path carries, and nothing else counts.
GLOBAL int haul_see_bw(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 busy_us = 2000 + haul_target_us(h->min_rtt_us, h->rate, a->mss) / 4 + h->noise_us;
	if (!h->limited && !h->was_limited && h->queue_low_us > busy_us) {
		h->bw = h->bw_before = h->delivery;
		h->period = 0;
		return 0;
	}
	if (h->delivery > h->bw)
		h->bw = h->delivery;
	if (++h->period >= HAUL_BW_EPOCHS && !h->limited) {
		h->bw_before = h->bw;
		h->bw = h->delivery;
		h->period = 0;
	}
	return 0;
}

// A sender short of CPU paces late, and sends less than it wants although the
// window has room. It then paces faster, until what it sends is the rate.
static inline void haul_see_lateness(struct haul *h, const struct haul_ack *a, u64 sent)
{
	if (h->mode != HAUL_CRUISE || h->limited || h->got < HAUL_LATE_PACKETS || a->in_flight + a->in_flight / 8 > h->cwnd) {
		h->late = 0;
		return;
	}
	if (sent >= haul_scale(h->rate, 63570)) // 0.97
		h->late /= 2;
	else if (sent < haul_scale(h->rate, 60293) && h->late < HAUL_LATE_MAX) // 0.92
		h->late++;
}

static inline u32 haul_queue_us(const struct haul *h, u32 rtt_us)
{
	return rtt_us != ~0u && rtt_us > h->min_rtt_us ? rtt_us - h->min_rtt_us : 0;
}

GLOBAL int haul_end_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 us = haul_since(a->now_us, h->epoch_us);
	u32 delivered = haul_counted(a->delivered, h->epoch_delivered);
	u32 spurious = haul_counted(a->spurious, h->epoch_spurious);
	s32 net = (s32)(a->lost - h->epoch_lost - spurious);
	u32 lost = net > 0 ? net : 0;

	h->took_us = us;
	h->got = delivered;
	h->missed = lost;
	h->queue_before_us = h->queue_us;
	// More than was sent comes only out of a queue, or over a path that has just
	// become shorter: the path does not carry it.
	h->delivery = haul_min(haul_rate_of(delivered, a->mss, us), haul_max(h->pace, h->pace_before));
	h->pace_before = h->pace;
	haul_pool_loss(h, net, delivered, a->delivered);
	u32 waste = haul_min(((u64)spurious << 16) / (delivered + 1), HAUL_ONE);
	h->waste_q16 = (7 * h->waste_q16 + waste) / 8;
	h->queue_low_us = haul_queue_us(h, h->rtt_low_us);
	if (h->rtt_low_us != ~0u)
		h->queue_us = haul_queue_us(h, haul_max(h->rtt_low_us, haul_min(h->recent_low_us, h->quarter_low_us)));
	else if (lost > delivered / 8) // all that returns was sent again: it took too long
		h->queue_us = haul_max(h->queue_us, haul_congested_us(h, 4) + 1);
	// Whoever could not send what the rate allows does not see the path's.
	u64 sent = haul_rate_of(haul_counted(a->sent, h->epoch_sent), a->mss, us);
	bool limited = h->limited || sent < haul_scale(h->pace, 55706); // 0.85
	haul_see_lateness(h, a, sent);
	if (h->mode != HAUL_STARTUP)
		haul_see_bw(h, a);
	h->was_limited = limited;
	h->sent = sent;

	// Most of what is sent is lost, or sent in vain: go by what arrives.
	h->vain = lost > delivered + delivered / 2 ? h->vain + 1 : 0;
	if (h->vain >= 2 && h->mode != HAUL_STARTUP) {
		h->vain = 0;
		h->rate = haul_min(h->rate, h->delivery);
		h->bw = h->bw_before = h->delivery;
		h->loss_q16 = h->floor_q16;
		haul_enter(h, HAUL_CRUISE);
		haul_begin_epoch(h, a);
		return 0;
	}
	switch (h->mode) {
	case HAUL_STARTUP:
		haul_startup_epoch(h, a);
		break;
	case HAUL_DRAIN:
		h->rate = haul_max(h->rate, haul_needed(h, h->delivery));
		if (++h->phase >= 4)
			haul_enter(h, HAUL_CRUISE);
		break;
	case HAUL_CRUISE:
		haul_cruise_epoch(h, a);
		break;
	case HAUL_PROBE:
		haul_probe_epoch(h, a);
		break;
	default:
		haul_rival_epoch(h, a);
	}
	haul_begin_epoch(h, a);
	return 0;
}

GLOBAL int haul_see_rtt(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 rtt = a->rtt_us;
	if (!rtt)
		return 0;
	if (rtt < h->rtt_low_us)
		h->rtt_low_us = rtt;
	if (haul_since(a->now_us, h->min_rtt_start_us) > (h->mode == HAUL_RIVAL ? 6 : 2) * HAUL_PROBE_INTERVAL_US) {
		h->min_rtt_us = h->min_rtt_next_us;
		h->min_rtt_next_us = rtt;
		h->min_rtt_start_us = a->now_us;
	}
	if (rtt < h->min_rtt_next_us)
		h->min_rtt_next_us = rtt;
	if (rtt < h->min_rtt_us)
		h->min_rtt_us = rtt;
	if (rtt <= h->min_rtt_us + h->min_rtt_us / 128 + 1000)
		h->low_us = a->now_us;

	if (rtt < h->quarter_low_us)
		h->quarter_low_us = rtt;
	h->quarter_samples++;
	h->quarter_sum_us += rtt;
	if (h->quarter_samples < HAUL_QUARTER_SAMPLES || haul_since(a->now_us, h->quarter_start_us) < h->min_rtt_us / 4)
		return 0;
	u32 spread_us = h->quarter_sum_us / h->quarter_samples - h->quarter_low_us;
	h->noise_us = h->noise_us ? (7ull * h->noise_us + spread_us / 3) / 8 : spread_us / 3;
	h->recent_low_us = h->quarter_low_us;
	h->quarter_low_us = ~0u;
	h->quarter_samples = 0;
	h->quarter_sum_us = 0;
	h->quarter_start_us = a->now_us;
	if (h->mode == HAUL_STARTUP && h->recent_low_us > h->min_rtt_us + haul_max(8000, h->min_rtt_us / 8) + h->noise_us)
		haul_leave_startup(h);
	return 0;
}

// A probe sends so much less for a round trip that the queue gets empty.
static inline u32 haul_probe_gain_q16(const struct haul *h)
{
	u32 less = ((u64)h->queue_us << 17) / (h->min_rtt_us + 1);
	return HAUL_ONE - haul_max(HAUL_ONE - HAUL_PROBE_GAIN_Q16, haul_min(less, HAUL_ONE / 3));
}

// Pace and window by what is known now.
GLOBAL int haul_apply(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 gain = HAUL_ONE;
	u32 rtt = h->min_rtt_us;
	u64 window;

	if (h->mode == HAUL_RIVAL || h->mode == HAUL_TRIAL) {
		u32 w = h->mode == HAUL_TRIAL ? h->window / 2 : h->window;
		h->cwnd = window_bound(haul_max(w, HAUL_WINDOW_MIN), a->clamp);
		h->pace = haul_scale(haul_rate_of(h->cwnd, a->mss, a->srtt_us), 81920);
		return 0;
	}
	if (h->mode == HAUL_STARTUP)
		gain = HAUL_STARTUP_GAIN_Q16;
	else if (h->mode == HAUL_DRAIN)
		gain = HAUL_DRAIN_GAIN_Q16;
	else if (h->mode == HAUL_PROBE && h->phase == 0)
		gain = haul_probe_gain_q16(h);
	else
		gain += HAUL_ONE / 8 * h->late;
	h->pace = haul_max(haul_scale(h->rate, gain), a->mss);

	// What the path holds, with what it jitters, and half as much again.
	u32 jitter = a->srtt_us > h->min_rtt_us + h->queue_us ? a->srtt_us - h->min_rtt_us - h->queue_us : 0;
	window = haul_segments(h->rate, rtt + haul_min(jitter, rtt), a->mss);
	window = h->mode == HAUL_STARTUP ? 3 * window : window + window / 2;
	h->cwnd = window_bound(haul_max(window, HAUL_WINDOW_MIN) + 3 * haul_max(2, haul_min(h->pace / 1000, 65536) / (a->mss ? a->mss : 1)), a->clamp);
	return 0;
}

static inline void haul_init(struct haul *h, const struct haul_ack *a, u32 cwnd)
{
	__builtin_memset(h, 0, sizeof *h);
	h->min_rtt_us = a->srtt_us;
	h->cwnd = cwnd;
	h->quarter_low_us = h->recent_low_us = ~0u;
	h->quarter_start_us = h->last_ack_us = h->low_us = h->floor_us = h->min_rtt_start_us = a->now_us;
	if (!a->srtt_us)
		h->min_rtt_us = ~0u;
	h->min_rtt_next_us = h->min_rtt_us;
	haul_begin_epoch(h, a);
	h->bw = h->rate = haul_rate_of(cwnd, a->mss, a->srtt_us ? a->srtt_us : 1000);
	h->pace = haul_scale(h->rate, HAUL_STARTUP_GAIN_Q16);
}

static inline void haul_update(struct haul *h, const struct haul_ack *a)
{
	u32 silent = haul_since(a->now_us, h->last_ack_us);
	h->last_ack_us = a->now_us;
	h->limited |= a->limited;
	haul_see_rtt(h, a);
	if (a->timeout != h->timeout || silent > 2 * a->srtt_us + 100000) {
		// What was measured across a silence says nothing.
		h->timeout = a->timeout;
		haul_begin_epoch(h, a);
	}
	if (h->mode == HAUL_STARTUP && a->sample_us && a->sample_delivered) {
		u64 bw = haul_rate_of(a->sample_delivered, a->mss, a->sample_us);
		if (bw > h->bw) {
			h->bw = bw;
			h->rate = haul_needed(h, bw);
		}
	}
	if (h->mode == HAUL_DRAIN && a->in_flight <= haul_segments(h->rate, h->min_rtt_us + h->min_rtt_us / 16, a->mss)) {
		haul_enter(h, HAUL_CRUISE);
		haul_begin_epoch(h, a);
	}
	if (h->mode == HAUL_RIVAL) {
		bool try = haul_since(a->now_us, h->rival_us) > 2 * HAUL_RIVAL_MIN_US;
		// Random loss of the path's own is none of the rival's.
		u32 lost = haul_counted(a->lost, h->cut_lost);
		if (lost && haul_since(a->now_us, h->cut_us) > a->srtt_us + a->srtt_us / 2) {
			bool congestion = h->floor_q16 < HAUL_LOSS_SMALL_Q16 || h->loss_q16 > h->floor_q16 + haul_margin_q16(h->floor_q16);
			h->cut_lost = a->lost;
			if (congestion) {
				haul_cubic_cut(h, a->now_us);
				try = haul_since(a->now_us, h->rival_us) > HAUL_RIVAL_MIN_US;
			}
		} else if (lost) {
			h->cut_lost = a->lost;
		}
		if (try) {
			haul_enter(h, HAUL_TRIAL);
			haul_begin_epoch(h, a);
		} else {
			h->window = haul_cubic(h, a->now_us, a->srtt_us);
		}
	}
	// A round trip is over when something sent in it has arrived. Where packets
	// overtake each other that may be too soon, or nothing tells for long.
	u32 took_us = haul_since(a->now_us, h->epoch_us), rtt_us = h->min_rtt_us;
	bool over = a->sample_us && (s32)(a->prior_delivered - h->round_delivered) >= 0;
	if ((over && took_us >= rtt_us - rtt_us / 8) || took_us > (h->rounds + 2u) * a->srtt_us) {
		h->round_delivered = a->delivered;
		h->rounds++;
		u32 n = haul_counted(a->delivered, h->epoch_delivered);
		if (n >= HAUL_EPOCH_PACKETS || h->rounds >= HAUL_EPOCH_ROUNDS || h->mode == HAUL_STARTUP)
			haul_end_epoch(h, a);
	}
	haul_apply(h, a);
}
