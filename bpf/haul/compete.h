// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Beside a rival: the test of a queue, and CUBIC's window (RFC 9438).
#pragma once

// What CUBIC's window is away from W_max, so long before or after K: C = 0.4 segments/s^3, so
// 0.4e-9 per ms^3.
static inline u64 haul_cubic_away(u64 ms)
{
	ms = haul_min(ms, 400000);
	return ms * ms / 1000 * ms / 2500000;
}

// CUBIC's window, RFC 9438, by the time since the last cut.
GLOBAL u32 haul_cubic(const struct haul *h, u64 now_us, u32 rtt_us)
{
	HAUL_ARGS(h);
	u64 t_us = haul_min(haul_since(now_us, h->cut_us), 200000000), t_ms = t_us / 1000;
	u64 change = haul_cubic_away(t_ms > h->k_ms ? t_ms - h->k_ms : h->k_ms - t_ms), drop = haul_cubic_away(h->k_ms + 1); // K is rounded down
	u64 cubic = t_ms > h->k_ms ? h->window_max + change : h->window_max - haul_min(change, h->window_max);
	// Reno's: 3 (1 - 0.7) / (1 + 0.7) = 0.53 segments for each round trip.
	u64 reno = haul_max(h->window_max - haul_min(drop, h->window_max), HAUL_WINDOW_MIN) + t_us * 529 / 1000 / haul_max(rtt_us, 1);
	return window_bound(haul_max(cubic, reno), WINDOW_MAX);
}

static inline void haul_cubic_start(struct haul *h, u64 now_us, u32 window)
{
	h->cwnd = h->window_max = haul_max(window, HAUL_WINDOW_MIN);
	h->k_ms = 0;
	h->cut_us = now_us;
}

GLOBAL int haul_cubic_cut(struct haul *h, u64 now_us)
{
	HAUL_ARGS(h);
	u32 w = h->cwnd;
	h->window_max = w < h->window_max ? (u64)w * 17 / 20 : w; // fast convergence
	h->cwnd = haul_max((u64)w * 45876 >> 16, HAUL_WINDOW_MIN); // 0.7
	// K = cbrt((W_max - cwnd) / C)
	u64 drop = h->window_max > h->cwnd ? h->window_max - h->cwnd : 0;
	h->k_ms = haul_cbrt(drop * 2500000000ull);
	h->cut_us = now_us;
	return 0;
}

// Packets lost now were on the way when the flow slowed down: it is the same event.
static inline bool haul_just_cut(const struct haul *h, const struct haul_ack *a)
{
	return haul_since(a->now_us, h->cut_us) < a->srtt_us + a->srtt_us / 2;
}

static inline void haul_forget_loss(struct haul *h)
{
	h->seen_lost = h->seen_got = h->seen_lossy = 0;
}

// Loss that is not the path's own, or marks: CUBIC's window decides, until a test
// shows that there is no rival.
GLOBAL int haul_congestion(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u32 queue = haul_max(h->queue_high_us, haul_queue_us(h, h->rtt_high_us));
	if (HAUL_RULE(room) && queue > haul_overflow_us(h, a)) {
		h->room_us = queue / 2;
		h->room_seen_us = a->now_us;
	}
	if (h->mode != HAUL_COMPETE) {
		// Not what arrived in this epoch: it may be of a lower rate before. Beside the host's
		// other flows the largest is one that they did not leave.
		u64 delivery = h->others ? h->delivery : haul_bw(h);
		u32 window = haul_segments(haul_needed(h, delivery), a->srtt_us, a->mss);
		if (haul_since(a->now_us, h->cut_us) > HAUL_PROBE_INTERVAL_US) {
			haul_forget_loss(h);
			h->cuts = 0;
			h->cut_delivery = 0;
		}
		h->cut_delivery = haul_max(delivery, h->cut_delivery);
		h->test_us = a->now_us;
		haul_enter(h, HAUL_COMPETE);
		haul_cubic_start(h, a->now_us, window);
	}
	haul_cubic_cut(h, a->now_us);
	h->cuts = haul_min(h->cuts + 1, 2);
	h->loss_q16 = h->floor_q16;
	return 0;
}

// Tests whether this host's flows cause the queue. The flow sends half of the
// arrival rate for as long as that shortens the round trip.
static inline void haul_test(struct haul *h, const struct haul_ack *a, u64 ref)
{
	h->from = h->mode;
	h->ref = haul_max(ref, a->mss);
	h->before_us = h->min_rtt_us + h->queue_us;
	h->drain_low_us = h->before_us;
	h->test_us = a->now_us;
	h->excess_us = 0;
	haul_enter(h, HAUL_DRAIN);
}

// The host's other connections to the same destination join in.
static inline void haul_test_all(struct haul *h, const struct haul_ack *a, struct haul_path *p, u64 ref)
{
	haul_test(h, a, ref);
	p->test_us = a->now_us;
}

