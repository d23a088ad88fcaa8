// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Loss: the share that the path loses by itself, its proof by a raise, its check by a
// probe, and the losses and marks that are no congestion.
#pragma once

static inline void haul_shrink_pool(u32 *lost, u32 *got, u32 most)
{
	u64 all = (u64)*lost + *got;
	if (all <= most)
		return;
	*lost = (u64)*lost * most / all;
	*got = most - *lost;
}

// The share of loss that the path's own explains: four standard deviations of
// the pool above it. A path that loses nothing by itself explains no loss.
static inline u32 haul_loss_packets(const struct haul *h)
{
	return haul_min(haul_max((16u << 16) / (h->floor_q16 + 1), HAUL_LOSS_PACKETS), 16 * HAUL_LOSS_PACKETS);
}

static inline u32 haul_explained_q16(const struct haul *h)
{
	u64 variance_q32 = (u64)h->floor_q16 * (HAUL_ONE - haul_min(h->floor_q16, HAUL_ONE)) / haul_loss_packets(h);
	u32 unsure = h->most_q16 > h->floor_q16 ? (h->most_q16 - h->floor_q16) / 2 : 0;
	return h->floor_q16 ? h->floor_q16 + 4 * haul_sqrt(variance_q32) + unsure : 0;
}

// The recent share of lost packets is pooled over the last thousand or so.
// A packet that was marked lost and arrived after all counts as negative.
static inline void haul_pool_loss(struct haul *h, struct haul_path *p, s32 lost, u32 delivered)
{
	u32 n = delivered + (lost > 0 ? lost : 0);
	u32 pool = haul_max(n, haul_min(h->ever, haul_loss_packets(h)));
	if (!pool)
		return;
	u64 kept = (u64)h->loss_q16 * (pool - n);
	u64 change = (u64)(lost > 0 ? lost : -lost) << 16;
	h->loss_q16 = (lost > 0 ? kept + change : kept > change ? kept - change : 0) / pool;
	// The path's own loss is at most all loss, within the error of so few packets.
	u32 most = h->loss_q16 + h->loss_q16 / 4 + 3 * haul_sqrt(((u64)h->floor_q16 << 16) / pool);
	if (HAUL_RULE(pool) && h->floor_q16 > most && pool >= HAUL_LOSS_PACKETS && h->mode != HAUL_RAISE)
		h->floor_q16 = p->floor.share_q16 = h->floor_q16 - (h->floor_q16 - most) / 4;
}

static inline u32 haul_floor_of(u32 share_q16)
{
	return share_q16 < HAUL_LOSS_LEAST_Q16 ? 0 : haul_min(share_q16, HAUL_LOSS_MAX_Q16);
}

// A proof has shown that some loss is the path's own: sets the floor to that share,
// within the error of so few losses.
static inline void haul_prove_floor(struct haul *h, const struct haul_ack *a, struct haul_path *p, u32 lost, u32 got)
{
	u32 share = haul_share_q16(lost, got);
	h->most_q16 = haul_min(share + 4 * share / haul_max(haul_sqrt(lost), 1), HAUL_LOSS_MAX_Q16);
	h->floor_q16 = haul_floor_of(share);
	p->floor = (struct haul_floor){.share_q16 = h->floor_q16, .most_q16 = h->most_q16, .looked_us = a->now_us};
}

// A probe lost some packets that were sent at less than the arrival rate. If that is
// less than the floor, this flow caused the rest.
static inline void haul_see_floor(struct haul_floor *f, u32 lost, u32 got)
{
	if (f->lost > HAUL_FLOOR_SURE)
		haul_shrink_pool(&f->lost, &f->got, (f->lost + f->got) / 8 * 7);
	f->lost += lost;
	f->got += got;
	haul_shrink_pool(&f->lost, &f->got, 64 * HAUL_LOSS_PACKETS);
	u32 share = haul_share_q16(f->lost, f->got), expected = ((u64)f->lost + f->got) * f->share_q16 >> 16;
	if (f->share_q16 && f->lost >= HAUL_FLOOR_SURE) // so many tell it
		f->share_q16 = haul_floor_of(haul_min(share, f->most_q16));
	else if (expected >= HAUL_FLOOR_LOSSES - 1 && f->lost + haul_sqrt(12 * (f->lost + 1)) < expected)
		f->share_q16 = haul_floor_of(share);
}

// A probe: the flow sends less than arrives, for a round trip or two.
static inline void haul_probe(struct haul *h)
{
	haul_enter(h, HAUL_PROBE);
}

// The rounds in which a probe sends less: two if the floor's losses in one are too few to tell.
static inline u32 haul_probe_rounds(const struct haul *h)
{
	return h->floor_q16 && (u64)h->got * h->floor_q16 >> 16 < HAUL_FLOOR_SURE ? 2 : 1;
}

