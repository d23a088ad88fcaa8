// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// BBR version 1 as the congestion control of a simulated path's flow: the rival that
// most hosts have. By Cardwell et al., "BBR: Congestion-Based Congestion Control" (ACM
// Queue, 2016) and draft-cardwell-iccrg-bbr-congestion-control-00. Beyond these it has
// what Linux' bbr adds and its authors presented: the long-term sampler for policers
// (ICCRG at IETF 97), and room for aggregated acknowledgements (ICCRG at IETF 101).
// Rates are packets per second, times seconds.
#pragma once

#include "path.h"

#define BBR_HIGH_GAIN 2.885 // 2 / ln 2: doubles the rate in a round
#define BBR_ROUNDS 10	    // that the filter of the bandwidth keeps
#define BBR_RTT_S 10.	    // that the filter of the round trip keeps
#define BBR_LEAST 4	    // packets of window

enum bbr_state { BBR_STARTUP, BBR_DRAIN, BBR_PROBE_BW, BBR_PROBE_RTT };

// The sampler for policers: two intervals of 4 to 16 rounds that lose a fifth at one rate.
struct bbr_policer {
	bool sampling, uses;
	u32 rounds, delivered, lost; // since the interval began; counts then
	double began, rate;	     // of the interval before, or that it uses
};

struct bbr {
	enum bbr_state state;
	double pacing_gain, cwnd_gain;
	u32 round, next_round; // the count of packets delivered that ends this one
	bool round_start;
	double bw[BBR_ROUNDS]; // the most of each round
	double min_rtt, min_rtt_at, probe_done;
	bool probe_round_done, idle_restart;
	double full_bw;
	u32 full_rounds;
	u32 phase;
	double phase_at;
	bool conserves, was_recovering, was_timeout;
	u32 prior_cwnd, lost;
	double extra_at;
	u32 extra_acked, extra[2], extra_rounds;
	struct bbr_policer policer;
};

static const double bbr_cycle[8] = {1.25, 0.75, 1, 1, 1, 1, 1, 1};

static double bbr_now(void)
{
	return sim.now / 1e9;
}

static double bbr_max_bw(const struct bbr *h)
{
	double most = 0;
	for (int i = 0; i < BBR_ROUNDS; i++)
		most = h->bw[i] > most ? h->bw[i] : most;
	return most;
}

static double bbr_bw(const struct bbr *h)
{
	return h->policer.uses ? h->policer.rate : bbr_max_bw(h);
}

// The packets of a gain's share of what the path holds, with room for three bursts.
static double bbr_inflight(const struct bbr *h, const struct flow *f, double gain)
{
	u32 burst = f->pace / 1024 / MSS;
	burst = burst < 2 ? 2 : burst > 44 ? 44 : burst;
	double packets = ceil(gain * bbr_bw(h) * h->min_rtt) + 3 * burst;
	packets += fmod(packets, 2);
	return packets + (h->state == BBR_PROBE_BW && h->phase == 0 ? 2 : 0);
}

static void bbr_set_pace(const struct bbr *h, struct flow *f)
{
	u64 pace = 0.99 * h->pacing_gain * bbr_bw(h) * MSS; // 1 % below, so that no queue stays
	if (h->full_rounds >= 3 || pace > f->pace)
		f->pace = pace > MSS ? pace : MSS;
}

static void bbr_set_phase(struct bbr *h, u32 phase)
{
	h->phase = phase % 8;
	h->phase_at = bbr_now();
}

static void bbr_enter_probe_bw(struct bbr *h)
{
	h->state = BBR_PROBE_BW;
	bbr_set_phase(h, (2 + any() % 7) % 8); // any but the one that drains
}

static void bbr_interval(struct bbr *h, const struct flow *f)
{
	h->policer.rounds = 0;
	h->policer.delivered = f->delivered;
	h->policer.lost = f->lost;
	h->policer.began = f->delivered_mstamp / 1e9;
}

static void bbr_no_policer(struct bbr *h, const struct flow *f)
{
	h->policer = (struct bbr_policer){0};
	bbr_interval(h, f);
}

static void bbr_sample_policer(struct bbr *h, const struct flow *f, bool losses)
{
	struct bbr_policer *p = &h->policer;
	if (p->uses) {
		if (h->state == BBR_PROBE_BW && h->round_start && ++p->rounds >= 48) {
			bbr_no_policer(h, f);
			bbr_enter_probe_bw(h);
		}
		return;
	}
	if (!p->sampling) {
		if (!losses)
			return;
		bbr_interval(h, f);
		p->sampling = true;
	}
	if (f->sample.app_limited) {
		bbr_no_policer(h, f);
		return;
	}
	p->rounds += h->round_start;
	if (p->rounds > 16)
		bbr_no_policer(h, f);
	if (p->rounds < 4 || !losses)
		return;
	u32 delivered = f->delivered - p->delivered, lost = f->lost - p->lost;
	double took = f->delivered_mstamp / 1e9 - p->began;
	if (!delivered || lost < delivered * 50 / 256. || took < 0.001)
		return;
	double rate = delivered / took, differs = fabs(rate - p->rate);
	if (p->rate > 0 && (differs <= p->rate / 8 || differs * MSS <= 500)) {
		p->rate = (p->rate + rate) / 2;
		p->uses = true;
		p->rounds = 0;
		return;
	}
	p->rate = rate;
	bbr_interval(h, f);
}

