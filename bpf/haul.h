// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul's arithmetic and decisions. For its purpose see haul.bpf.c.
//
// Rates are bytes of payload per second, times microseconds, windows segments.
// A suffix _q16 marks a share or a factor with 16 fractional bits.
#pragma once

#include "window.h"

// HAUL_RULE is a rule's switch. The simulator can switch rules off, to show what each is
// good for: hosttest/haulrules.h lists them.
#ifndef HAUL_RULE
#define HAUL_RULE(name) true
#endif

// What the verifier wants on top of a function that it checks by itself.
#define HAUL_ARGS(given)          \
	do {                      \
		if (!(given))     \
			return 0; \
	} while (0)

#define HAUL_ONE 65536u // 1.0 in q16

// Bounds that keep every product below within 64 bits: 2.2 Tb/s, 16.8 s.
#define HAUL_RATE_MAX (1ull << 38)
#define HAUL_RTT_MAX_US (1u << 24)

#define HAUL_WINDOW_MIN 4u // segments

// Start-up doubles each round trip: a gain of x ln(x)/(1 - 1/x), x = 2, since a
// rate sample is the mean over the round trip before, while the rate doubles.
#define HAUL_STARTUP_GAIN_Q16 181680u // 2.772

// On a long round trip it triples, x = 3, until a packet is lost. A queue is seen a round
// trip after it began. So haul looks four times as often, and the rate waits at the first
// sign of one, as HyStart++ slows down (RFC 9406). The queue then becomes no longer than
// doubling makes it.
#define HAUL_LONG_RTT_US 250000u
#define HAUL_TRIPLE_GAIN_Q16 323994u // 4.944

#define HAUL_STARTUP_GROWTH_Q16 81920u // 1.25: a round that grows by less is flat
#define HAUL_FLAT_ROUNDS 3u // of start-up without growth, or of a restored rate
#define HAUL_STARTUP_PACKETS 128u // sent in a round, before its loss may end start-up, or a queue slow it down

// Careful Resume (RFC 9959): a connection begins with what the path carried before.
#define HAUL_CARRIED_US 600000000u // that it is remembered for
#define HAUL_RESUME_PACKETS 6u	   // to arrive first: half of the first window, and the SYN

#define HAUL_PROBE_GAIN_Q16 58982u // 0.9, of what arrives

#define HAUL_BW_EPOCHS 5u	 // that a largest delivery is kept for, once or twice
#define HAUL_LATE_MAX 4u	 // eighths

#define HAUL_LOSS_LEAST_Q16 2u    // 0.00003: below, the path is taken to lose nothing by itself
#define HAUL_LOSS_MAX_Q16 32768u  // 0.5
#define HAUL_LOSS_PACKETS 1024u   // that the recent share of loss is pooled over

// Losses that are no overflow: the path has carried twice the queue.
#define HAUL_SPARED_US 4000u // CoDel drops nothing below 5 ms: RFC 8289, section 4.4
#define HAUL_SPARED_Q16 512u // 1/128: a larger share may be a policer's

// Losses that show the path's own share: fewer may be a burst.
#define HAUL_FLOOR_LOSSES 6u
#define HAUL_FLOOR_SURE 16u    // that tell it well

#define HAUL_RAISES_MAX 5u // the interval between raises doubles so often: 32 s

#define HAUL_CLOCK_US 64u      // a rate over less is wrong by more than 1.6 %: times are in whole us
// An epoch is a round trip with at least so many packets, or so many rounds. Each quarter of
// a round trip has a quarter of the packets, at least.
#define HAUL_EPOCH_PACKETS 48u
#define HAUL_ROUNDS 8u

#define HAUL_PROBE_INTERVAL_US 10000000u
#define HAUL_TEST_ROUNDS 10u // at least between a test of a queue and the next
// Bits of the clock by which a host's connections act together: 4.2 s. In each they say what
// they get, and may test what may be a rival. Twice that is between probes, and four times
// between tests beside a rival that was found.
#define HAUL_SLOT 22u

