// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// BBR version 3: its arithmetic and its state machine. For its source and the
// departures from it see bbr3.bpf.c.
//
// Bandwidths are segments per microsecond with 28 fractional bits (_q28), windows and
// amounts of data segments, times microseconds, gains percent. The names of the
// model's parameters are the draft's.
#pragma once

#include "window.h"

// Bounds that keep every product below within 64 bits: 2.9 Tb/s with segments of
// 1448 bytes, 16.8 s.
#define BBR3_BW_MAX_Q28 (1ull << 36)
#define BBR3_RTT_MAX_US (1u << 24)

#define BBR3_NONE ~0u	   // the draft's Infinity, for amounts of data and round trips,
#define BBR3_NO_BW (~0ull) // and for bandwidths

#define BBR3_STARTUP_GAIN 277u // 4 ln 2: the least that doubles the rate each round
#define BBR3_DRAIN_GAIN 50u
#define BBR3_DOWN_GAIN 90u
#define BBR3_UP_GAIN 125u
#define BBR3_CWND_GAIN 200u
#define BBR3_UP_CWND_GAIN 225u
#define BBR3_PROBE_RTT_CWND_GAIN 50u
#define BBR3_MARGIN 1u // percent, paced below the bandwidth

#define BBR3_LOSS_THRESH 2u // percent of a round that a probe may lose
#define BBR3_BETA 70u	    // percent
#define BBR3_HEADROOM 15u   // percent
#define BBR3_CWND_MIN 4u    // segments

#define BBR3_FULL_GROWTH 125u // percent: less is a plateau
#define BBR3_FULL_ROUNDS 3u
#define BBR3_FULL_LOSSES 6u // loss events of a round that end Startup
#define BBR3_DRAIN_ROUNDS 3u

#define BBR3_PROBE_RTT_INTERVAL_US 5000000u
#define BBR3_PROBE_RTT_US 200000u
#define BBR3_MIN_RTT_US 10000000u // that min_rtt is kept for
#define BBR3_PROBE_WAIT_US 2000000u // between bandwidth probes, and up to
#define BBR3_PROBE_WAIT_MORE_US 1000000u // as much more, by chance,
#define BBR3_RENO_ROUNDS 63u		 // or so many rounds at most
#define BBR3_EXTRA_ROUNDS 10u

enum bbr3_state {
	BBR3_STARTUP,
	BBR3_DRAIN,
	BBR3_DOWN,   // ProbeBW_DOWN and so on
	BBR3_CRUISE,
	BBR3_REFILL,
	BBR3_UP,
	BBR3_PROBE_RTT,
	BBR3_NO_STATE, // nothing to undo
};

// What acknowledgements tell of a bandwidth probe.
enum bbr3_acks {
	BBR3_ACKS_INIT,
	BBR3_ACKS_REFILLING,
	BBR3_ACKS_STARTING,
	BBR3_ACKS_FEEDBACK,
	BBR3_ACKS_STOPPING,
};

// bbr3_sent describes the packets sent since so many were delivered, until the next
// one's count. It stands for what the draft keeps with every packet.
struct bbr3_sent {
	u32 delivered, lost, marked, at_us;
	u32 in_flight; // the most while they were sent
};

// A power of two. A window takes half of them.
#define BBR3_SENT 32u

// bbr3 is the state of a connection.
struct bbr3 {
	// Bandwidths, q28. max_bw holds the largest of the probing cycle before and of this.
	u64 bw, max_bw[2], bw_shortterm, bw_latest, full_bw;
	u32 inflight_longterm, inflight_shortterm, inflight_latest;

	// Round trips counted by packets. A loss round starts with a round's first loss.
	u32 round_count, next_round_delivered, loss_round_delivered;
	bool round_start, loss_round_start; // with this acknowledgement
	bool loss_in_round;
	u8 loss_events;

	u32 min_rtt_us, probe_rtt_min_us;
	u64 min_rtt_at_us, probe_rtt_min_at_us;
	u64 probe_rtt_done_us; // 0: not yet known
	bool probe_rtt_expired, probe_rtt_round_done;

	// The sample of this acknowledgement: bandwidth and data that was delivered over
	// it; in flight when its newest packet was sent, and lost and marked since.
	u64 rs_bw;
	u32 rs_delivered, rs_in_flight, rs_lost, rs_marked;
	bool rs_app_limited;

	// What is sent in ProbeRTT is as if the application were the limit: packets with
	// these delivered counts.
	bool limited;
	u32 limited_from, limited_until;