static void bbr_update_bw(struct bbr *h, const struct flow *f, u32 acked)
{
	h->round_start = false;
	if (acked && (s32)(f->sample.prior_delivered - h->next_round) >= 0) {
		h->next_round = f->delivered;
		h->bw[++h->round % BBR_ROUNDS] = 0;
		h->round_start = true;
		h->conserves = false;
	}
	if (!f->sample.us)
		return;
	double bw = f->sample.delivered * 1e6 / f->sample.us, *now = &h->bw[h->round % BBR_ROUNDS];
	if (bw > *now && (!f->sample.app_limited || bw >= bbr_max_bw(h)))
		*now = bw;
}

// What was acknowledged beyond the bandwidth: the most in 5 to 10 rounds.
static void bbr_update_extra(struct bbr *h, const struct flow *f, u32 acked)
{
	if (h->round_start && ++h->extra_rounds >= 5) {
		h->extra_rounds = 0;
		h->extra[0] = h->extra[1];
		h->extra[1] = 0;
	}
	double expected = bbr_bw(h) * (bbr_now() - h->extra_at);
	if (h->extra_acked <= expected || h->extra_acked + acked >= 1 << 20) {
		h->extra_acked = 0;
		h->extra_at = bbr_now();
		expected = 0;
	}
	h->extra_acked += acked;
	double extra = h->extra_acked - expected;
	extra = extra > f->cwnd ? f->cwnd : extra;
	if (extra > h->extra[1])
		h->extra[1] = extra;
}

static void bbr_update_phase(struct bbr *h, const struct flow *f, bool losses)
{
	if (h->state != BBR_PROBE_BW || h->policer.uses)
		return;
	bool whole = bbr_now() - h->phase_at > h->min_rtt;
	double gain = bbr_cycle[h->phase];
	if (gain > 1)
		whole = whole && (losses || f->prior_in_flight >= bbr_inflight(h, f, gain));
	else if (gain < 1)
		whole = whole || f->prior_in_flight <= bbr_inflight(h, f, 1);
	if (whole)
		bbr_set_phase(h, h->phase + 1);
}

static void bbr_update_state(struct bbr *h, const struct flow *f)
{
	if (h->full_rounds < 3 && h->round_start && !f->sample.app_limited) {
		double bw = bbr_max_bw(h);
		if (bw >= 1.25 * h->full_bw) {
			h->full_bw = bw;
			h->full_rounds = 0;
		} else
			h->full_rounds++;
	}
	if (h->state == BBR_STARTUP && h->full_rounds >= 3)
		h->state = BBR_DRAIN;
	if (h->state == BBR_DRAIN && f->in_flight <= bbr_inflight(h, f, 1))
		bbr_enter_probe_bw(h);
}

static void bbr_save_cwnd(struct bbr *h, u32 cwnd)
{
	bool saved = h->was_recovering || h->was_timeout || h->state == BBR_PROBE_RTT;
	h->prior_cwnd = saved && h->prior_cwnd > cwnd ? h->prior_cwnd : cwnd;
}

static void bbr_update_rtt(struct bbr *h, struct flow *f, u32 acked, u32 rtt_us)
{
	double now = bbr_now();
	bool expired = now > h->min_rtt_at + BBR_RTT_S;
	if (rtt_us && (rtt_us / 1e6 <= h->min_rtt || expired)) {
		h->min_rtt = rtt_us / 1e6;
		h->min_rtt_at = now;
	}
	if (expired && !h->idle_restart && h->state != BBR_PROBE_RTT) {
		bbr_save_cwnd(h, f->cwnd);
		h->state = BBR_PROBE_RTT;
		h->probe_done = 0;
	}
	if (h->state == BBR_PROBE_RTT) {
		u32 until = f->delivered + f->in_flight;
		f->app_limited = until ? until : 1;
		if (!h->probe_done && f->in_flight <= BBR_LEAST) {
			h->probe_done = now + 0.2;
			h->probe_round_done = false;
			h->next_round = f->delivered;
		} else if (h->probe_done) {
			h->probe_round_done |= h->round_start;
			if (h->probe_round_done && now > h->probe_done) {
				h->min_rtt_at = now;
				f->cwnd = f->cwnd > h->prior_cwnd ? f->cwnd : h->prior_cwnd;
				h->state = BBR_STARTUP;
				if (h->full_rounds >= 3)
					bbr_enter_probe_bw(h);
			}
		}
	}
	if (acked)
		h->idle_restart = false;
}