enum haul_mode {
	HAUL_STARTUP, // double until the path is full
	HAUL_DRAIN,   // send half, for as long as that shortens the round trip
	HAUL_RESTORE, // send what was delivered before: does the queue come back?
	HAUL_CRUISE,  // keep a small queue
	HAUL_PROBE,   // send less than arrives, to learn the path's own delay and loss
	HAUL_COMPETE, // loss or a queue that is not ours: CUBIC's window
	HAUL_RAISE,   // send twice as much: does the same share get lost?
};

// The phases of Careful Resume.
enum haul_resume {
	HAUL_RECONNAISSANCE, // see whether this is the path that is remembered
	HAUL_UNVALIDATED,    // send half of what it carried, for a round trip
	HAUL_VALIDATING,     // that arrives: send as much as it carried
	HAUL_NORMAL,	     // it is over, or it has not begun
	HAUL_RETREAT,	     // it is over, since the path does not carry that
};

// haul_floor is the share of packets that the path loses by itself. It is proved in
// start-up or by a raise.
struct haul_floor {
	u32 share_q16;
	u32 most_q16;  // that it may be, by so few losses
	u32 lost, got; // of what probes have sent since it was proved
	u64 looked_us; // when a probe last looked at it
};

// haul_carried is what the path carried for connections that did not lack data.
struct haul_carried {
	u64 rate;    // of arrival, all connections of the host together; 0: not known
	u64 seen_us; // when it last carried that
	u32 rtt_us;  // least round trip
	u32 floor_q16;
};

// haul_path is the shared state of a host's connections to one destination: RFC 9040
// calls that ensemble sharing.
struct haul_path {
	struct haul_carried carried; // first, for user space
	u64 used_us;		     // when one of them last looked
	struct haul_floor floor;
	u32 room_us;
	u32 raises; // of late
	u64 room_seen_us;
	u64 raise_us, test_us; // when one of them last began to
	u64 resume_us;	       // when one last began with what the path carried

	// The number of connections, and the total goodput of those past start-up:
	// so far in this period, and in the one before.
	u64 period;
	u32 all, all_before;
	u32 flows, flows_before;
	u64 sum, sum_before;
};

// haul is the state of a connection.
struct haul {
	u64 rate;	   // to send at, what gets lost included
	u64 bw, bw_before; // the largest delivery of this period, and of the one before
	u64 full_bw;	   // what growth is held against: the rate before it, or before a queue
	u64 delivery;	   // in the last epoch
	u64 pace_before;   // in the epoch before

	// The epoch under way: time and counters at its start.
	u64 epoch_us;
	u32 epoch_delivered, epoch_lost, epoch_spurious, epoch_sent;
	u32 round_delivered; // the round ends when what was sent beyond this is acknowledged
	u32 rtt_low_us;	     // least round trip of the epoch, ~0 if none
	u32 rtt_high_us;     // highest of its quarters' least round trips
	u64 last_ack_us;

	// The last epoch: packets delivered and lost; the queue at its end, and the
	// longest.
	u32 got, missed;
	u32 queue_us, queue_high_us;

	// Least round trip: of the current and of the previous period.
	u32 min_rtt_us, min_rtt_next_us;
	u64 min_rtt_start_us; // 0 without a round trip of data
	u64 low_us; // when the path was last seen empty

	// Loss: the recent share.
	u32 loss_q16;
	u32 ever; // packets delivered; stays at its bound, where the kernel's counter wraps
	u32 floor_q16, most_q16; // the path's own, and what it may be; in a raise those on trial

	// Evidence for a floor: the loss while start-up grew, or beside CUBIC's window in epochs
	// that no overflow ended, and the number of those with a loss. A raise tests it.
	u32 seen_lost, seen_got, seen_lossy;
	u32 raise_lost, raise_got;	  // of the raise under way, but its last step
	u32 step_lost, step_got;	  // of its last step, or of start-up's last round