	u8 state, acks, full_bw_count;
	bool full_bw_now, full_bw_reached;
	bool probe_sample; // samples are of a probe that was not answered yet
	bool probe_too_high, probe_precautionary; // the last one was
	bool idle_restart, recovering;
	u32 drain_start_round, rounds_since_probe_up;
	u64 cycle_at_us;
	u32 probe_wait_us;
	u32 up_rounds, up_acked, up_acked_per_inc;

	// Aggregation: data acknowledged beyond bw, in this interval; the most in each of
	// the last rounds, this one first, and in all but this.
	u64 extra_at_us;
	u32 extra_delivered, extra_acked, extra_before;
	u32 extra[BBR3_EXTRA_ROUNDS];

	u32 initial_cwnd, prior_cwnd;
	u64 undo_bw_shortterm;
	u32 undo_inflight_shortterm, undo_inflight_longterm;
	u8 undo_state;

	u32 lost, marked; // counters as of the last acknowledgement

	// The result.
	u64 pace; // bytes per second
	u32 cwnd;

	u32 newest; // of sent, which is the last field: see bbr3_init
	struct bbr3_sent sent[BBR3_SENT];
};

// bbr3_ack is the content of an acknowledgement.
struct bbr3_ack {
	u64 now_us;
	u32 delivered, lost, marked; // packets, ever; wrap
	u32 prior_delivered;	     // when the newest packet acknowledged was sent
	u32 sample_delivered;	     // packets since, 0 if there is no sample
	u32 sample_us;		     // 0 if it tells no bandwidth
	u32 rtt_us;		     // 0 if there is no sample
	u32 acked;		     // packets, newly
	u32 in_flight, prior_in_flight; // after and before it
	u32 reorder_us;		     // by which a loss is found later
	u32 cwnd, clamp, mss, random;
	bool app_limited, cwnd_limited, sack;
	bool fast_recovery, timeout; // in recovery, from either
};

static inline u64 bbr3_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 bbr3_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

// Whether a counter that wraps has reached another's value.
static inline bool bbr3_reached(u32 counter, u32 value)
{
	return (s32)(counter - value) >= 0;
}

// The bandwidth of some packets over some time.
static inline u64 bbr3_bw_q28(u32 packets, u32 us)
{
	return bbr3_min((bbr3_min(packets, WINDOW_MAX) << 28) / (us ? us : 1), BBR3_BW_MAX_Q28);
}

// The segments that a bandwidth delivers in some time, times gain, rounded up.
static inline u32 bbr3_segments(u64 bw_q28, u32 us, u32 gain)
{
	u64 q14 = bbr3_min(bw_q28, BBR3_BW_MAX_Q28) * bbr3_min(us, BBR3_RTT_MAX_US) >> 14;
	return bbr3_min((q14 * gain / 100 + (1 << 14) - 1) >> 14, WINDOW_MAX);
}

// The bytes per second of a bandwidth: at least one segment.
static inline u64 bbr3_bytes(u64 bw_q28, u32 mss)
{
	u64 q19 = (bbr3_min(bw_q28, BBR3_BW_MAX_Q28) * bbr3_min(mss, 1u << 16) >> 9) * 1000000;
	return bbr3_max(q19 >> 19, mss);
}

static inline u32 bbr3_pacing_gain(u8 state)
{
	switch (state) {
	case BBR3_STARTUP:
		return BBR3_STARTUP_GAIN;
	case BBR3_DRAIN:
		return BBR3_DRAIN_GAIN;
	case BBR3_DOWN:
		return BBR3_DOWN_GAIN;
	case BBR3_UP:
		return BBR3_UP_GAIN;
	}
	return 100;
}

static inline u32 bbr3_cwnd_gain(u8 state)
{
	return state == BBR3_UP ? BBR3_UP_CWND_GAIN : state == BBR3_PROBE_RTT ? BBR3_PROBE_RTT_CWND_GAIN : BBR3_CWND_GAIN;
}

static inline bool bbr3_in_probe_bw(const struct bbr3 *h)
{
	return h->state >= BBR3_DOWN && h->state <= BBR3_UP;
}

static inline bool bbr3_probing(const struct bbr3 *h)
{
	return h->state == BBR3_STARTUP || h->state == BBR3_REFILL || h->state == BBR3_UP;
}

static inline u64 bbr3_max_bw(const struct bbr3 *h)
{
	return bbr3_max(h->max_bw[0], h->max_bw[1]);
}