static void bbr_set_gains(struct bbr *h)
{
	h->pacing_gain = h->cwnd_gain = 1;
	if (h->state == BBR_STARTUP)
		h->pacing_gain = h->cwnd_gain = BBR_HIGH_GAIN;
	if (h->state == BBR_DRAIN)
		h->pacing_gain = 1 / BBR_HIGH_GAIN, h->cwnd_gain = BBR_HIGH_GAIN;
	if (h->state == BBR_PROBE_BW) {
		h->pacing_gain = h->policer.uses ? 1 : bbr_cycle[h->phase];
		h->cwnd_gain = 2;
	}
}

static void bbr_set_cwnd(struct bbr *h, struct flow *f, u32 acked, u32 lost)
{
	u32 cwnd = f->cwnd;
	if (acked) {
		if (lost)
			cwnd = cwnd > lost + 1 ? cwnd - lost : 1;
		if (f->recovering && !h->was_recovering) {
			h->conserves = true;
			h->next_round = f->delivered;
			cwnd = f->in_flight + acked;
		} else if (!f->recovering && !f->in_timeout && (h->was_recovering || h->was_timeout)) {
			cwnd = cwnd > h->prior_cwnd ? cwnd : h->prior_cwnd;
			h->conserves = false;
		}
		h->was_recovering = f->recovering, h->was_timeout = f->in_timeout;
		if (h->conserves)
			cwnd = cwnd > f->in_flight + acked ? cwnd : f->in_flight + acked;
		else {
			u32 extra = h->extra[0] > h->extra[1] ? h->extra[0] : h->extra[1];
			double most = 0.1 * bbr_bw(h), target = bbr_inflight(h, f, h->cwnd_gain);
			if (h->full_rounds >= 3) {
				target += extra < most ? extra : most;
				cwnd = cwnd + acked < target ? cwnd + acked : target;
			} else if (cwnd < target || f->delivered < 10)
				cwnd += acked;
			cwnd = cwnd > BBR_LEAST ? cwnd : BBR_LEAST;
		}
	}
	if (h->state == BBR_PROBE_RTT && cwnd > BBR_LEAST)
		cwnd = BBR_LEAST;
	f->cwnd = cwnd;
}

static void bbr_begin(struct flow *f)
{
	struct bbr *h = f->state = calloc(1, sizeof *h);
	h->min_rtt = f->srtt_us / 1e6;
	h->min_rtt_at = h->extra_at = bbr_now();
	bbr_set_gains(h);
	f->pace = BBR_HIGH_GAIN * f->cwnd * MSS / h->min_rtt;
}

static void bbr_acked(struct flow *f, u32 acked, u32 rtt_us)
{
	struct bbr *h = f->state;
	u32 lost = f->lost - h->lost;
	h->lost = f->lost;
	bbr_update_bw(h, f, acked);
	bbr_sample_policer(h, f, lost);
	bbr_update_extra(h, f, acked);
	bbr_update_phase(h, f, lost);
	bbr_update_state(h, f);
	bbr_update_rtt(h, f, acked, rtt_us);
	bbr_set_gains(h);
	bbr_set_pace(h, f);
	bbr_set_cwnd(h, f, acked, lost);
}

static void bbr_lost(struct flow *f)
{
	bbr_save_cwnd(f->state, f->cwnd);
}

static void bbr_timeout(struct flow *f)
{
	struct bbr *h = f->state;
	bbr_save_cwnd(h, f->flight_before);
	h->was_timeout = true;
	h->full_bw = 0;
	h->round_start = true;
	h->lost = f->lost; // the sampler counts one event, the window has been reset
	bbr_sample_policer(h, f, true);
}

static void bbr_undone(struct flow *f)
{
	struct bbr *h = f->state;
	h->full_bw = 0;
	h->full_rounds = h->full_rounds < 3 ? 0 : h->full_rounds;
	bbr_no_policer(h, f);
}

// Before the first packet after an idle time.
static void bbr_resumes(struct flow *f)
{
	struct bbr *h = f->state;
	h->idle_restart = true;
	h->extra_at = bbr_now();
	h->extra_acked = 0;
	if (h->state == BBR_PROBE_BW) {
		h->pacing_gain = 1;
		bbr_set_pace(h, f);
	}
}

static const struct control bbr_control = {
	.name = "bbr",
	.begin = bbr_begin,
	.ack = bbr_acked,
	.lost = bbr_lost,
	.timeout = bbr_timeout,
	.undo = bbr_undone,
	.resume = bbr_resumes,
};
