// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a connection begins: start-up, or what the path carried (Careful Resume, RFC 9959).
#pragma once

// A queue that ends start-up.
static inline u32 haul_startup_queue_us(u32 min_rtt_us)
{
	return haul_max(8000, min_rtt_us / 8);
}

// The factor by which start-up grows in a round trip; 1 while there may be a queue.
static inline u32 haul_startup_factor(const struct haul *h, const struct haul_ack *a)
{
	if (!HAUL_RULE(triple) || !h->min_rtt_start_us || h->min_rtt_us < HAUL_LONG_RTT_US)
		return 2;
	u32 low = h->quarter_samples < HAUL_EPOCH_PACKETS / 12 ? h->recent_low_us : haul_min(h->recent_low_us, h->quarter_low_us);
	if (low != ~0u && low > h->min_rtt_us + haul_max(4000, h->min_rtt_us / 64) + h->noise_us)
		return h->got < HAUL_STARTUP_PACKETS ? 2 : 1; // of fewer packets the queue is hardly this flow's
	bool lossy = h->seen_lost || h->step_lost || h->missed || a->lost != h->epoch_lost;
	return lossy || h->others || h->flat ? 2 : 3;
}

GLOBAL int haul_leave_startup(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	h->rate = haul_needed(h, h->bw);
	haul_test(h, a, h->bw);
	return 0;
}

// Start-up is over: cruise at some rate of arrival, and look at the floor.
static inline void haul_settle(struct haul *h, const struct haul_ack *a, u64 delivery)
{
	haul_cruise(h, a, delivery);
	haul_forget_loss(h);
	h->cut_us = a->now_us;
	h->loss_q16 = h->floor_q16;
	if (h->floor_q16)
		haul_probe(h);
}

GLOBAL int haul_startup_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	if (h->phase < 3 && (++h->phase == 3 || h->got >= 8)) // of the first window the path may have carried little
		h->bw = haul_min(h->bw, haul_max(haul_startup_factor(h, a), 2) * h->delivery);
	h->bw = haul_max(h->bw, h->delivery);
	bool lossy = h->got + h->missed >= HAUL_STARTUP_PACKETS &&
		     haul_share_q16(h->missed, h->got) > h->floor_q16 + h->floor_q16 / 4 + HAUL_ONE / 8;
	if (h->limited && !lossy)
		return 0;
	if (h->bw >= haul_scale(h->full_bw, HAUL_STARTUP_GROWTH_Q16)) {
		h->full_bw = h->bw;
		h->flat = 0;
		// Loss of the round before, while arrivals still grow, is the path's own.
		// Beside others the growth may be at their expense.
		if (!h->others && h->queue_us <= haul_empty_us(h, a) && h->step_got >= HAUL_EPOCH_PACKETS) {
			h->seen_lost += h->step_lost, h->seen_got += h->step_got;
			// As if the rate of the last round alone had lost: an overflow.
			bool sudden = HAUL_RULE(start_before) && h->seen_lost - h->step_lost < h->step_lost / 4;
			if (HAUL_RULE(start_proof) && h->seen_lost >= HAUL_FLOOR_LOSSES && !sudden)
				haul_prove_floor(h, a, p, h->seen_lost, h->seen_got);
		}
		h->step_lost = h->missed;
		h->step_got = h->got;
	} else if (lossy || ++h->flat >= HAUL_FLAT_ROUNDS) {
		if (HAUL_RULE(start_loss) && lossy) // what was sent more was lost: so much is carried
			h->bw = haul_min(h->bw, h->delivery);
		haul_leave_startup(h, a);
		return 0;
	}
	h->rate = haul_needed(h, h->bw);
	return 0;
}

// Half of the first window has arrived, and more is on the way: the round trip is known.
static inline bool haul_reconnoitred(const struct haul *h, const struct haul_ack *a)
{
	return h->resume == HAUL_RECONNAISSANCE && h->mode == HAUL_STARTUP && h->min_rtt_start_us && a->in_flight &&
	       a->delivered >= HAUL_RESUME_PACKETS;
}