// The path's bandwidth-delay product by some bandwidth, times gain.
static inline u32 bbr3_bdp(const struct bbr3 *h, u64 bw_q28, u32 gain)
{
	if (h->min_rtt_us == BBR3_NONE)
		return h->initial_cwnd;
	return bbr3_segments(bw_q28, h->min_rtt_us, gain);
}

// The data that TCP hands down at once: a millisecond's worth, 64 kB at most.
static inline u32 bbr3_quantum(const struct bbr3 *h, u32 mss)
{
	return bbr3_max(bbr3_min(h->pace / 1000, 65536) / (mss ? mss : 1), 2);
}

// An amount of data in flight that lets offloads and acknowledgements of every
// second packet work.
static inline u32 bbr3_quantized(const struct bbr3 *h, u32 mss, u32 inflight)
{
	inflight = bbr3_max(bbr3_max(inflight, 3 * bbr3_quantum(h, mss)), BBR3_CWND_MIN);
	return h->state == BBR3_UP ? inflight + 2 : inflight;
}

static inline u32 bbr3_with_headroom(const struct bbr3 *h)
{
	if (h->inflight_longterm == BBR3_NONE)
		return BBR3_NONE;
	u32 headroom = bbr3_max((u64)h->inflight_longterm * BBR3_HEADROOM / 100, 1);
	return bbr3_max(h->inflight_longterm - bbr3_min(headroom, h->inflight_longterm), BBR3_CWND_MIN);
}

static inline u32 bbr3_target_inflight(const struct bbr3 *h, u32 cwnd)
{
	return bbr3_min(bbr3_bdp(h, h->bw, 100), cwnd);
}

static inline u32 bbr3_probe_rtt_cwnd(const struct bbr3 *h)
{
	return bbr3_max(bbr3_bdp(h, h->bw, BBR3_PROBE_RTT_CWND_GAIN), BBR3_CWND_MIN);
}

static inline void bbr3_start_round(struct bbr3 *h, u32 delivered)
{
	h->next_round_delivered = delivered;
}

static inline void bbr3_reset_shortterm(struct bbr3 *h)
{
	h->bw_shortterm = BBR3_NO_BW;
	h->inflight_shortterm = BBR3_NONE;
}

static inline void bbr3_reset_full_bw(struct bbr3 *h, u64 from_q28)
{
	h->full_bw = from_q28;
	h->full_bw_count = 0;
	h->full_bw_now = false;
}

// Keeps the window that recovery or ProbeRTT will be over with.
static inline void bbr3_save_cwnd(struct bbr3 *h, u32 cwnd, bool in_recovery)
{
	h->prior_cwnd = in_recovery || h->state == BBR3_PROBE_RTT ? bbr3_max(h->prior_cwnd, cwnd) : cwnd;
}

static inline void bbr3_restore_cwnd(struct bbr3 *h)
{
	h->cwnd = bbr3_max(h->cwnd, h->prior_cwnd);
}

// bbr3_enter_recovery keeps what bbr3_undo returns to.
static inline void bbr3_enter_recovery(struct bbr3 *h, u32 cwnd, bool in_recovery)
{
	bbr3_save_cwnd(h, cwnd, in_recovery);
	h->undo_state = BBR3_NO_STATE;
	h->undo_bw_shortterm = h->bw_shortterm;
	h->undo_inflight_shortterm = h->inflight_shortterm;
	h->undo_inflight_longterm = h->inflight_longterm;
}

// What was sent when so many were delivered, or as long before as given: an index.
GLOBAL u32 bbr3_sent_at(const struct bbr3 *h, u32 prior_delivered, u32 before_us)
{
	if (!h)
		return 0;
	u32 at = h->newest % BBR3_SENT, at_us = 0;
	bool found = false;
	for (u32 i = 0; i < BBR3_SENT; i++) {
		at = (h->newest - i) % BBR3_SENT;
		if (!found && bbr3_reached(prior_delivered, h->sent[at].delivered)) {
			found = true;
			at_us = h->sent[at].at_us - before_us;
		}
		if (found && bbr3_reached(at_us, h->sent[at].at_us))
			break;
	}
	return at;
}

// Notes the state of the path for the packets that are sent from now on.
static inline void bbr3_note_sent(struct bbr3 *h, const struct bbr3_ack *a)
{
	struct bbr3_sent *last = &h->sent[h->newest % BBR3_SENT];
	last->in_flight = bbr3_max(last->in_flight, a->prior_in_flight);
	u32 step = bbr3_max(2 * a->prior_in_flight / BBR3_SENT, 1);
	if (!bbr3_reached(a->delivered, last->delivered + step))
		return;
	h->newest = (h->newest + 1) % BBR3_SENT;
	struct bbr3_sent *next = &h->sent[h->newest % BBR3_SENT];
	next->delivered = a->delivered;
	next->lost = a->lost;
	next->marked = a->marked;
	next->at_us = a->now_us;
	next->in_flight = a->in_flight;
}