// A probe sends so much less for a round trip that the queue empties, and less than
// arrives. The loss then does not depend on the sending rate.
static inline u32 haul_probe_gain_q16(const struct haul *h)
{
	u32 less = ((u64)h->queue_us << 17) / (h->min_rtt_us + 1);
	return HAUL_ONE - haul_max(HAUL_ONE - HAUL_PROBE_GAIN_Q16, haul_min(less, HAUL_ONE / 3));
}

GLOBAL int haul_probe_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	// The reduced traffic is on the way. With a floor, so is earlier traffic with losses
	// not yet detected.
	if (h->phase++ < haul_probe_rounds(h))
		return 0;
	u32 floor = h->floor_q16;
	haul_see_floor(&p->floor, h->missed, h->got); // without a floor it is for a raise to tell
	h->floor_q16 = p->floor.share_q16;
	p->floor.looked_us = a->now_us;
	h->low_us = a->now_us; // if the path was not empty now, it was tried
	h->cut_lost = a->lost;
	haul_enter(h, HAUL_CRUISE);
	if (h->floor_q16 < floor / 4 * 3) // what was lost was ours
		haul_congestion(h, a);
	return 0;
}

// The number of recent raises.
static inline u32 haul_raises(const struct haul_path *p, u64 now_us)
{
	return haul_since(now_us, p->raise_us) > 8 * HAUL_PROBE_INTERVAL_US ? 0 : haul_min(p->raises, HAUL_RAISES_MAX);
}

// Whether to raise: the first time as soon as there is enough evidence, then at ever
// longer intervals.
static inline bool haul_may_raise(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	u32 n = haul_raises(p, a->now_us), since = haul_since(a->now_us, p->raise_us);
	// Beside other flows of the host at common times, between those of probes.
	bool slot = !h->others || (haul_slot(h, a, HAUL_SLOT) && !haul_slot(h, a, HAUL_SLOT + 1));
	bool due = !HAUL_RULE(raise_interval) || !n || (slot && since >= (1u << 20) << n);
	u32 lost = h->seen_lost;
	// A burst is in one or two epochs.
	bool enough = h->seen_lossy >= HAUL_FLOOR_LOSSES - 1 ||
		      (h->seen_lossy >= 2 && lost >= HAUL_FLOOR_LOSSES / 2 && h->cwnd >= 16 * HAUL_WINDOW_MIN);
	// Of more than half of what arrived before, twice as much would not arrive.
	bool low = h->delivery <= h->cut_delivery / 2 || !HAUL_RULE(raise_low);
	if (h->limited || h->queue_us > haul_overflow_us(h, a) || !due || !enough || !low || h->cwnd < 2 * HAUL_WINDOW_MIN)
		return false;
	p->raises = n + 1;
	p->raise_us = a->now_us;
	u32 share = haul_share_q16(lost, h->seen_got);
	if (share > haul_explained_q16(h))
		h->floor_q16 = haul_floor_of(share);
	return true;
}

// A larger share of a raise is not what was lost before it.
static inline u32 haul_raise_most_q16(const struct haul *h, u32 floor_q16)
{
	u32 share = haul_share_q16(h->seen_lost, h->seen_got);
	return h->floor_q16 == floor_q16 ? haul_explained_q16(h) : share + 2 * share / haul_max(haul_sqrt(h->seen_lost), 1);
}

// Doubles the rate towards the earlier delivery.
static inline void haul_raise_more(struct haul *h, const struct haul_ack *a)
{
	h->ref = haul_max(h->delivery, a->mss);
	h->rate = haul_needed(h, 2 * h->ref);
	h->phase = 0;
	h->step_lost = h->step_got = 0;
}

static inline void haul_raise(struct haul *h, const struct haul_ack *a)
{
	h->raise_lost = h->raise_got = 0;
	h->full_bw = h->delivery;
	haul_enter(h, HAUL_RAISE);
	haul_raise_more(h, a);
}

