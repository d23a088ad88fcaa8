// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul's law: how the rate follows what arrives and the length of the queue.
// Begins with the arithmetic that all of haul shares.
#pragma once

static inline u64 haul_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 haul_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

// The age of a time, an hour at most; 0 for a time in the future.
static inline u32 haul_since(u64 now_us, u64 then_us)
{
	return now_us > then_us ? haul_min(now_us - then_us, 3600000000u) : 0;
}

// The increase of a counter; 0 if it decreased.
static inline u32 haul_counted(u32 now, u32 then)
{
	s32 d = (s32)(now - then);
	return d < 0 ? 0 : d;
}

// How long the epoch under way has taken.
static inline u32 haul_took_us(const struct haul *h, const struct haul_ack *a)
{
	return haul_since(a->now_us, h->epoch_us);
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

// The bits of a number; 0 has none. BPF has no instruction for it: all bits below the
// highest are set, and then counted.
static inline u32 haul_bits(u64 n)
{
	n |= n >> 1, n |= n >> 2, n |= n >> 4, n |= n >> 8, n |= n >> 16, n |= n >> 32;
	n -= n >> 1 & 0x5555555555555555;
	n = (n & 0x3333333333333333) + (n >> 2 & 0x3333333333333333);
	return ((n + (n >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
}

// Square and cube roots, rounded down, by Newton's method from a power of two that
// is not below. No loop: the verifier would follow all its ways.
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

// The sending rate with which some rate arrives, past the path's own loss.
static inline u64 haul_made_up(u64 delivery, u32 floor_q16)
{
	return haul_bound_rate((haul_bound_rate(delivery) << 16) / (HAUL_ONE - haul_min(floor_q16, HAUL_LOSS_MAX_Q16)));
}

// The longest wait of the kernel's timer in an outage, in ms: 4 s, or longer on a slow path,
// where that would repeat what is on the way: two round trips, or twice the time since the
// last acknowledgement. Packets that were sent again may leave no other measure.
static inline u32 haul_rto_max_ms(const struct haul *h, u32 srtt_us, u64 now_us)
{
	return haul_min(haul_max(haul_max(4000, srtt_us / 500), haul_since(now_us, h->last_ack_us) / 500), 120000);
}

// Three packets' time at a rate: a shorter queue looks like none.
static inline u32 haul_grain_us(u64 rate, u32 mss)
{
	return haul_min(3000000ull * (mss ? mss : 1) / (rate ? rate : 1), 1000000);
}

static inline u32 haul_queue_us(const struct haul *h, u32 rtt_us)
{
	return rtt_us != ~0u && rtt_us > h->min_rtt_us ? rtt_us - h->min_rtt_us : 0;
}

// A queue that the target stays below at any rate.
static inline u32 haul_usual_us(u32 min_rtt_us)
{
	return haul_max(14000, min_rtt_us / 16);
}

// The target of the queue. It is longer for a slower flow, so that flows with the
// same queue reach the same rate. It has a small part of the round trip, with which
// the rate grows without a queue. It is less if losses have shown a shorter
// buffer.
static inline u32 haul_target_us(u32 min_rtt_us, u64 rate, u32 mss, u32 room_us)
{
	u64 per_second = rate / (mss ? mss : 1);
	u64 own = haul_sqrt(156250000000ull / (per_second ? per_second : 1)); // 1.25 sqrt(0.1 s / rate)
	// Its growth slows, since the queue must stay short, but never stops.
	u32 usual = haul_usual_us(min_rtt_us);
	u64 target = 1000 + min_rtt_us / 64 + own * usual / (own + usual);
	target = target * haul_min(room_us, usual) / usual;
	return haul_max(target, haul_grain_us(rate, mss) / 2);
}

// Whether marks have shortened the queue in the last so many microseconds.
static inline bool haul_marked(const struct haul *h, u64 now_us, u32 us)
{
	return h->mark_us && haul_since(now_us, h->mark_us) < us;
}

// The largest delivery of late.
static inline u64 haul_bw(const struct haul *h)
{
	return haul_max(h->bw, h->bw_before);
}

static inline u32 haul_queue_target_us(const struct haul *h, const struct haul_ack *a)
{
	u32 room = haul_marked(h, a->now_us, HAUL_PROBE_INTERVAL_US) ? haul_min(h->room_us, h->mark_room_us) : h->room_us;
	if (!HAUL_RULE(mean) || !h->mean)
		return haul_target_us(h->min_rtt_us, h->rate, a->mss, room) + h->noise_us;
	// A flow that gets less than the others has a longer target.
	u64 more_q16 = (haul_bound_rate(h->mean) << 16) / haul_max(haul_bw(h), 1);
	more_q16 = haul_min(haul_max(more_q16, HAUL_ONE / 4), 4 * HAUL_ONE);
	return (haul_target_us(h->min_rtt_us, h->mean, a->mss, room) * more_q16 >> 16) + h->noise_us;
}

// A queue below this counts as empty.
static inline u32 haul_empty_us(const struct haul *h, const struct haul_ack *a)
{
	return 250 + h->min_rtt_us / 64 + haul_grain_us(h->bw, a->mss) / 3 + 2 * h->noise_us;
}

// A queue from which a loss may be an overflow. The path has carried twice of a shorter
// one, or jitter makes it.
static inline u32 haul_overflow_us(const struct haul *h, const struct haul_ack *a)
{
	u32 carried = HAUL_RULE(overflow) ? h->passed_us / 2 : 0;
	return haul_max(haul_empty_us(h, a), carried);
}

// A queue that means congestion.
static inline u32 haul_congested_us(const struct haul *h)
{
	return haul_max(20000, h->min_rtt_us / 8) + h->noise_us;
}

// The sending rate with which some rate arrives.
static inline u64 haul_needed(const struct haul *h, u64 delivery)
{
	return haul_made_up(delivery, h->floor_q16);
}

// Whether a time of the host's clock at which all its flows act together has passed
// in the last epoch.
static inline bool haul_slot(const struct haul *h, const struct haul_ack *a, u32 bits)
{
	return a->now_us >> bits != h->epoch_us >> bits;
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
	h->rtt_high_us = 0;
	h->rounds = 0;
	h->limited = false;
}

// Whether the flow begins with what the path carried.
static inline bool haul_jumps(const struct haul *h)
{
	return h->mode == HAUL_STARTUP && (h->resume == HAUL_UNVALIDATED || h->resume == HAUL_VALIDATING);
}

static inline void haul_enter(struct haul *h, u8 mode)
{
	h->mode = mode;
	h->phase = h->flat = 0;
}

static inline void haul_cruise(struct haul *h, const struct haul_ack *a, u64 delivery)
{
	h->bw = h->bw_before = h->full_bw = delivery;
	h->period = 0;
	h->rate = haul_needed(h, delivery);
	h->excess_us = 0;
	h->low_us = a->now_us;
	haul_enter(h, HAUL_CRUISE);
}

// The largest delivery of the last epochs. If the queue was never empty in an epoch,
// that epoch's delivery is the path's capacity, and counts alone.
GLOBAL int haul_see_bw(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u32 busy_us = 2000 + haul_target_us(h->min_rtt_us, h->rate, a->mss, h->room_us) / 4 + h->noise_us;
	bool busy = HAUL_RULE(busy) && !h->limited && !h->was_limited && haul_queue_us(h, h->rtt_low_us) > busy_us;
	h->bw = haul_max(h->bw, h->delivery);
	if (busy || (++h->period >= HAUL_BW_EPOCHS && !h->limited)) {
		h->bw_before = busy ? h->delivery : h->bw;
		h->bw = h->delivery;
		h->period = 0;
	}
	return 0;
}

// A sender short of CPU paces late, and sends less than the rate although the window
// has room. It then paces faster, until it sends at the rate. With few packets in an epoch,
// bursts blur what is sent.
static inline void haul_see_lateness(struct haul *h, const struct haul_ack *a, u64 sent)
{
	if (!HAUL_RULE(late) || h->mode != HAUL_CRUISE || h->limited || h->got < HAUL_LOSS_PACKETS / 4 || a->in_flight + a->in_flight / 8 > h->cwnd) {
		h->late = 0;
		return;
	}
	bool kept = sent >= haul_scale(h->rate, 63570), late = sent < haul_scale(h->rate, 60293); // 0.97, 0.92
	h->late = kept ? h->late / 2 : haul_min(h->late + late, HAUL_LATE_MAX);
}

GLOBAL int haul_cruise_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	u32 target = haul_queue_target_us(h, a), queue = h->queue_us;
	u64 base = haul_needed(h, haul_bw(h));
	// The loop has a delay of 1.5 T: stable from 0.95 T, without overshoot from 4.1 T.
	// docs/design/haul.md has the argument.
	u32 horizon = 3 * haul_min(haul_max(h->min_rtt_us, haul_took_us(h, a)), HAUL_RTT_MAX_US);

	u32 busy_us = haul_since(a->now_us, h->low_us);
	// All flows of a host act at once, or the others' traffic hides this flow's
	// effect; also now, if the flows of others empty the queue.
	bool due = busy_us > HAUL_PROBE_INTERVAL_US / 2 ||
		   (h->floor_q16 && haul_since(a->now_us, p->floor.looked_us) > HAUL_PROBE_INTERVAL_US / 2);
	if (HAUL_RULE(probe) && ((due && haul_slot(h, a, HAUL_SLOT + 1)) || busy_us > 2 * HAUL_PROBE_INTERVAL_US)) {
		haul_probe(h);
		return 0;
	}

	if (queue > target) {
		u32 excess = queue - target, less = haul_min(((u64)excess << 16) / horizon, HAUL_ONE / 2);
		h->empty = 0;
		if (!h->excess_us) {
			h->full_bw = h->rate;
			h->ref = h->yielded_us = 0;
		} else {
			// In its first epoch the arrivals are a mixture.
			h->ref = haul_max(h->ref, h->delivery);
		}
		h->excess_us = haul_max(h->excess_us, excess);
		// The queue does not shrink, or the flow has yielded much.
		bool stubborn = h->yielded_us > 2 * h->excess_us + h->min_rtt_us / 32 + 1000;
		// The shortfall of arrivals against sending: the floor may be too high.
		u64 came = haul_max(h->delivery, 1);
		u64 arrives = haul_scale(haul_scale(base, HAUL_ONE - less), HAUL_ONE - haul_min(h->loss_q16, HAUL_ONE));
		h->yielded_us += haul_min(haul_min(haul_took_us(h, a), HAUL_RTT_MAX_US) * (came - haul_min(arrives, came)) / came, 1000000);
		u32 since = haul_since(a->now_us, h->test_us);
		if (HAUL_RULE(test) && stubborn && since > HAUL_PROBE_INTERVAL_US / 5 && since > HAUL_TEST_ROUNDS * a->srtt_us) {
			haul_test_all(h, a, p, h->ref);
			return 0;
		}
		h->rate = haul_scale(base, HAUL_ONE - less);
		// What does not help is not done for long: 0.75 of what arrives, at least.
		h->rate = haul_max(h->rate, haul_scale(haul_needed(h, h->ref), 49152));
		return 0;
	}
	h->excess_us = 0;
	if (h->limited)
		return 0;
	// Room: send a little more, towards the target queue, and the more so the longer no
	// queue shows: by 1/64 to 1/8 in a round trip.
	bool empty = queue <= haul_empty_us(h, a);
	h->empty = empty ? haul_min(h->empty + h->rounds, 12) : 0;
	u32 step = HAUL_ONE / 64 << (HAUL_RULE(steps) ? h->empty / 4 : 0);
	if (haul_marked(h, a->now_us, HAUL_PROBE_INTERVAL_US)) // at most the target in a round trip
		step = haul_min(step, ((u64)target << 15) / (h->min_rtt_us + 1));
	u32 more = haul_max(((u64)(target - queue) << 16) / horizon, empty ? step : HAUL_ONE / 512);
	if (haul_took_us(h, a) > h->min_rtt_us + h->min_rtt_us / 2)
		more = haul_min(more, ((u64)target << 17) / haul_took_us(h, a)); // in a long epoch that would be a long queue
	u64 next = haul_scale(base, HAUL_ONE + more);
	// The additional data, sent without a queue, has not arrived yet.
	h->rate = empty ? haul_max(next, haul_min(h->rate, haul_scale(base, 81920))) : next;
	// Up to the others, by at most 1/32.
	u64 less = haul_max(HAUL_RULE(mean_grow) ? haul_bound_rate(h->mean) : 0, base) - base;
	h->rate = haul_scale(h->rate, HAUL_ONE + haul_min((less << 11) / haul_max(base, 1), HAUL_ONE / 32));
	return 0;
}