// haul_resume begins with what the path carried, if it is remembered, the round trip is
// the same, and no other connection of the host uses it, or has just begun to. RFC 9959
// takes a round trip of half to ten times the former for the same path. For haul one
// longer than start-up permits is a queue, or another path.
GLOBAL int haul_resume(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	h->resume = HAUL_NORMAL;
	u32 rtt = h->min_rtt_us, before = haul_min(p->carried.rtt_us, HAUL_RTT_MAX_US);
	u64 carried = haul_bound_rate(p->carried.rate);
	bool fresh = haul_since(a->now_us, p->carried.seen_us) < HAUL_CARRIED_US;
	bool same = rtt >= before / 2 && rtt <= before + haul_startup_queue_us(before);
	bool alone = !h->others && haul_since(a->now_us, p->resume_us) > 3 * haul_min(rtt, HAUL_RTT_MAX_US);
	if (!HAUL_RULE(resume) || !fresh || !same || !alone || carried / 2 <= 2 * h->bw)
		return 0;
	p->resume_us = a->now_us;
	p->floor.share_q16 = haul_max(p->floor.share_q16, haul_min(p->carried.floor_q16, HAUL_LOSS_MAX_Q16));
	p->floor.most_q16 = haul_max(p->floor.most_q16, p->floor.share_q16);
	h->floor_q16 = p->floor.share_q16;
	h->most_q16 = p->floor.most_q16;
	h->loss_q16 = h->floor_q16;
	h->resume = HAUL_UNVALIDATED;
	h->ref = carried;
	h->rate = haul_needed(h, carried / 2);
	// Lost packets are on the way for a quarter of a round trip more (RACK, RFC 8985).
	h->cwnd = haul_min(a->in_flight, WINDOW_MAX) + haul_segments(h->rate, rtt + rtt / 4, a->mss);
	haul_begin_epoch(h, a);
	return 0;
}

// Safe Retreat: the path does not carry the jump. What arrives of it is what the path
// carries now. haul sends half of that until what is on the way fits.
GLOBAL int haul_retreat(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u64 arrives = haul_rate_of(haul_counted(a->delivered, h->epoch_delivered), a->mss, haul_since(a->now_us, h->epoch_us));
	h->resume = HAUL_RETREAT;
	h->bw = haul_max(haul_min(arrives, h->ref), a->mss);
	haul_leave_startup(h, a);
	return 0;
}

// Whether more of some packets was lost than the path loses by itself.
static inline bool haul_jump_lossy(const struct haul *h, u32 lost, u32 got)
{
	u64 all = (u64)lost + got, own = all * h->floor_q16 >> 16;
	return lost > own + 4 * haul_sqrt(own) + all / 64 + HAUL_FLOOR_LOSSES / 2;
}

GLOBAL int haul_resume_epoch(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	bool began = h->resume == HAUL_VALIDATING;
	if (began && haul_jump_lossy(h, h->missed, h->got)) {
		haul_retreat(h, a);
		return 0;
	}
	// Flags of the first window tell nothing of the jump.
	bool limited = began ? h->was_limited
			     : haul_counted(a->sent, h->epoch_sent) < haul_segments(h->rate, haul_took_us(h, a), a->mss) / 4 * 3;
	if (!began) {
		h->resume = HAUL_VALIDATING;
		h->phase = h->flat = 0;
		h->quarter_low_us = h->recent_low_us = ~0u;
		h->quarter_samples = 0;
		h->quarter_sum_us = 0;
		h->quarter_start_us = a->now_us;
	}
	if (limited) { // it did not send so much: only what arrives is proved
		h->phase = 0;
		h->rate = haul_needed(h, haul_min(haul_max(2 * h->delivery, h->ref / 2), h->ref));
		if (++h->flat >= HAUL_ROUNDS) {
			h->resume = HAUL_NORMAL;
			h->bw = h->delivery;
			h->full_bw = 0;
			h->rate = haul_needed(h, h->bw);
			haul_enter(h, HAUL_STARTUP);
			h->phase = 3;
		}
		return 0;
	}
	h->rate = haul_needed(h, h->ref);
	if (h->phase++ >= 2) { // what was sent at the whole rate has arrived
		h->resume = HAUL_NORMAL;
		haul_settle(h, a, h->delivery);
	}
	return 0;
}