static inline void bbr3_look_up(struct bbr3 *h, const struct bbr3_ack *a, u32 before_us)
{
	const struct bbr3_sent *sent = &h->sent[bbr3_sent_at(h, a->prior_delivered, before_us) % BBR3_SENT];
	h->rs_in_flight = sent->in_flight;
	h->rs_lost = a->lost - sent->lost;
	h->rs_marked = a->marked - sent->marked;
}

// Whether the sample says that too much was in flight. A mark of congestion is as good
// as too much loss: its number means little, since a receiver without AccECN repeats it
// for a round trip.
static inline bool bbr3_too_high(const struct bbr3 *h, const struct bbr3_ack *a)
{
	return (u64)h->rs_lost * 100 > (u64)h->rs_in_flight * BBR3_LOSS_THRESH || (h->rs_lost && !a->sack) || h->rs_marked;
}

// The changes of state.

static inline void bbr3_start_down(struct bbr3 *h, const struct bbr3_ack *a)
{
	h->loss_in_round = false;
	h->loss_events = 0;
	h->bw_latest = 0;
	h->inflight_latest = 0;
	h->up_acked_per_inc = BBR3_NONE;
	h->rounds_since_probe_up = a->random & 1;
	h->probe_wait_us = BBR3_PROBE_WAIT_US + (a->random >> 1) % BBR3_PROBE_WAIT_MORE_US;
	h->cycle_at_us = a->now_us;
	h->acks = BBR3_ACKS_STOPPING;
	bbr3_start_round(h, a->delivered);
	h->state = BBR3_DOWN;
}

static inline void bbr3_start_refill(struct bbr3 *h, u32 delivered)
{
	bbr3_reset_shortterm(h);
	h->up_rounds = 0;
	h->up_acked = 0;
	h->probe_precautionary = false;
	h->acks = BBR3_ACKS_REFILLING;
	bbr3_start_round(h, delivered);
	h->state = BBR3_REFILL;
}

// Each round in UP, inflight_longterm rises by twice as much as in the one before.
static inline void bbr3_raise_slope(struct bbr3 *h, u32 cwnd)
{
	h->up_acked_per_inc = bbr3_max(cwnd >> bbr3_min(h->up_rounds, 30), 1);
	h->up_rounds = bbr3_min(h->up_rounds + 1, 30);
}

static inline void bbr3_start_up(struct bbr3 *h, const struct bbr3_ack *a)
{
	h->probe_sample = true;
	h->acks = BBR3_ACKS_STARTING;
	bbr3_start_round(h, a->delivered);
	bbr3_reset_full_bw(h, h->rs_bw);
	h->state = BBR3_UP;
	bbr3_raise_slope(h, a->cwnd);
}

static inline void bbr3_start_drain(struct bbr3 *h)
{
	h->state = BBR3_DRAIN;
	h->drain_start_round = h->round_count;
}

static inline void bbr3_leave_probe_rtt(struct bbr3 *h, const struct bbr3_ack *a)
{
	h->probe_rtt_min_at_us = a->now_us;
	bbr3_restore_cwnd(h);
	bbr3_reset_shortterm(h);
	h->state = BBR3_STARTUP;
	if (h->full_bw_reached) {
		bbr3_start_down(h, a);
		h->state = BBR3_CRUISE; // the queue is gone already
	}
}

static inline void bbr3_check_probe_rtt_done(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (h->probe_rtt_done_us && a->now_us > h->probe_rtt_done_us)
		bbr3_leave_probe_rtt(h, a);
}

// bbr3_undo answers the news that the losses of a recovery were none.
static inline void bbr3_undo(struct bbr3 *h, u32 cwnd, u32 delivered)
{
	h->cwnd = cwnd;
	bbr3_restore_cwnd(h);
	h->loss_in_round = false;
	h->loss_events = 0;
	bbr3_reset_full_bw(h, 0);
	h->bw_shortterm = bbr3_max(h->bw_shortterm, h->undo_bw_shortterm);
	h->inflight_shortterm = bbr3_max(h->inflight_shortterm, h->undo_inflight_shortterm);
	h->inflight_longterm = bbr3_max(h->inflight_longterm, h->undo_inflight_longterm);
	if (h->undo_state == BBR3_STARTUP && h->state != BBR3_STARTUP) {
		h->full_bw_reached = false;
		if (h->state != BBR3_PROBE_RTT)
			h->state = BBR3_STARTUP;
	} else if (h->undo_state == BBR3_UP && h->state != BBR3_UP && h->state != BBR3_PROBE_RTT) {
		bbr3_start_refill(h, delivered);
	}
	h->undo_state = BBR3_NO_STATE;
}