	// The connections to the same destination.
	u64 told, told_delivery; // the period in which this one last said what it gets, and that
	u64 mean;		 // what each gets on average; 0 if not known or alone
	u32 others;		 // how many there are besides this one

	// CUBIC's window: W_max and K give what the last cut left.
	u32 window_max, k_ms;
	u64 cut_us, test_us;
	u32 cut_lost, cut_marked;
	u64 cut_delivery; // before the first cut

	// Half of the queue that fits the buffer, as far as losses have shown it.
	u32 room_us;
	u64 room_seen_us;

	u32 passed_us; // the longest queue that the path has carried without overflowing

	u64 mark_us;	   // when the flow last shortened its queue because of marks,
	u32 mark_room_us; // and by them half of the queue that is not marked

	// A queue above the target.
	u32 excess_us;	// the most of it; 0 without one
	u32 yielded_us; // by as much it had to become shorter, by what we sent less
	u64 ref;	// largest delivery since: what a test restores. In a raise, that before its
			// step; in Careful Resume, what the path carried

	// A test of it: the round trip before and at the least.
	u32 before_us, drain_low_us;

	// Least round trip of the quarter under way, and of the one before.
	u32 quarter_low_us, recent_low_us, quarter_samples;
	u64 quarter_start_us, quarter_sum_us;
	u32 noise_us; // by which the least of a quarter exceeds the path's, without a queue

	u8 mode;
	u8 resume; // phase of Careful Resume
	u8 from;   // mode before a test
	u8 period; // epochs of the bandwidth's period
	u8 rounds; // of the epoch
	u8 phase;  // epochs in this mode
	u8 flat;   // rounds of start-up without growth, or of a drain without effect
	u8 empty;  // epochs without any queue
	u8 late;   // eighths that the pace is raised by, since it is kept late
	u8 cuts;   // of CUBIC's window since it decides, two at most
	bool rival; // the last test found one
	bool limited;	  // by the application or the receiver, in this epoch
	bool was_limited; // by these or anything else, in the one before

	// The result. Beside a rival the window is CUBIC's.
	u64 pace;
	u32 cwnd;
};

// haul_ack is the content of an acknowledgement.
struct haul_ack {
	u64 now_us;
	u32 delivered, lost, sent; // packets, ever; wrap
	u32 acked;		   // delivered by this one
	u32 marked;		   // of those delivered, with congestion experienced
	u32 spurious;		   // of those taken for lost, that were there after all
	u32 prior_delivered;	   // when the packet acknowledged was sent
	u32 sample_delivered;	   // packets over
	u32 sample_us;		   // 0 if there is no sample
	u32 rtt_us;		   // 0 if there is no sample
	u32 srtt_us;
	u32 in_flight, mss, clamp;
	bool limited; // by the application or the receiver
};

static inline void haul_probe(struct haul *h);
static inline void haul_test_all(struct haul *h, const struct haul_ack *a, struct haul_path *p, u64 ref);

#include "haul/law.h"
#include "haul/ensemble.h"
#include "haul/compete.h"
#include "haul/loss.h"
#include "haul/resume.h"

