// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reno (RFC 5681) as the congestion control of a simulated path's flow.
#pragma once

#include "path.h"

static void reno_begin(struct flow *f)
{
	(void)f;
}

// Equation 4: half of what is on the way, and 2 packets at least.
static void reno_cut(struct flow *f, u32 flight)
{
	f->ssthresh = flight / 2 > 2 ? flight / 2 : 2;
}

static void reno_lost(struct flow *f)
{
	reno_cut(f, f->cwnd);
}

static void reno_timeout(struct flow *f)
{
	reno_cut(f, f->flight_before);
}

static void reno_ack(struct flow *f, u32 acked, u32 rtt_us)
{
	(void)rtt_us;
	if (marked_anew(f))
		reno_lost(f);
	if (f->recovering || !f->cwnd_limited)
		return;
	if (f->cwnd < f->ssthresh) {
		f->cwnd += acked;
		return;
	}
	f->reno_credit += acked;
	if (f->reno_credit >= f->cwnd) {
		f->reno_credit -= f->cwnd;
		f->cwnd++;
	}
}

static const struct control reno_control = {
	.name = "reno",
	.begin = reno_begin,
	.ack = reno_ack,
	.lost = reno_lost,
	.timeout = reno_timeout,
	.reduces = true,
};