// The steps of an acknowledgement, in their order.

static inline void bbr3_see_limit(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (h->limited && a->sample_delivered && bbr3_reached(a->prior_delivered, h->limited_until + 1))
		h->limited = false;
	h->rs_app_limited = a->app_limited || (h->limited && bbr3_reached(a->prior_delivered, h->limited_from));
}

// A probe lost too much. lost is what this acknowledgement found lost, the last part
// of rs_lost: at some point in it the losses crossed the threshold.
static inline void bbr3_answer_probe(struct bbr3 *h, const struct bbr3_ack *a, u32 lost)
{
	u32 inflight = h->rs_in_flight - bbr3_min(lost, h->rs_in_flight);
	u64 allowed = (u64)inflight * BBR3_LOSS_THRESH, before = (u64)(h->rs_lost - bbr3_min(lost, h->rs_lost)) * 100;
	if (allowed > before)
		inflight += (allowed - before) / (100 - BBR3_LOSS_THRESH);
	h->probe_too_high = true;
	h->probe_sample = false;
	if (!h->rs_app_limited)
		h->inflight_longterm = bbr3_max(inflight, (u64)bbr3_target_inflight(h, a->cwnd) * BBR3_BETA / 100);
	if (h->state == BBR3_UP) {
		h->undo_state = BBR3_UP;
		bbr3_start_down(h, a);
	}
}

GLOBAL int bbr3_see_losses(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a || !a->sample_delivered) // with the next sample
		return 0;
	u32 lost = a->lost - h->lost;
	bool marked = a->marked != h->marked;
	h->lost = a->lost;
	h->marked = a->marked;
	if (!lost && !marked)
		return 0;
	if (!h->loss_in_round) {
		h->loss_round_delivered = a->delivered;
		bbr3_enter_recovery(h, a->cwnd, a->fast_recovery || a->timeout);
	}
	h->loss_in_round = true;
	h->loss_events += h->loss_events < BBR3_FULL_LOSSES;
	if (!h->probe_sample)
		return 0;
	bbr3_look_up(h, a, lost ? a->reorder_us : 0);
	if (bbr3_too_high(h, a))
		bbr3_answer_probe(h, a, lost);
	return 0;
}

// The sample of this acknowledgement; the round trips; the largest bandwidth.
GLOBAL int bbr3_see_sample(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	h->round_start = false;
	h->loss_round_start = false;
	h->rs_bw = 0;
	h->rs_delivered = h->rs_in_flight = h->rs_lost = h->rs_marked = 0;
	if (!a->sample_delivered)
		return 0;
	bbr3_look_up(h, a, 0);
	h->rs_delivered = a->sample_delivered;
	if (a->sample_us)
		h->rs_bw = bbr3_bw_q28(a->sample_delivered, a->sample_us);
	h->bw_latest = bbr3_max(h->bw_latest, h->rs_bw);
	h->inflight_latest = bbr3_max(h->inflight_latest, h->rs_delivered);
	if (bbr3_reached(a->prior_delivered, h->loss_round_delivered)) {
		h->loss_round_delivered = a->delivered;
		h->loss_round_start = true;
	}
	if (bbr3_reached(a->prior_delivered, h->next_round_delivered)) {
		bbr3_start_round(h, a->delivered);
		h->round_count++;
		h->rounds_since_probe_up++;
		h->round_start = true;
	}
	if (h->rs_bw > h->max_bw[1] && (!h->rs_app_limited || h->rs_bw >= bbr3_max_bw(h)))
		h->max_bw[1] = h->rs_bw;
	return 0;
}

// Startup is over if a whole round of recovery lost too much.
static inline void bbr3_check_high_loss(struct bbr3 *h, const struct bbr3_ack *a)
{
	bool lossy = a->fast_recovery && bbr3_too_high(h, a) && (h->loss_events >= BBR3_FULL_LOSSES || !a->sack);
	if (h->state != BBR3_STARTUP || !bbr3_max_bw(h) || !(lossy || h->rs_marked))
		return;
	h->undo_state = BBR3_STARTUP;
	h->full_bw_now = h->full_bw_reached = true;
	h->inflight_longterm = bbr3_max(bbr3_bdp(h, h->bw, 100), h->inflight_latest);
}