GLOBAL int haul_end_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	HAUL_ARGS(h && a && p);
	u32 us = haul_took_us(h, a);
	u32 delivered = haul_counted(a->delivered, h->epoch_delivered);
	u32 spurious = haul_counted(a->spurious, h->epoch_spurious);
	s32 net = (s32)(a->lost - h->epoch_lost - spurious);
	u32 lost = net > 0 ? net : 0;

	// Most packets are lost, or sent in vain, now and in the epoch before.
	bool vain = lost > delivered + delivered / 2 && h->missed > h->got + h->got / 2;
	h->got = delivered;
	haul_see_passed(h, lost, delivered);
	h->missed = lost;
	// More arrives than was sent only from a queue, or over a path that has just
	// become shorter: it is not the path's capacity.
	h->delivery = haul_rate_of(delivered, a->mss, us);
	// With jitter an eighth more may be by chance.
	if (HAUL_RULE(pace) && h->mode != HAUL_DRAIN)
		h->delivery = haul_min(h->delivery, haul_max(h->pace, h->pace_before) / 8 * 9);
	h->pace_before = h->pace;
	h->ever = haul_min((u64)h->ever + delivered, WINDOW_MAX);
	if (!haul_just_cut(h, a))
		haul_pool_loss(h, p, net, delivered);
	if (h->rtt_low_us != ~0u) {
		h->queue_us = haul_queue_us(h, haul_max(h->rtt_low_us, haul_min(h->recent_low_us, h->quarter_low_us)));
		h->queue_high_us = haul_max(h->queue_us, haul_queue_us(h, h->rtt_high_us));
	} else if (lost > delivered / 8 && delivered >= HAUL_EPOCH_PACKETS) {
		// No sample, since all acknowledged data was sent again: the round trip was long.
		h->queue_us = haul_max(h->queue_us, haul_congested_us(h) + 1);
	} else {
		h->queue_us /= 2; // that nothing shows any more
	}
	// A flow that did not send at its rate does not see the path's capacity.
	u64 sent = haul_rate_of(haul_counted(a->sent, h->epoch_sent), a->mss, us);
	bool paced = h->mode != HAUL_COMPETE && h->mode != HAUL_DRAIN;
	bool limited = h->limited || (paced && sent < haul_scale(h->pace, 55706)); // 0.85
	haul_see_lateness(h, a, sent);
	haul_remember_loss(h, a);
	if (h->mode == HAUL_CRUISE || h->mode == HAUL_PROBE)
		haul_see_bw(h, a);
	h->was_limited = limited;

	if (HAUL_RULE(vain) && vain && h->mode != HAUL_STARTUP) { // use the arrival rate
		h->floor_q16 = p->floor.share_q16; // a raise has proved nothing
		haul_cruise(h, a, h->delivery);
		h->rate = h->delivery;
		h->loss_q16 = h->floor_q16;
		haul_begin_epoch(h, a);
		return 0;
	}
	// While another flow tests, this flow's traffic would look like a rival.
	if (HAUL_RULE(join) && h->others && !limited && p->test_us > h->test_us && haul_since(a->now_us, p->test_us) < 2 * a->srtt_us &&
	    (h->mode == HAUL_CRUISE || h->mode == HAUL_COMPETE)) {
		haul_test(h, a, h->delivery);
		haul_begin_epoch(h, a);
		return 0;
	}
	switch (h->mode) {
	case HAUL_STARTUP:
		if (haul_jumps(h))
			haul_resume_epoch(h, a);
		else
			haul_startup_epoch(h, a, p);
		break;
	case HAUL_DRAIN:
		haul_drain_epoch(h, a);
		break;
	case HAUL_RESTORE:
		haul_restore_epoch(h, a, p);
		break;
	case HAUL_CRUISE:
		haul_cruise_epoch(h, a, p);
		break;
	case HAUL_PROBE:
		haul_probe_epoch(h, a, p);
		break;
	case HAUL_RAISE:
		haul_raise_epoch(h, a, p);
		break;
	default:
		if (HAUL_RULE(raise) && haul_may_raise(h, a, p))
			haul_raise(h, a);
		else
			haul_compete_epoch(h, a, p);
	}
	haul_begin_epoch(h, a);
	return 0;
}