GLOBAL int haul_raise_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	// The loss beside CUBIC's window is the path's own if twice as much loses the same
	// share, and twice as much arrives. On a full path that is false.
	h->step_lost += h->missed, h->step_got += h->got;
	if (h->phase++ == 0) // what was sent at the higher rate is on the way
		return 0;
	u32 lost = h->raise_lost + h->step_lost, got = h->raise_got + h->step_got;
	u32 most = (u64)(lost + got) * haul_raise_most_q16(h, p->floor.share_q16) >> 16;
	bool lossy = lost > most + 2 * haul_sqrt(most) + 1;
	bool grown = h->delivery > h->ref / 4 * 7, queued = h->queue_us > haul_overflow_us(h, a);
	bool many = (lossy ? h->raise_lost + h->raise_got : lost + got) >= 4 * HAUL_EPOCH_PACKETS;
	// With few packets the proof needs more doublings, unless a queue shows it.
	u64 enough = h->cut_delivery / 8 * 7, proof = (!many && (lossy || !queued) ? 3 : 1) * h->full_bw / 4 * 7;
	proof = haul_max(proof, haul_together(h, p) / 8 * 7); // all together are to send nearly twice as much
	if (!lossy) {
		h->raise_lost = lost, h->raise_got = got;
		h->step_lost = h->step_got = 0;
		if (grown && !queued && h->delivery < haul_max(enough, proof)) {
			haul_raise_more(h, a);
			return 0;
		}
		if (!grown && !queued && h->phase < 4) // it may be about to show
			return 0;
		if (grown || queued)
			h->ref = h->delivery;
	}
	// Such a share needs many packets as proof.
	bool few = HAUL_RULE(raise_few) && h->floor_q16 > HAUL_ONE / 4 && h->raise_lost + h->raise_got < HAUL_LOSS_PACKETS / 4;
	if (few || h->ref < proof) {
		h->floor_q16 = p->floor.share_q16;
		h->most_q16 = p->floor.most_q16;
		haul_forget_loss(h);
		h->cut_lost = a->lost;
		h->cut_marked = a->marked;
		haul_enter(h, HAUL_COMPETE);
		h->cwnd = haul_cubic(h, p->raise_us, a->srtt_us);
		haul_cubic_cut(h, a->now_us);
		h->loss_q16 = h->floor_q16;
		return 0;
	}
	haul_prove_floor(h, a, p, h->seen_lost + h->raise_lost, h->seen_got + h->raise_got);
	h->loss_q16 = h->floor_q16;
	haul_cruise(h, a, h->ref);
	haul_probe(h); // was it ours?
	return 0;
}

// Losses beside CUBIC's window. With a queue a loss may be an overflow.
static inline void haul_remember_loss(struct haul *h, const struct haul_ack *a)
{
	bool sends = h->mode == HAUL_COMPETE || h->mode == HAUL_CRUISE;
	if (h->cuts < 2 || !sends || h->queue_high_us > haul_overflow_us(h, a))
		return;
	h->seen_lost += h->missed;
	h->seen_got += h->got;
	h->seen_lossy += h->missed > 0;
	haul_shrink_pool(&h->seen_lost, &h->seen_got, 16 * HAUL_LOSS_PACKETS);
}

// The queue of the epoch before has passed if it has lost nothing by now. Start-up's would
// lose many packets, so a few are the path's own.
static inline void haul_see_passed(struct haul *h, u32 lost, u32 delivered)
{
	bool begins = h->mode == HAUL_STARTUP || h->mode == HAUL_DRAIN;
	if (haul_max(lost, h->missed) <= (begins ? delivered / 64 : 0))
		h->passed_us = haul_max(h->passed_us, haul_max(h->queue_us, h->queue_high_us));
}

// A mark of this flow's own queue: the flow sends less for a round trip, as in a probe,
// and keeps a shorter queue for 10 s, so that the marks end. If they do not, or if there
// is no queue to see, others fill it, and the mark is congestion as a loss is. Returns
// whether the mark was of the first kind.
GLOBAL int haul_shortens(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u32 queue = haul_max(h->queue_high_us, haul_queue_us(h, h->rtt_high_us));
	if (h->mode != HAUL_CRUISE && h->mode != HAUL_PROBE)
		return false;
	if (haul_marked(h, a->now_us, 4 * haul_min(a->srtt_us, HAUL_RTT_MAX_US))) // of the queue before it could become shorter
		return true;
	// The first may be of start-up's queue.
	bool begins = haul_since(a->now_us, h->cut_us) < 16 * haul_min(a->srtt_us, HAUL_RTT_MAX_US);
	bool again = haul_marked(h, a->now_us, HAUL_PROBE_INTERVAL_US) && !begins;
	h->mark_us = a->now_us;
	if (again || queue <= haul_empty_us(h, a) / 2)
		return false;
	u32 room = haul_marked(h, a->now_us, HAUL_PROBE_INTERVAL_US) && h->mark_room_us ? h->mark_room_us : haul_usual_us(h->min_rtt_us);
	h->mark_room_us = haul_max(haul_min(queue, haul_min(h->room_us, room)) / 2, 2000);
	h->rate = haul_min(h->rate, haul_needed(h, haul_bw(h)));
	if (h->mode == HAUL_CRUISE)
		haul_probe(h);
	return true;
}

// Whether losses are too few, and the queue is too short, for an overflow: the path has
// carried twice the queue. A rival's losses are not spared.
static inline bool haul_spares(const struct haul *h, u32 queue_us, u32 lost, u32 came, u32 share_q16)
{
	return HAUL_RULE(spare) && !h->rival && h->passed_us >= HAUL_SPARED_US && queue_us <= h->passed_us / 2 && lost <= 2 + came / 64 &&
	       share_q16 <= HAUL_SPARED_Q16;
}