// At the end of a round with losses.
GLOBAL int bbr3_end_loss_round(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->loss_in_round && !bbr3_probing(h)) {
		if (h->bw_shortterm == BBR3_NO_BW)
			h->bw_shortterm = bbr3_max_bw(h);
		if (h->inflight_shortterm == BBR3_NONE) // a timeout leaves the window of one packet
			h->inflight_shortterm = a->timeout ? bbr3_max(a->cwnd, h->prior_cwnd) : a->cwnd;
		h->bw_shortterm = bbr3_max(h->bw_latest, h->bw_shortterm / 100 * BBR3_BETA);
		h->inflight_shortterm = bbr3_max(h->inflight_latest, (u64)h->inflight_shortterm * BBR3_BETA / 100);
	}
	if (h->loss_in_round)
		bbr3_check_high_loss(h, a);
	h->loss_in_round = false;
	h->loss_events = 0;
	return 0;
}

GLOBAL int bbr3_see_aggregation(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->round_start) {
		h->extra_before = 0;
#pragma clang loop unroll(full)
		for (u32 i = BBR3_EXTRA_ROUNDS - 1; i > 0; i--) {
			h->extra[i] = h->extra[i - 1];
			if ((h->full_bw_reached || i == 1) && h->extra[i] > h->extra_before)
				h->extra_before = h->extra[i];
		}
		h->extra[0] = 0;
	}
	u32 expected = bbr3_segments(h->bw, bbr3_min(a->now_us - h->extra_at_us, BBR3_RTT_MAX_US), 100);
	if (h->extra_delivered <= expected) {
		h->extra_delivered = 0;
		h->extra_at_us = a->now_us;
		expected = 0;
	}
	h->extra_delivered += bbr3_min(a->acked, WINDOW_MAX);
	u32 extra = bbr3_min(h->extra_delivered - bbr3_min(expected, h->extra_delivered), a->cwnd);
	h->extra[0] = bbr3_max(h->extra[0], extra);
	h->extra_acked = bbr3_max(h->extra[0], h->extra_before);
	return 0;
}

// Whether an accelerating rate has met a plateau.
static inline void bbr3_check_full_bw(struct bbr3 *h)
{
	if (h->full_bw_now || !h->round_start || h->rs_app_limited || !h->rs_bw)
		return;
	if (h->rs_bw * 100 >= h->full_bw * BBR3_FULL_GROWTH) {
		bbr3_reset_full_bw(h, h->rs_bw);
		return;
	}
	h->full_bw_now = ++h->full_bw_count >= BBR3_FULL_ROUNDS;
	h->full_bw_reached |= h->full_bw_now;
}

static inline void bbr3_check_startup_and_drain(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (h->state == BBR3_STARTUP && h->full_bw_reached)
		bbr3_start_drain(h);
	if (h->state == BBR3_DRAIN && (a->in_flight <= bbr3_quantized(h, a->mss, bbr3_bdp(h, h->bw, 100)) ||
				       h->round_count > h->drain_start_round + BBR3_DRAIN_ROUNDS))
		bbr3_start_down(h, a);
}

// The bounds of the long term. Returns whether it has changed the state.
static inline bool bbr3_adapt_longterm(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (h->acks == BBR3_ACKS_STARTING && h->round_start)
		h->acks = BBR3_ACKS_FEEDBACK;
	if (h->acks == BBR3_ACKS_STOPPING && h->round_start) {
		h->probe_sample = false;
		h->acks = BBR3_ACKS_INIT;
		if (bbr3_in_probe_bw(h) && !h->rs_app_limited && h->max_bw[1]) {
			h->max_bw[0] = h->max_bw[1];
			h->max_bw[1] = 0;
		}
		if (bbr3_in_probe_bw(h) && h->probe_precautionary && !h->probe_too_high) {
			bbr3_start_refill(h, a->delivered);
			return true;
		}
	}
	if (!h->rs_delivered || bbr3_too_high(h, a) || h->inflight_longterm == BBR3_NONE)
		return false;
	h->inflight_longterm = bbr3_max(h->inflight_longterm, h->rs_in_flight);
	if (h->state != BBR3_UP || !a->cwnd_limited || a->cwnd < h->inflight_longterm)
		return false;
	h->up_acked += bbr3_min(a->acked, WINDOW_MAX);
	u32 steps = h->up_acked / bbr3_max(h->up_acked_per_inc, 1);
	h->up_acked -= steps * h->up_acked_per_inc;
	h->inflight_longterm = bbr3_min((u64)h->inflight_longterm + steps, WINDOW_MAX);
	if (h->round_start)
		bbr3_raise_slope(h, a->cwnd);
	return false;
}