GLOBAL int haul_see_rtt(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u32 rtt = a->rtt_us;
	if (!rtt)
		return 0;
	h->rtt_low_us = haul_min(h->rtt_low_us, rtt);
	// The handshake's packets were short: on a slow path their time is less.
	if (!h->min_rtt_start_us || haul_since(a->now_us, h->min_rtt_start_us) > 2 * HAUL_PROBE_INTERVAL_US) {
		h->min_rtt_us = h->min_rtt_next_us;
		h->min_rtt_next_us = rtt;
		h->min_rtt_start_us = a->now_us;
	}
	h->min_rtt_next_us = haul_min(h->min_rtt_next_us, rtt);
	h->min_rtt_us = haul_min(h->min_rtt_us, rtt);
	if (rtt <= h->min_rtt_us + h->min_rtt_us / 128 + 1000)
		h->low_us = a->now_us;

	h->quarter_low_us = haul_min(h->quarter_low_us, rtt);
	h->quarter_samples++;
	h->quarter_sum_us += rtt;
	bool sooner = h->mode == HAUL_STARTUP && h->min_rtt_us >= HAUL_LONG_RTT_US;
	if (h->quarter_samples < HAUL_EPOCH_PACKETS / 4 || haul_since(a->now_us, h->quarter_start_us) < h->min_rtt_us / (sooner ? 16 : 4))
		return 0;
	u32 spread_us = h->quarter_sum_us / h->quarter_samples - h->quarter_low_us;
	h->noise_us = !HAUL_RULE(noise) ? 0 : h->noise_us ? (7ull * h->noise_us + spread_us / 3) / 8 : spread_us / 3;
	h->recent_low_us = h->quarter_low_us;
	h->rtt_high_us = haul_max(h->rtt_high_us, h->quarter_low_us);
	h->quarter_low_us = ~0u;
	h->quarter_samples = 0;
	h->quarter_sum_us = 0;
	h->quarter_start_us = a->now_us;
	if (h->mode != HAUL_STARTUP || h->resume == HAUL_UNVALIDATED ||
	    h->recent_low_us <= h->min_rtt_us + haul_startup_queue_us(h->min_rtt_us) + h->noise_us)
		return 0;
	h->queue_us = h->recent_low_us - h->min_rtt_us;
	if (h->resume == HAUL_VALIDATING)
		haul_retreat(h, a);
	else
		haul_leave_startup(h, a);
	return 0;
}

// Pace and window from the present state.
GLOBAL int haul_apply(struct haul *h, const struct haul_ack *a)
{
	HAUL_ARGS(h && a);
	u64 rate = h->rate;
	u32 gain = HAUL_ONE, window, rtt = h->min_rtt_us;

	if (h->mode == HAUL_COMPETE) {
		h->cwnd = window_bound(haul_max(h->cwnd, HAUL_WINDOW_MIN), a->clamp);
		h->pace = haul_max(haul_scale(haul_rate_of(h->cwnd, a->mss, a->srtt_us), 78643), a->mss); // 1.2
		return 0;
	}
	if (h->mode == HAUL_DRAIN && h->from != HAUL_STARTUP) {
		rate = haul_needed(h, h->ref);
		window = haul_segments(rate, haul_min(h->drain_low_us, a->srtt_us), a->mss) / 2;
		h->cwnd = window_bound(haul_max(window, HAUL_WINDOW_MIN), a->clamp);
		h->pace = haul_max(haul_scale(rate, HAUL_ONE / 2), haul_rate_of(HAUL_WINDOW_MIN, a->mss, a->srtt_us));
		return 0;
	}
	u32 factor = haul_startup_factor(h, a);
	bool jumps = haul_jumps(h);
	if (h->mode == HAUL_STARTUP && !jumps)
		gain = factor == 3 ? HAUL_TRIPLE_GAIN_Q16 : factor == 2 ? HAUL_STARTUP_GAIN_Q16 : HAUL_ONE;
	else if (h->mode == HAUL_DRAIN)
		gain = HAUL_ONE / 2;
	else if (h->mode == HAUL_RESTORE)
		rate = haul_scale(haul_needed(h, h->ref), 64225), rtt = h->drain_low_us; // 0.98
	else if (h->mode == HAUL_PROBE && h->phase < haul_probe_rounds(h))
		rate = haul_min(rate, haul_bw(h)), gain = haul_probe_gain_q16(h);
	else
		gain += HAUL_ONE / 8 * h->late;
	if (HAUL_RULE(quarter) && h->mode == HAUL_CRUISE) { // a queue that has grown since the last epoch
		u32 now = haul_queue_us(h, haul_min(h->recent_low_us, h->quarter_low_us));
		u32 target = haul_max(h->queue_us, haul_queue_target_us(h, a));
		gain -= haul_min(((u64)(haul_max(now, target) - target) << 16) / ((u64)haul_min(h->min_rtt_us, HAUL_RTT_MAX_US) + 1), HAUL_ONE / 4);
	}
	// The rate is at least two packets for each round trip; the window bounds it.
	rate = haul_max(rate, haul_rate_of(2, a->mss, a->srtt_us));
	h->pace = haul_max(haul_scale(rate, gain), a->mss);

	// One and a half times the data that the path holds, jitter included.
	u32 jitter = a->srtt_us > rtt + h->queue_us ? a->srtt_us - rtt - h->queue_us : 0;
	window = haul_segments(rate, rtt + haul_min(jitter, rtt), a->mss);
	if (h->mode == HAUL_STARTUP && !jumps)
		window *= 2 * haul_max(factor, 2) - 1; // growth by x needs x round trips of the rate
	else
		window += window / 2;
	u32 burst = haul_max(1, haul_min(h->pace / 1000, 65536) / (a->mss ? a->mss : 1));
	window = haul_max(window, HAUL_WINDOW_MIN) + 2 * burst;
	if (jumps) // and as in slow start: a packet more for each that arrives
		window = haul_min(window, (u64)h->cwnd + (h->resume == HAUL_VALIDATING ? a->acked : 0));
	h->cwnd = window_bound(window, a->clamp);
	return 0;
}

