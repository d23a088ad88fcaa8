// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the connections of a host to one destination share (RFC 9040).
#pragma once

// haul_learn reads the shared state of the connections to the destination, and adds
// this one's goodput.
GLOBAL int haul_learn(struct haul *h, struct haul_path *p, u64 now_us)
{
	HAUL_ARGS(h && p);
	if (!p->used_us || haul_since(now_us, p->used_us) > 2 * HAUL_PROBE_INTERVAL_US) {
		struct haul_carried carried = p->carried;
		__builtin_memset(p, 0, sizeof *p);
		p->carried = carried;
		p->room_us = h->room_us;
		p->room_seen_us = h->room_seen_us;
		if (h->mode != HAUL_RAISE)
			p->floor = (struct haul_floor){.share_q16 = h->floor_q16, .most_q16 = h->most_q16};
	}
	p->used_us = now_us;
	u64 period = now_us >> HAUL_SLOT;
	if (period > p->period) {
		bool next = p->period + 1 == period;
		p->all_before = next ? p->all : 0;
		p->flows_before = next ? p->flows : 0;
		p->sum_before = next ? p->sum : 0;
		p->period = period;
		p->all = p->flows = 0;
		p->sum = 0;
	}
	if (period == p->period && h->told != period) {
		h->told = period;
		p->all++;
		// The delivery is that of the epoch before.
		h->told_delivery = h->limited || h->was_limited || h->mode == HAUL_STARTUP ? 0 : h->delivery;
		p->flows += h->told_delivery > 0;
		p->sum += h->told_delivery;
	}
	u32 known = haul_max(p->all, p->all_before), own = h->told + 1 >= period;
	h->others = known > own ? known - own : 0;
	h->mean = h->others && p->flows_before > 1 ? p->sum_before / p->flows_before : 0;
	if (p->room_seen_us > h->room_seen_us) {
		h->room_us = p->room_us;
		h->room_seen_us = p->room_seen_us;
	}
	if (h->mode == HAUL_RAISE) // its own is on trial
		return 0;
	// The recent loss is of a time when this connection sent less because of it.
	if (p->floor.share_q16 > h->floor_q16)
		h->loss_q16 = haul_max(h->loss_q16, p->floor.share_q16);
	h->floor_q16 = p->floor.share_q16;
	h->most_q16 = p->floor.most_q16;
	return 0;
}

// The goodput of all of the host's connections to the destination; 0 for the only one. What
// this period has counted bounds it while there is none before.
static inline u64 haul_together(const struct haul *h, const struct haul_path *p)
{
	return h->others ? haul_max(p->sum_before, p->sum) : 0;
}

// haul_forget takes back what a connection that ends has told of its goodput.
GLOBAL int haul_forget(const struct haul *h, struct haul_path *p)
{
	if (!h || !p || !h->told)
		return 0;
	u64 got = h->told_delivery;
	if (h->told == p->period) {
		p->all -= p->all > 0;
		p->flows -= got && p->flows;
		p->sum -= haul_min(got, p->sum);
	} else if (h->told + 1 == p->period) {
		p->all_before -= p->all_before > 0;
		p->flows_before -= got && p->flows_before;
		p->sum_before -= haul_min(got, p->sum_before);
	}
	return 0;
}

// Records what the path carries. Beside a rival, and after a jump that was too far, that
// can only be less than before.
static inline void haul_tell_carried(const struct haul *h, struct haul_carried *c, u64 together)
{
	if (h->mode == HAUL_CRUISE && !h->was_limited) {
		u64 rate = haul_max(haul_bw(h), together);
		c->rate = rate < c->rate ? c->rate - (c->rate - rate) / 4 : rate;
		c->rtt_us = h->min_rtt_us;
		c->seen_us = h->epoch_us;
		c->floor_q16 = h->floor_q16;
	} else if (h->mode == HAUL_COMPETE && !h->was_limited) {
		c->rate -= (c->rate - haul_min(c->rate, h->delivery)) / 4;
		c->floor_q16 = haul_min(c->floor_q16, h->floor_q16);
	} else if (h->mode == HAUL_DRAIN && h->from == HAUL_STARTUP && h->resume == HAUL_RETREAT) {
		c->rate = haul_min(c->rate, h->ref);
	}
}

// haul_tell shares what this connection has learnt of the path.
GLOBAL int haul_tell(const struct haul *h, struct haul_path *p)
{
	HAUL_ARGS(h && p);
	if (h->room_seen_us > p->room_seen_us) {
		p->room_us = h->room_us;
		p->room_seen_us = h->room_seen_us;
	}
	haul_tell_carried(h, &p->carried, haul_together(h, p));
	return 0;
}