// A flow probes after two to three seconds, or after as many rounds as a Reno flow of
// its window has between losses.
static inline bool bbr3_time_to_probe(const struct bbr3 *h, const struct bbr3_ack *a)
{
	u32 rounds = bbr3_min(bbr3_target_inflight(h, a->cwnd), BBR3_RENO_ROUNDS);
	return a->now_us > h->cycle_at_us + h->probe_wait_us || h->rounds_since_probe_up >= rounds;
}

static inline bool bbr3_time_to_go_down(struct bbr3 *h, const struct bbr3_ack *a)
{
	// After the acknowledgement less is in flight than the window, which that bounds.
	if (h->probe_too_high && a->prior_in_flight >= h->inflight_longterm) {
		h->probe_precautionary = true;
		return true;
	}
	if (a->cwnd_limited && a->cwnd >= h->inflight_longterm) {
		bbr3_reset_full_bw(h, h->rs_bw); // the bound is the limit, and not the path
		return false;
	}
	return h->full_bw_now;
}

GLOBAL int bbr3_advance_cycle(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	if (!h->full_bw_reached || bbr3_adapt_longterm(h, a))
		return 0;
	switch (h->state) {
	case BBR3_DOWN:
	case BBR3_CRUISE:
		if (bbr3_time_to_probe(h, a))
			bbr3_start_refill(h, a->delivered);
		else if (a->in_flight <= bbr3_with_headroom(h) &&
			 a->in_flight <= bbr3_quantized(h, a->mss, bbr3_bdp(h, bbr3_max_bw(h), 100)))
			h->state = BBR3_CRUISE;
		break;
	case BBR3_REFILL:
		if (h->round_start)
			bbr3_start_up(h, a);
		break;
	case BBR3_UP:
		if (bbr3_time_to_go_down(h, a)) {
			h->probe_too_high = false; // not yet
			bbr3_start_down(h, a);
		}
	}
	return 0;
}

GLOBAL int bbr3_see_rtt(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	h->probe_rtt_expired = a->now_us > h->probe_rtt_min_at_us + BBR3_PROBE_RTT_INTERVAL_US;
	if (a->rtt_us && (a->rtt_us < h->probe_rtt_min_us || h->probe_rtt_expired)) {
		h->probe_rtt_min_us = a->rtt_us;
		h->probe_rtt_min_at_us = a->now_us;
	}
	if (h->probe_rtt_min_us < h->min_rtt_us || a->now_us > h->min_rtt_at_us + BBR3_MIN_RTT_US) {
		h->min_rtt_us = h->probe_rtt_min_us;
		h->min_rtt_at_us = h->probe_rtt_min_at_us;
	}
	return 0;
}

GLOBAL int bbr3_check_probe_rtt(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->state != BBR3_PROBE_RTT && h->probe_rtt_expired && !h->idle_restart) {
		bbr3_save_cwnd(h, a->cwnd, a->fast_recovery || a->timeout);
		h->state = BBR3_PROBE_RTT;
		h->probe_rtt_done_us = 0;
		h->acks = BBR3_ACKS_STOPPING;
		bbr3_start_round(h, a->delivered);
	}
	if (h->state == BBR3_PROBE_RTT) {
		if (!h->limited)
			h->limited_from = a->delivered;
		h->limited = true; // low rates tell nothing of the path
		h->limited_until = a->delivered + a->in_flight;
		if (!h->probe_rtt_done_us && a->in_flight <= bbr3_probe_rtt_cwnd(h)) {
			h->probe_rtt_done_us = a->now_us + BBR3_PROBE_RTT_US;
			h->probe_rtt_round_done = false;
			bbr3_start_round(h, a->delivered);
		} else if (h->probe_rtt_done_us) {
			h->probe_rtt_round_done |= h->round_start;
			if (h->probe_rtt_round_done)
				bbr3_check_probe_rtt_done(h, a);
		}
	}
	if (a->sample_delivered)
		h->idle_restart = false;
	return 0;
}

static inline void bbr3_set_pace(struct bbr3 *h, u32 mss, u32 gain)
{
	u64 pace = bbr3_max(bbr3_bytes(h->bw, mss) * gain * (100 - BBR3_MARGIN) / 10000, mss);
	if (h->full_bw_reached || pace > h->pace)
		h->pace = pace;
}

