// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul as the congestion control of a simulated path's flow.
#pragma once

#include "path.h"

#include "haulrules.h"

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
	};
}

struct haul_flow {
	struct haul haul; // first: whoever looks at a flow's state sees it
	struct haul_path *path, own_path;
};

static void haul_begin(struct flow *f)
{
	struct haul_ack a = haul_ack_of(f, 0);
	struct haul_flow *new = f->state = calloc(1, sizeof *new);
	haul_init(&new->haul, &a, f->cwnd);
	if (f->cold)
		new->haul.resume = HAUL_NORMAL;
	f->pace = new->haul.pace;
	// Flows of one host, with one round trip, go to one destination.
	new->path = &new->own_path;
	for (int i = 0; i < sim.flows; i++) {
		struct flow *other = &sim.flow[i];
		if (other != f && other->control == f->control && other->state && other->extra_rtt == f->extra_rtt && other->clock_us == f->clock_us)
			new->path = ((struct haul_flow *)other->state)->path;
	}
}

static void haul_acked(struct flow *f, u32 acked, u32 rtt_us)
{
	struct haul_flow *own = f->state;
	struct haul_ack a = haul_ack_of(f, rtt_us);
	a.acked = acked;
	if (haul_update(&own->haul, &a))
		haul_update_epoch(&own->haul, &a, own->path);
	haul_apply(&own->haul, &a);
	f->pace = own->haul.pace;
	f->cwnd = own->haul.cwnd;
}

static void haul_ended(struct flow *f)
{
	struct haul_flow *own = f->state;
	haul_forget(&own->haul, own->path);
}

static u32 haul_rto_most(const struct flow *f)
{
	return haul_rto_max_ms(f->state, f->srtt_us, sim.now / 1000 + f->clock_us);
}

static const struct control haul_control = {.name = "haul", .begin = haul_begin, .ack = haul_acked, .end = haul_ended, .rto_max_ms = haul_rto_most};