static inline void haul_init(struct haul *h, const struct haul_ack *a, u32 cwnd)
{
	__builtin_memset(h, 0, sizeof *h);
	h->min_rtt_us = a->srtt_us ? a->srtt_us : ~0u;
	h->cwnd = cwnd;
	h->quarter_low_us = h->recent_low_us = ~0u;
	h->quarter_start_us = h->last_ack_us = h->low_us = h->test_us = a->now_us;
	h->room_us = ~0u;
	h->cut_lost = a->lost;
	h->cut_marked = a->marked;
	h->min_rtt_next_us = ~0u;
	haul_begin_epoch(h, a);
	h->bw = h->rate = haul_rate_of(cwnd, a->mss, a->srtt_us ? a->srtt_us : 1000);
	h->pace = haul_scale(h->rate, HAUL_STARTUP_GAIN_Q16);
}

// Evaluates losses and marks since the last cut.
static inline void haul_see_congestion(struct haul *h, const struct haul_ack *a)
{
	u32 lost = haul_counted(a->lost, h->cut_lost), marked = haul_counted(a->marked, h->cut_marked);
	if ((!lost && !marked) || h->mode == HAUL_RESTORE) // the test comes first
		return;
	h->cut_lost = a->lost;
	h->cut_marked = a->marked;
	u32 gone = haul_counted(a->lost, h->epoch_lost), came = haul_counted(a->delivered, h->epoch_delivered);
	if (h->mode == HAUL_STARTUP && h->resume == HAUL_VALIDATING &&
	    haul_since(a->now_us, h->epoch_us) > h->min_rtt_us / 4 && (marked || haul_jump_lossy(h, gone, came)))
		haul_retreat(h, a);
	// Data on the way when the flow slowed down is of the same event.
	if (h->mode == HAUL_STARTUP || h->mode == HAUL_DRAIN || h->mode == HAUL_RAISE || haul_just_cut(h, a))
		return;
	bool few = false;
	if (!marked) {
		// The pool holds the packets before this epoch.
		u64 pool = haul_max((u64)came + gone, haul_min(h->ever, haul_loss_packets(h)));
		u64 share = ((u64)h->loss_q16 * (pool - came - gone) + ((u64)gone << 16)) / haul_max(pool, 1);
		u32 queue = haul_max(h->queue_high_us, haul_queue_us(h, h->rtt_high_us));
		few = haul_spares(h, queue, gone, came, share);
		bool explained = h->floor_q16 && share <= haul_explained_q16(h);
		if (h->mode == HAUL_PROBE || explained || (few && queue <= HAUL_SPARED_US))
			return;
	}
	if (HAUL_RULE(marks) && (marked || few) && haul_shortens(h, a)) {
		// Below CoDel's target the next losses tell.
		u32 target = haul_target_us(h->min_rtt_us, h->rate, a->mss, ~0u);
		if (few)
			h->mark_room_us = haul_min(h->mark_room_us, (u64)haul_usual_us(h->min_rtt_us) * HAUL_SPARED_US / 2 / haul_max(target, 1));
		return;
	}
	haul_congestion(h, a);
}