GLOBAL int haul_drain_epoch(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	// Data sent before the test still fills the queue, so the arrival rate is the
	// path's capacity now.
	bool full = h->rtt_low_us != ~0u && h->rtt_low_us > h->min_rtt_us + haul_empty_us(h, a);
	if (HAUL_RULE(narrower) && h->phase == 0 && h->from != HAUL_STARTUP && h->delivery < h->ref / 2 && full)
		h->ref = haul_max(h->delivery + h->delivery / 16, h->ref / 16);
	bool seen = ++h->phase >= 2 && h->rtt_low_us != ~0u, empty = seen && !full;
	if (seen) {
		// After start-up the queue is this flow's, and its output is the path's capacity.
		if (HAUL_RULE(start_drain) && h->from == HAUL_STARTUP && full && h->delivery)
			h->ref = haul_min(h->ref, h->delivery);
		// Much longer at half the rate: the path itself changes.
		if (HAUL_RULE(drain_longer) && h->rtt_low_us > h->drain_low_us + h->drain_low_us / 4)
			h->before_us = h->drain_low_us = h->rtt_low_us;
		// The drain takes too long: the path has become narrower.
		if (HAUL_RULE(drain_slow) && full && h->phase > 5 && h->delivery < h->ref)
			h->ref -= (h->ref - h->delivery) / 4;
		bool shorter = h->rtt_low_us + haul_max(1000, h->rtt_low_us / 32) < h->drain_low_us;
		h->flat = shorter ? 0 : h->flat + 1;
		h->drain_low_us = haul_min(h->drain_low_us, h->rtt_low_us);
	}
	if (empty || h->flat >= 2 || h->phase >= 2 * HAUL_ROUNDS)
		haul_enter(h, HAUL_RESTORE);
	return 0;
}

GLOBAL int haul_restore_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	if (++h->phase < HAUL_FLAT_ROUNDS || h->rtt_low_us == ~0u)
		return 0;
	u32 low = h->drain_low_us, queue = h->rtt_low_us > low ? h->rtt_low_us - low : 0;
	u32 back = h->before_us > low ? (h->before_us - low) / 3 : 0;
	u32 target = haul_target_us(low, h->ref, a->mss, h->room_us) + h->noise_us;
	// The round trip fell, but not to the earlier value: there is a queue that this
	// flow cannot empty.
	bool filled = low > h->min_rtt_us + haul_empty_us(h, a), strict = HAUL_RULE(strict) && (h->from == HAUL_COMPETE || filled);
	u32 least = strict ? haul_empty_us(h, a) : target + target / 4;
	// In cruise a delay that wanders can look like a rival, and a raise has proved more than start-up.
	bool sure = h->from == HAUL_COMPETE || !p->raises || h->floor_q16 > HAUL_SPARED_Q16 || !HAUL_RULE(rival_twice);
	h->rival = queue > haul_max(least, back);
	bool lossy = a->lost != h->cut_lost || a->marked != h->cut_marked;
	h->cut_lost = a->lost;
	h->cut_marked = a->marked;
	if (!h->rival) {
		h->min_rtt_us = h->min_rtt_next_us = low;
		h->min_rtt_start_us = a->now_us;
		haul_cruise(h, a, h->ref);
		return 0;
	}
	// There is a rival: the proof of a raise may have been at its expense.
	if (HAUL_RULE(rival_floor) && sure && !h->others)
		h->floor_q16 = p->floor.share_q16 = p->floor.most_q16 = 0;
	if (h->from != HAUL_COMPETE) {
		h->cut_delivery = h->ref;
		// With the rate before the queue grew.
		u64 rate = haul_max(h->ref, haul_min(h->full_bw, 2 * h->ref));
		u32 window = haul_segments(haul_needed(h, rate), h->before_us, a->mss);
		haul_cubic_start(h, a->now_us, window);
	} else {
		h->cwnd = haul_cubic(h, h->test_us, a->srtt_us);
	}
	h->test_us = a->now_us;
	haul_enter(h, HAUL_COMPETE);
	if (lossy)
		haul_cubic_cut(h, a->now_us);
	return 0;
}

GLOBAL int haul_compete_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	// All flows of a host test at once, at times of its clock. Otherwise each would
	// take the others for a rival.
	u32 since = haul_since(a->now_us, h->test_us);
	bool slot = haul_slot(h, a, h->rival ? HAUL_SLOT + 2 : HAUL_SLOT) &&
		    since > 2 * HAUL_TEST_ROUNDS * a->srtt_us;
	// Without a known rival, the queue is this flow's, or a rival has come.
	bool first = HAUL_RULE(first) && !h->rival && h->queue_us > haul_congested_us(h) && since > HAUL_PROBE_INTERVAL_US / 5 &&
		     since > HAUL_TEST_ROUNDS * h->min_rtt_us;
	// Without a visible queue a test shows nothing.
	bool queued = h->queue_high_us > haul_empty_us(h, a);
	if (queued && (slot || first))
		haul_test_all(h, a, p, h->delivery);
	h->rival &= queued || !slot;
	// As much arrives again, and no rival was found, which marks or a longer queue
	// would have shown.
	bool shows = haul_marked(h, a->now_us, 6 * HAUL_PROBE_INTERVAL_US) || h->passed_us >= HAUL_SPARED_US;
	bool passed = HAUL_RULE(passed) && slot && shows && h->delivery > h->cut_delivery / 8 * 7;
	// If the window is well above the earlier one without a loss, the path is wider.
	bool full = haul_since(a->now_us, h->cut_us) / 1000 >= h->k_ms;
	bool wider = HAUL_RULE(wider) && !h->rival && full && h->cwnd > h->window_max + h->window_max / 4;
	if (!queued && (passed || wider))
		haul_cruise(h, a, h->delivery);
	return 0;
}
