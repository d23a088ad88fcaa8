// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul as the congestion control of a simulated path's flow.
#pragma once

#include "path.h"

#include "../haul.h"

static struct haul_ack haul_ack_of(struct flow *f, u32 rtt_us)
{
	return (struct haul_ack){
		.now_us = sim.now / 1000 + f->clock_us,
		.delivered = f->delivered,
		.lost = f->lost,
		.spurious = f->duplicates,
		.sent = f->sent,
		.prior_delivered = f->sample.prior_delivered,
		.sample_delivered = f->sample.delivered,
		.sample_us = f->sample.us,
		.rtt_us = rtt_us,
		.srtt_us = f->srtt_us,
		.in_flight = f->in_flight,
		.mss = MSS,
		.clamp = ~0u,
		.marked = f->marked,
		.limited = f->window_limited || f->app_limited || f->sample.app_limited,
		.timeout = f->in_timeout,
	};
}

static void haul_begin(struct flow *f)
{
	struct haul_ack a = haul_ack_of(f, 0);
	f->state = calloc(1, sizeof(struct haul));
	haul_init(f->state, &a, f->cwnd);
	f->pace = ((struct haul *)f->state)->pace;
}

static void haul_acked(struct flow *f, u32 acked, u32 rtt_us)
{
	struct haul *h = f->state;
	struct haul_ack a = haul_ack_of(f, rtt_us);
	(void)acked;
	haul_update(h, &a);
	f->pace = h->pace;
	f->cwnd = h->cwnd;
}

static const struct control haul_control = {"haul", haul_begin, haul_acked, 0, 0, 4000000};