// haul_update processes an acknowledgement, and returns whether it ends an epoch. If
// so, call haul_update_epoch next, and call haul_apply in any case.
static inline bool haul_update(struct haul *h, const struct haul_ack *a)
{
	u32 silent_us = haul_since(a->now_us, h->last_ack_us);
	h->last_ack_us = a->now_us;
	h->limited |= a->limited;
	haul_see_rtt(h, a);
	if (silent_us > 2 * a->srtt_us + 200000) { // a measurement across a silence is meaningless
		haul_begin_epoch(h, a);
		if (haul_jumps(h)) // nor is what was to be resumed
			h->bw = h->rate = haul_rate_of(2 * HAUL_WINDOW_MIN, a->mss, a->srtt_us);
		h->resume = HAUL_NORMAL;
	}
	if (h->mode == HAUL_STARTUP && !haul_jumps(h) && a->sample_us >= HAUL_CLOCK_US && a->sample_delivered) {
		h->bw = haul_max(h->bw, haul_rate_of(a->sample_delivered, a->mss, a->sample_us));
		h->rate = haul_needed(h, h->bw);
	}
	haul_see_congestion(h, a);
	u32 holds = haul_segments(h->rate, h->min_rtt_us + h->min_rtt_us / 16, a->mss);
	if (h->mode == HAUL_DRAIN && h->from == HAUL_STARTUP && a->in_flight <= holds) {
		haul_settle(h, a, h->ref);
		haul_begin_epoch(h, a);
	}
	// At most half as large again in a round trip: RFC 9438, section 4.2.
	u64 more = ((u64)a->acked + 1) / 2;
	if (h->mode == HAUL_COMPETE)
		h->cwnd = haul_min(haul_cubic(h, a->now_us, a->srtt_us), (u64)h->cwnd + more);
	if (haul_reconnoitred(h, a))
		return true;
	// A round trip is over when a packet sent in it has arrived. If packets overtake
	// each other, that may be too early, or may not happen for long.
	u32 took_us = haul_since(a->now_us, h->epoch_us), rtt_us = h->min_rtt_us;
	bool over = a->sample_us && (s32)(a->prior_delivered - h->round_delivered) >= 0;
	if (took_us >= HAUL_CLOCK_US && ((over && took_us >= rtt_us - rtt_us / 8) || took_us > (h->rounds + 2u) * a->srtt_us)) {
		h->round_delivered = a->delivered;
		h->rounds++;
		u32 n = haul_counted(a->delivered, h->epoch_delivered);
		u32 rounds = h->mode == HAUL_CRUISE ? HAUL_ROUNDS : h->mode == HAUL_COMPETE ? 2 : 1;
		return ((n >= HAUL_EPOCH_PACKETS || !HAUL_RULE(long_epoch)) && h->mode != HAUL_PROBE) || h->rounds >= rounds;
	}
	return false;
}

// haul_update_epoch ends an epoch. Without a row for the path, since there is no memory, the
// epoch goes on.
static inline void haul_update_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *path)
{
	if (!path)
		return;
	haul_learn(h, path, a->now_us);
	if (haul_reconnoitred(h, a)) {
		haul_resume(h, a, path);
		return;
	}
	haul_end_epoch(h, a, path);
	haul_tell(h, path);
}