// Pace and window from the present model.
GLOBAL int bbr3_apply(struct bbr3 *h, const struct bbr3_ack *a)
{
	if (!h || !a)
		return 0;
	bbr3_set_pace(h, a->mss, bbr3_pacing_gain(h->state));

	u64 cwnd = h->cwnd;
	u32 most = bbr3_quantized(h, a->mss, bbr3_bdp(h, h->bw, bbr3_cwnd_gain(h->state)) + h->extra_acked);
	if (h->full_bw_reached)
		cwnd = bbr3_min(cwnd + a->acked, most);
	else if (cwnd < most || a->delivered < h->initial_cwnd)
		cwnd += a->acked;
	if (h->state == BBR3_PROBE_RTT)
		cwnd = bbr3_min(cwnd, bbr3_probe_rtt_cwnd(h));
	u32 cap = BBR3_NONE;
	if (h->state == BBR3_PROBE_RTT || h->state == BBR3_CRUISE)
		cap = bbr3_with_headroom(h);
	else if (bbr3_in_probe_bw(h))
		cap = h->inflight_longterm;
	cwnd = bbr3_min(cwnd, bbr3_min(cap, h->inflight_shortterm));
	h->cwnd = window_bound(bbr3_max(cwnd, BBR3_CWND_MIN), a->clamp);
	return 0;
}

// bbr3_update processes an acknowledgement.
static inline void bbr3_update(struct bbr3 *h, const struct bbr3_ack *a)
{
	bool recovering = a->fast_recovery || a->timeout;
	h->cwnd = a->cwnd;
	if (h->recovering && !recovering)
		bbr3_restore_cwnd(h);
	h->recovering = recovering;

	bbr3_see_limit(h, a);
	bbr3_see_losses(h, a);
	bbr3_see_sample(h, a);
	if (h->loss_round_start)
		bbr3_end_loss_round(h, a);
	bbr3_see_aggregation(h, a);
	bbr3_check_full_bw(h);
	bbr3_check_startup_and_drain(h, a);
	bbr3_advance_cycle(h, a);
	bbr3_see_rtt(h, a);
	bbr3_check_probe_rtt(h, a);
	if (h->loss_round_start) {
		h->bw_latest = h->rs_bw;
		h->inflight_latest = h->rs_delivered;
	}
	h->bw = bbr3_min(bbr3_max_bw(h), h->bw_shortterm);
	bbr3_note_sent(h, a);
	bbr3_apply(h, a);
}

// bbr3_restart prepares for the first packet after an idle time: call it when nothing
// is in flight and the application was the limit.
static inline void bbr3_restart(struct bbr3 *h, const struct bbr3_ack *a)
{
	h->idle_restart = true;
	h->extra_at_us = a->now_us;
	if (bbr3_in_probe_bw(h)) {
		bbr3_set_pace(h, a->mss, 100);
	} else if (h->state == BBR3_PROBE_RTT) {
		h->cwnd = a->cwnd;
		bbr3_check_probe_rtt_done(h, a);
	}
}

static inline void bbr3_init(struct bbr3 *h, const struct bbr3_ack *a, u32 srtt_us)
{
	__builtin_memset(h, 0, __builtin_offsetof(struct bbr3, sent)); // BPF clears 1 kB at once, at most
	for (u32 i = 0; i < BBR3_SENT; i++)
		h->sent[i] = (struct bbr3_sent){a->delivered, a->lost, a->marked, a->now_us, 0};
	h->min_rtt_us = h->probe_rtt_min_us = srtt_us ? srtt_us : BBR3_NONE;
	h->min_rtt_at_us = h->probe_rtt_min_at_us = h->extra_at_us = a->now_us;
	h->inflight_longterm = h->undo_inflight_longterm = h->undo_inflight_shortterm = h->up_acked_per_inc = BBR3_NONE;
	h->undo_bw_shortterm = BBR3_NO_BW;
	bbr3_reset_shortterm(h);
	h->undo_state = BBR3_NO_STATE;
	h->cwnd = h->initial_cwnd = a->cwnd;
	h->next_round_delivered = h->loss_round_delivered = a->delivered;
	h->lost = a->lost;
	h->marked = a->marked;
	h->pace = bbr3_bytes(bbr3_bw_q28(a->cwnd, srtt_us ? srtt_us : 1000), a->mss) * BBR3_STARTUP_GAIN / 100;
}
