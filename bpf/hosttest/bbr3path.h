// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// BBR version 3 as the congestion control of a simulated path's flow.
#pragma once

#include "path.h"

#include "../bbr3.h"

static struct bbr3_ack bbr3_ack_of(struct flow *f)
{
	return (struct bbr3_ack){
		.now_us = sim.now / 1000 + f->clock_us,
		.delivered = f->delivered,
		.lost = f->lost,
		.marked = f->marked,
		.prior_delivered = f->sample.prior_delivered,
		.sample_delivered = f->sample.delivered,
		.sample_us = f->sample.us,
		.in_flight = f->in_flight,
		.prior_in_flight = f->prior_in_flight,
		.reorder_us = reorder_us(f),
		.cwnd = f->cwnd,
		.clamp = ~0u,
		.mss = MSS,
		.random = any(),
		.app_limited = f->sample.app_limited,
		.cwnd_limited = (s32)(f->limited_until - f->una) > 0,
		.sack = true,
		.fast_recovery = f->recovering,
		.timeout = f->in_timeout,
	};
}

static void bbr3_begin(struct flow *f)
{
	struct bbr3_ack a = bbr3_ack_of(f);
	struct bbr3 *h = f->state = calloc(1, sizeof *h);
	bbr3_init(h, &a, f->srtt_us);
	f->pace = h->pace;
}

static void bbr3_acked(struct flow *f, u32 acked, u32 rtt_us)
{
	struct bbr3 *h = f->state;
	struct bbr3_ack a = bbr3_ack_of(f);
	a.acked = acked;
	a.rtt_us = rtt_us;
	bbr3_update(h, &a);
	f->pace = h->pace;
	f->cwnd = h->cwnd;
}

static void bbr3_lost(struct flow *f)
{
	bbr3_enter_recovery(f->state, f->cwnd, false);
}

static void bbr3_timeout(struct flow *f)
{
	bbr3_enter_recovery(f->state, f->flight_before, f->backoff > 1);
}

static void bbr3_undone(struct flow *f)
{
	struct bbr3 *h = f->state;
	bbr3_undo(h, f->cwnd, f->delivered);
	f->cwnd = h->cwnd;
}

// Before the first packet after an idle time.
static void bbr3_resumes(struct flow *f)
{
	struct bbr3 *h = f->state;
	struct bbr3_ack a = bbr3_ack_of(f);
	h->cwnd = f->cwnd;
	bbr3_restart(h, &a);
	f->pace = h->pace;
	f->cwnd = h->cwnd;
}

static const struct control bbr3_control = {
	.name = "bbr3",
	.begin = bbr3_begin,
	.ack = bbr3_acked,
	.lost = bbr3_lost,
	.timeout = bbr3_timeout,
	.undo = bbr3_undone,
	.resume = bbr3_resumes,
};
