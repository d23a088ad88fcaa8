// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul's arithmetic and decisions. For its purpose see haul.bpf.c.
//
// Rates are bytes of payload per second, times microseconds, windows segments.
// A suffix _q16 marks a share or a factor with 16 fractional bits.
#pragma once

#include "window.h"

#define HAUL_ONE 65536u // 1.0 in q16

// Bounds that keep every product below within 64 bits: 2.2 Tb/s, 16.8 s.
#define HAUL_RATE_MAX (1ull << 38)
#define HAUL_RTT_MAX_US (1u << 24)

#define HAUL_WINDOW_MIN 4u // segments

// Start-up doubles each round trip: a gain of x ln(x)/(1 - 1/x), x = 2, since a
// rate sample is the mean over the round trip before, while the rate doubles.
#define HAUL_STARTUP_GAIN_Q16 181680u // 2.772
#define HAUL_STARTUP_WINDOW 3u	      // round trips of the rate; the doubling rate needs 2

// On a long round trip it triples, x = 3, until a packet is lost. A queue is seen a round
// trip after it began. So haul looks four times as often, and the rate waits at the first
// sign of one, as HyStart++ slows down (RFC 9406). The queue then becomes no longer than
// doubling makes it.
#define HAUL_LONG_RTT_US 250000u
#define HAUL_TRIPLE_GAIN_Q16 323994u // 4.944
#define HAUL_TRIPLE_WINDOW 5u	     // needs 3

#define HAUL_STARTUP_GROWTH_Q16 81920u // 1.25: a round that grows by less is flat
#define HAUL_STARTUP_FLAT_ROUNDS 3u
#define HAUL_STARTUP_PACKETS 128u // sent in a round, before its loss may end start-up, or a queue slow it down

// Careful Resume (RFC 9959): a connection begins with what the path carried before.
#define HAUL_CARRIED_US 600000000u // that it is remembered for
#define HAUL_RESUME_PACKETS 6u	   // to arrive first: half of the first window, and the SYN
#define HAUL_RESUME_LOST 3u	   // packets, and a share of 1/64, beyond the floor: a retreat
#define HAUL_RESUME_ROUNDS 8u	   // to wait for a connection that lacks data or the receiver's window

#define HAUL_DRAIN_GAIN_Q16 32768u // 0.5
#define HAUL_PROBE_GAIN_Q16 58982u // 0.9, of what arrives

#define HAUL_QUARTER_SAMPLES 12u // round trips that tell the queue as it is now, at least
#define HAUL_BW_EPOCHS 5u	 // that a largest delivery is kept for, once or twice
#define HAUL_LATE_MAX 4u	 // eighths
#define HAUL_LATE_PACKETS 256u	 // in an epoch: with fewer, bursts blur what is sent

#define HAUL_LOSS_LEAST_Q16 2u    // 0.00003: below, the path is taken to lose nothing by itself
#define HAUL_LOSS_SMALL_Q16 655u  // 0.01
#define HAUL_LOSS_MAX_Q16 32768u  // 0.5
#define HAUL_LOSS_PACKETS 1024u   // that the recent share of loss is pooled over

// Losses that are no overflow: the path has carried twice the queue.
#define HAUL_PASSED_US 4000u // such a queue, at least
#define HAUL_SPARED_US 4000u // CoDel drops nothing below 5 ms: RFC 8289, section 4.4
#define HAUL_SPARED_Q16 512u // 1/128: a larger share may be a policer's

// Losses that show the path's own share: fewer may be a burst.
#define HAUL_FLOOR_LOSSES 6u
#define HAUL_FLOOR_SURE 16u    // that tell it well
#define HAUL_FLOOR_POOL 65536u // packets of probes that the share is pooled over
#define HAUL_PROBE_PACKETS 48u // of a probe beside CUBIC's window, at least,
#define HAUL_PROBE_ROUNDS 8u   // or so many rounds

// A raise.
#define HAUL_RAISE_WINDOW 16u	// segments that a raise should begin with
#define HAUL_RAISE_PACKETS 192u // that prove more than a doubling does
#define HAUL_RAISE_ROUNDS 16u	// at most
#define HAUL_RAISE_POOL 16384u	// packets that the loss before it is pooled over
#define HAUL_RAISE_ALONE_US 4000000u // in which no other connection raises
#define HAUL_RAISES_MAX 5u	// the interval doubles so often: 32 s

#define HAUL_EPOCH_PACKETS 48u // an epoch is a round trip with at least as many,
#define HAUL_EPOCH_ROUNDS 8u   // or as many rounds

#define HAUL_PROBE_INTERVAL_US 10000000u
#define HAUL_PATH_US 20000000u	  // that a path is remembered for
#define HAUL_SHARE_SLOT 22u	  // bits: 4.2 s, in which all connections say what they get
#define HAUL_TEST_ROUNDS 10u	  // at least between a test of a queue and the next,
#define HAUL_TEST_US 2000000u	  // and as long
#define HAUL_PROBE_SLOT 23u	  // bits: 8.4 s between probes
#define HAUL_COMPETE_SLOT 22u	  // bits: 4.2 s between tests beside what may be a rival,
#define HAUL_RIVAL_SLOT 24u	  // 16.8 s beside one that was found,
#define HAUL_COMPETE_ROUNDS 20u	  // and as many round trips at least
#define HAUL_RIVAL_US 10000000u	  // that the window beside one is remembered for
#define HAUL_DRAIN_ROUNDS 16u	  // at most
#define HAUL_RESTORE_ROUNDS 3u

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
	u64 full_bw;	   // what growth is held against
	u64 peak;	   // of what the path carried lately
	u64 restart_us;	   // when it was last tried again from the start
	u64 delivery;	   // in the last epoch
	u64 pace_before;   // in the epoch before

	// The epoch under way: time and counters at its start.
	u64 epoch_us;
	u32 epoch_delivered, epoch_lost, epoch_spurious, epoch_sent;
	u32 round_delivered; // the round ends when what was sent beyond this is acknowledged
	u32 rtt_low_us;	     // least round trip of the epoch, ~0 if none
	u32 rtt_high_us;     // highest of its quarters' least round trips
	u64 last_ack_us;

	// The last epoch: time, packets delivered and lost; the queue at the end of
	// the one before, at its own end, the least in it, and the longest.
	u32 took_us, got, missed;
	u32 queue_before_us, queue_us, queue_low_us, queue_high_us;

	// Least round trip: of the current and of the previous period.
	u32 min_rtt_us, min_rtt_next_us;
	u64 min_rtt_start_us;
	u64 low_us; // when the path was last seen empty

	// Loss: the recent share.
	u32 loss_q16;
	struct haul_floor floor;
	u32 probe_lost, probe_got;	  // of the probe under way
	u32 round_lost, round_got;	  // of the last round of start-up
	u32 start_lost, start_got;	  // of start-up, while more and more arrived

	// The loss beside CUBIC's window, in epochs without a queue: late, its number of
	// epochs, and early. A raise tests whether that is the path's own share.
	u32 late_lost, late_got, late_lossy, early_lost, early_got;
	u32 raise_lost, raise_got;	  // of the raise under way, but its last step
	u32 step_lost, step_got;	  // of its last step
	u32 raise_most_q16;		  // a larger share is not what was lost before
	u32 floor_before_q16;
	u64 raise_from, raise_to;	  // delivery before the raise, and after this step
	u64 raise_us;
	u8 raises;			  // of late
	bool raise_holds;		  // it is no longer doubled

	// The connections to the same destination.
	u64 told, told_delivery; // the period in which this one last said what it gets, and that
	u64 together, mean; // what all get, and each on average; 0 if this one is alone
	u32 others;	    // how many there are besides this one
	u64 any_raise_us, any_test_us; // when one of them last began to
	u64 joined_us;			// when this one last began or joined a test
	u64 raise_together;		// what all got before this raise
	bool proved;			// the floor, in this epoch

	// Careful Resume: what the path carried, and the window of its first half.
	u64 jump;
	u32 jump_window, jump_delivered;

	u32 waste_q16; // packets that were sent again in vain, for each delivered

	// CUBIC's window.
	u32 window, window_max, window_cut, k_ms;
	u32 cut_window; // before the first cut
	u64 cut_us, test_us;
	u32 grown_delivered; // counter when it last grew
	u32 cut_lost, cut_marked;
	u64 cut_delivery; // before the first cut
	u32 cut_queue_us; // queue at the last one
	u64 left_us;	  // when it was left,
	u32 left_window;  // and with how much

	// Half of the queue that fits the buffer, as far as losses have shown it.
	u32 room_us;
	u64 room_seen_us;

	u32 passed_us; // the longest queue that the path has carried without overflowing

	u64 mark_us;	   // when the flow last shortened its queue because of marks,
	u32 mark_room_us; // and by them half of the queue that is not marked

	// A queue above the target.
	u32 over;	// epochs with it
	u32 excess_us;	// the most of it
	u32 yielded_us; // by as much it had to become shorter, by what we sent less
	u64 over_rate;	// largest delivery since
	u64 held;	// the rate that the path let us have, with a queue or without

	// A test of it: the state to restore, and the round trip before and at the least.
	u64 ref;
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
	u8 calm;   // epochs without a queue, and without more delivery
	u8 streak; // times that delivery rose since the last of them
	u8 empty;  // epochs without any queue
	u8 late;   // eighths that the pace is raised by, since it is kept late
	u8 vain;   // epochs in which most was lost
	u8 cuts;   // of CUBIC's window since it decides, two at most
	bool rival; // the last test found one
	bool limited;	  // by the application or the receiver, in this epoch
	bool held_back;	  // by either in the one before,
	bool was_limited; // or by anything else
	bool restore_lossy; // what was sent then met a loss
	bool timeout;	  // in recovery from one
	bool seen_rtt;	  // a round trip of data

	// The result.
	u64 pace;
	u32 cwnd;
};

// haul_ack is the content of an acknowledgement.
struct haul_ack {
	u64 now_us;
	u32 delivered, lost, sent; // packets, ever; wrap
	u32 marked;		   // of those delivered, with congestion experienced
	u32 spurious;		   // of those taken for lost, that were there after all
	u32 prior_delivered;	   // when the packet acknowledged was sent
	u32 sample_delivered;	   // packets over
	u32 sample_us;		   // 0 if there is no sample
	u32 rtt_us;		   // 0 if there is no sample
	u32 srtt_us;
	u32 in_flight, mss, clamp;
	bool limited; // by the application or the receiver
	bool timeout; // in recovery from one
};

static inline u64 haul_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 haul_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

// The age of a time, an hour at most; 0 for a time in the future.
static inline u32 haul_since(u64 now_us, u64 then_us)
{
	return now_us > then_us ? haul_min(now_us - then_us, 3600000000u) : 0;
}

// The increase of a counter; 0 if it decreased.
static inline u32 haul_counted(u32 now, u32 then)
{
	s32 d = (s32)(now - then);
	return d < 0 ? 0 : d;
}

static inline u64 haul_bound_rate(u64 rate)
{
	return rate > HAUL_RATE_MAX ? HAUL_RATE_MAX : rate;
}

static inline u64 haul_scale(u64 rate, u32 factor_q16)
{
	return haul_bound_rate(haul_bound_rate(rate) * factor_q16 >> 16);
}

// The rate of some packets over some time.
static inline u64 haul_rate_of(u32 packets, u32 mss, u32 us)
{
	u64 bytes = haul_min(packets, 1u << 26) * haul_min(mss, 1u << 16);
	return haul_bound_rate(bytes * 1000000 / (us ? us : 1));
}

// The segments that a rate puts on the way in some time.
static inline u32 haul_segments(u64 rate, u32 us, u32 mss)
{
	u64 bytes = haul_bound_rate(rate) * haul_min(us, HAUL_RTT_MAX_US) / 1000000;
	return haul_min(bytes / (mss ? mss : 1), WINDOW_MAX);
}

static inline u32 haul_share_q16(u32 part, u32 rest)
{
	u64 all = (u64)part + rest;
	return all ? ((u64)part << 16) / all : 0;
}

// The bits of a number; 0 has none.
static inline u32 haul_bits(u64 n)
{
	u32 bits = 0;
	if (n >> 32)
		n >>= 32, bits += 32;
	if (n >> 16)
		n >>= 16, bits += 16;
	if (n >> 8)
		n >>= 8, bits += 8;
	if (n >> 4)
		n >>= 4, bits += 4;
	if (n >> 2)
		n >>= 2, bits += 2;
	return bits + (n >> 1 ? 2 : n);
}

// Square and cube roots, rounded down, by Newton's method from a power of two that
// is not below. No loop: the verifier would follow all its ways.
GLOBAL u32 haul_sqrt(u64 n)
{
	u64 root = 1ull << ((haul_bits(n) + 1) / 2);
#pragma clang loop unroll(full)
	for (int i = 0; i < 6; i++)
		root = haul_max((root + n / root) / 2, 1);
	return root * root > n ? root - 1 : root;
}

GLOBAL u32 haul_cbrt(u64 n)
{
	u64 root = 1ull << ((haul_bits(n) + 2) / 3);
#pragma clang loop unroll(full)
	for (int i = 0; i < 7; i++)
		root = haul_max((2 * root + n / (root * root)) / 3, 1);
	return root * root * root > n ? root - 1 : root;
}

// The sending rate with which some rate arrives, past the path's own loss.
static inline u64 haul_made_up(u64 delivery, u32 floor_q16)
{
	return haul_bound_rate((haul_bound_rate(delivery) << 16) / (HAUL_ONE - haul_min(floor_q16, HAUL_LOSS_MAX_Q16)));
}

// Three packets' time at a rate: a shorter queue looks like none.
static inline u32 haul_grain_us(u64 rate, u32 mss)
{
	return haul_min(3000000ull * (mss ? mss : 1) / (rate ? rate : 1), 1000000);
}

static inline u32 haul_queue_us(const struct haul *h, u32 rtt_us)
{
	return rtt_us != ~0u && rtt_us > h->min_rtt_us ? rtt_us - h->min_rtt_us : 0;
}

// A queue that the target stays below at any rate.
static inline u32 haul_usual_us(u32 min_rtt_us)
{
	return haul_max(14000, min_rtt_us / 16);
}

// The target of the queue. It is longer for a slower flow, so that flows with the
// same queue reach the same rate. It has a small part of the round trip, with which
// the rate grows without a queue. It is less if losses have shown a shorter
// buffer.
static inline u32 haul_target_us(u32 min_rtt_us, u64 rate, u32 mss, u32 room_us)
{
	u64 per_second = rate / (mss ? mss : 1);
	u64 own = haul_sqrt(156250000000ull / (per_second ? per_second : 1)); // 1.25 sqrt(0.1 s / rate)
	// Its growth slows, since the queue must stay short, but never stops.
	u32 usual = haul_usual_us(min_rtt_us);
	u32 target = haul_max(1000 + min_rtt_us / 64 + own * usual / (own + usual), haul_grain_us(rate, mss) / 2);
	return room_us < usual ? (u64)target * room_us / usual : target;
}

// Whether marks have shortened the queue in the last so many microseconds.
static inline bool haul_marked(const struct haul *h, u64 now_us, u32 us)
{
	return h->mark_us && haul_since(now_us, h->mark_us) < us;
}

static inline u32 haul_queue_target_us(const struct haul *h, const struct haul_ack *a)
{
	u32 room = haul_marked(h, a->now_us, HAUL_PROBE_INTERVAL_US) ? haul_min(h->room_us, h->mark_room_us) : h->room_us;
	if (!h->mean)
		return haul_target_us(h->min_rtt_us, h->rate, a->mss, room) + h->noise_us;
	// A flow that gets less than the others has a longer target.
	u64 more_q16 = (haul_bound_rate(h->mean) << 16) / haul_max(haul_max(h->bw, h->bw_before), 1);
	more_q16 = haul_min(haul_max(more_q16, HAUL_ONE / 4), 4 * HAUL_ONE);
	return (haul_target_us(h->min_rtt_us, h->mean, a->mss, room) * more_q16 >> 16) + h->noise_us;
}

// A queue below this counts as empty.
static inline u32 haul_empty_us(const struct haul *h, const struct haul_ack *a)
{
	return 250 + h->min_rtt_us / 64 + haul_grain_us(h->bw, a->mss) / 3 + h->noise_us;
}

// The same for the few packets that tell while losses hold the flow back: with jitter the
// least of them exceeds the path's by more.
static inline u32 haul_calm_us(const struct haul *h, const struct haul_ack *a)
{
	return haul_empty_us(h, a) + (h->noise_us > h->min_rtt_us / 16 ? 2 * h->noise_us : 0);
}

// A queue that means congestion.
static inline u32 haul_congested_us(const struct haul *h)
{
	return haul_max(20000, h->min_rtt_us / 8) + h->noise_us;
}

// The sending rate with which some rate arrives, including packets sent in vain.
// With a long queue the cure is to send less in vain.
static inline u64 haul_needed(const struct haul *h, u64 delivery)
{
	u32 waste_q16 = h->queue_us > haul_congested_us(h) ? 0 : haul_min(h->waste_q16, HAUL_ONE / 4);
	return haul_made_up(delivery, h->floor.share_q16 + waste_q16);
}

// The share of loss that the path's own explains: four standard deviations of
// the pool above it. A path that loses nothing by itself explains no loss.
static inline u32 haul_loss_packets(const struct haul *h)
{
	return haul_min(haul_max((16u << 16) / (h->floor.share_q16 + 1), HAUL_LOSS_PACKETS), 16 * HAUL_LOSS_PACKETS);
}

static inline u32 haul_explained_q16(const struct haul *h)
{
	u64 variance_q32 = (u64)h->floor.share_q16 * (HAUL_ONE - haul_min(h->floor.share_q16, HAUL_ONE)) / haul_loss_packets(h);
	u32 unsure = h->floor.most_q16 > h->floor.share_q16 ? (h->floor.most_q16 - h->floor.share_q16) / 2 : 0;
	return h->floor.share_q16 ? h->floor.share_q16 + 4 * haul_sqrt(variance_q32) + unsure + h->waste_q16 : 0;
}

static inline void haul_begin_epoch(struct haul *h, const struct haul_ack *a)
{
	h->epoch_us = a->now_us;
	h->epoch_delivered = a->delivered;
	h->epoch_lost = a->lost;
	h->epoch_spurious = a->spurious;
	h->epoch_sent = a->sent;
	h->round_delivered = a->delivered;
	h->rtt_low_us = ~0u;
	h->rtt_high_us = 0;
	h->rounds = 0;
	h->limited = false;
}

static inline void haul_enter(struct haul *h, u8 mode)
{
	h->mode = mode;
	h->phase = h->flat = 0;
}

// CUBIC's window, RFC 9438, by the time since the last cut.
GLOBAL u32 haul_cubic(const struct haul *h, u64 now_us, u32 rtt_us)
{
	if (!h)
		return 0;
	u64 t_ms = haul_min(haul_since(now_us, h->cut_us) / 1000, 200000);
	// C = 0.4 segments/s^3, so 0.4e-9 per ms^3.
	u64 away = t_ms > h->k_ms ? t_ms - h->k_ms : h->k_ms - t_ms;
	u64 change = haul_min(away, 400000) * haul_min(away, 400000) / 1000 * haul_min(away, 400000) / 2500000;
	u64 cubic = t_ms > h->k_ms ? h->window_max + change : h->window_max > change ? h->window_max - change : 0;
	// Reno's: 3 (1 - 0.7) / (1 + 0.7) = 0.53 segments for each round trip.
	u64 reno = h->window_cut + t_ms * 529 / haul_max(rtt_us, 1000);
	return window_bound(haul_max(cubic, reno), WINDOW_MAX);
}

static inline void haul_cubic_start(struct haul *h, u64 now_us, u32 window)
{
	h->window = h->window_max = h->window_cut = haul_max(window, HAUL_WINDOW_MIN);
	h->k_ms = 0;
	h->cut_us = now_us;
}

GLOBAL int haul_cubic_cut(struct haul *h, u64 now_us)
{
	if (!h)
		return 0;
	u32 w = h->window;
	h->window_max = w < h->window_max ? (u64)w * 17 / 20 : w; // fast convergence
	// 0.7, and up to a seventh more or less by what the others get.
	u32 kept_q16 = 45876;
	if (h->mean > h->delivery)
		kept_q16 += haul_share_q16((h->mean - h->delivery) >> 8, h->delivery >> 8) / 7;
	else if (h->mean)
		kept_q16 -= haul_share_q16((h->delivery - h->mean) >> 8, h->mean >> 8) / 7;
	h->window = h->window_cut = haul_max((u64)w * kept_q16 >> 16, HAUL_WINDOW_MIN);
	// K = cbrt((W_max - W_cut) / C)
	u64 drop = h->window_max > h->window_cut ? h->window_max - h->window_cut : 0;
	h->k_ms = haul_cbrt(drop * 2500000000ull);
	h->cut_us = now_us;
	return 0;
}

// The recent share of lost packets is pooled over the last thousand or so.
// A packet that was marked lost and arrived after all counts as negative.
static inline void haul_pool_loss(struct haul *h, s32 lost, u32 delivered, u32 ever)
{
	u32 n = delivered + (lost > 0 ? lost : 0);
	u32 pool = haul_max(n, haul_min(ever, haul_loss_packets(h)));
	if (!pool)
		return;
	u64 kept = (u64)h->loss_q16 * (pool - n);
	u64 change = (u64)(lost > 0 ? lost : -lost) << 16;
	h->loss_q16 = (lost > 0 ? kept + change : kept > change ? kept - change : 0) / pool;
	// The path's own loss is at most all loss, within the error of so few packets.
	u32 most = h->loss_q16 + h->loss_q16 / 4 + 3 * haul_sqrt(((u64)h->floor.share_q16 << 16) / pool);
	if (h->floor.share_q16 > most && pool >= HAUL_LOSS_PACKETS)
		h->floor.share_q16 -= (h->floor.share_q16 - most) / 4;
}

// Packets lost now were on the way when the flow slowed down: it is the same event.
static inline bool haul_just_cut(const struct haul *h, const struct haul_ack *a)
{
	return haul_since(a->now_us, h->cut_us) < a->srtt_us + a->srtt_us / 2;
}

static inline void haul_shrink_pool(u32 *lost, u32 *got, u32 most)
{
	u64 all = (u64)*lost + *got;
	if (all <= most)
		return;
	*lost = (u64)*lost * most / all;
	*got = most - *lost;
}

// haul_learn reads the shared state of the connections to the destination, and adds
// this one's goodput.
GLOBAL int haul_learn(struct haul *h, struct haul_path *p, u64 now_us)
{
	if (!h)
		return 0;
	h->others = 0;
	h->mean = h->together = 0;
	if (!p)
		return 0;
	if (!p->used_us || haul_since(now_us, p->used_us) > HAUL_PATH_US) {
		struct haul_carried carried = p->carried;
		__builtin_memset(p, 0, sizeof *p);
		p->carried = carried;
		p->room_us = h->room_us;
		p->room_seen_us = h->room_seen_us;
		if (h->mode != HAUL_RAISE)
			p->floor = h->floor;
	}
	p->used_us = now_us;
	u64 period = now_us >> HAUL_SHARE_SLOT;
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
		h->told_delivery = h->limited || h->held_back || h->mode == HAUL_STARTUP ? 0 : h->delivery;
		p->flows += h->told_delivery > 0;
		p->sum += h->told_delivery;
	}
	u32 known = haul_max(p->all, p->all_before), own = h->told + 1 >= period;
	h->others = known > own ? known - own : 0;
	if (p->flows_before > 1) {
		h->together = p->sum_before;
		h->mean = h->together / p->flows_before;
	}
	h->any_raise_us = p->raise_us;
	h->any_test_us = p->test_us;
	if (p->room_seen_us > h->room_seen_us) {
		h->room_us = p->room_us;
		h->room_seen_us = p->room_seen_us;
	}
	if (h->mode == HAUL_RAISE) // its own is on trial
		return 0;
	// The recent loss is of a time when this connection sent less because of it.
	if (p->floor.share_q16 > h->floor.share_q16)
		h->loss_q16 = haul_max(h->loss_q16, p->floor.share_q16);
	h->floor = p->floor;
	return 0;
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
static inline void haul_tell_carried(const struct haul *h, struct haul_carried *c)
{
	if (h->mode == HAUL_CRUISE && !h->was_limited) {
		u64 rate = haul_max(haul_max(h->bw, h->bw_before), h->together);
		c->rate = rate < c->rate ? c->rate - (c->rate - rate) / 4 : rate;
		c->rtt_us = h->min_rtt_us;
		c->seen_us = h->epoch_us;
		c->floor_q16 = h->floor.share_q16;
	} else if (h->mode == HAUL_COMPETE && !h->was_limited) {
		if (h->delivery < c->rate)
			c->rate -= (c->rate - h->delivery) / 4;
		c->floor_q16 = haul_min(c->floor_q16, h->floor.share_q16);
	} else if (h->mode == HAUL_DRAIN && h->from == HAUL_STARTUP && h->jump) {
		c->rate = haul_min(c->rate, h->ref);
	}
}

// haul_tell shares this connection's new knowledge; floor is the earlier floor.
GLOBAL int haul_tell(const struct haul *h, struct haul_path *p, const struct haul_floor *floor)
{
	if (!h || !p || !floor)
		return 0;
	p->raise_us = haul_max(p->raise_us, h->any_raise_us);
	p->test_us = haul_max(p->test_us, h->any_test_us);
	if (h->room_seen_us > p->room_seen_us) {
		p->room_us = h->room_us;
		p->room_seen_us = h->room_seen_us;
	}
	const struct haul_floor *f = &h->floor;
	if (f->share_q16 != floor->share_q16 || f->lost != floor->lost || f->got != floor->got)
		p->floor = *f;
	haul_tell_carried(h, &p->carried);
	return 0;
}

static inline void haul_set_floor(struct haul *h, u32 share_q16)
{
	h->floor.share_q16 = share_q16 < HAUL_LOSS_LEAST_Q16 ? 0 : haul_min(share_q16, HAUL_LOSS_MAX_Q16);
}

// A proof has shown that some loss is the path's own: sets the floor to that share,
// within the error of so few losses.
static inline void haul_prove_floor(struct haul *h, const struct haul_ack *a, u32 lost, u32 got)
{
	u32 share = haul_share_q16(lost, got);
	h->floor.most_q16 = haul_min(share + 4 * share / haul_max(haul_sqrt(lost), 1), HAUL_LOSS_MAX_Q16);
	haul_set_floor(h, share);
	h->floor.lost = h->floor.got = 0;
	h->floor.looked_us = a->now_us;
	h->proved = true;
}

// A probe lost some packets that were sent at less than the arrival rate. If that is
// less than the floor, this flow caused the rest.
static inline void haul_see_floor(struct haul *h, const struct haul_ack *a, u32 lost, u32 got)
{
	// The probe is recent, and others can only have added to earlier losses.
	u32 before = haul_share_q16(h->floor.lost, h->floor.got), usual = ((u64)(lost + got) * before) >> 16;
	if (usual >= HAUL_FLOOR_LOSSES && lost + haul_sqrt(12 * (lost + 1)) < usual)
		h->floor.lost = h->floor.got = 0;
	else if (h->floor.lost > HAUL_FLOOR_SURE || !h->floor.share_q16)
		haul_shrink_pool(&h->floor.lost, &h->floor.got, (h->floor.lost + h->floor.got) / 8 * 7);
	h->floor.lost += lost;
	h->floor.got += got;
	haul_shrink_pool(&h->floor.lost, &h->floor.got, HAUL_FLOOR_POOL);
	u32 expected = ((u64)(h->floor.lost + h->floor.got) * h->floor.share_q16) >> 16;
	if (!h->floor.share_q16)
		; // it is for a raise to tell
	else if (h->floor.lost >= HAUL_FLOOR_SURE)
		haul_set_floor(h, haul_min(haul_share_q16(h->floor.lost, h->floor.got), h->floor.most_q16));
	else if (expected >= HAUL_FLOOR_LOSSES - 1 && !h->floor.lost)
		h->floor.share_q16 = 0;
	else if (expected >= HAUL_FLOOR_LOSSES && h->floor.lost + haul_sqrt(12 * (h->floor.lost + 1)) < expected)
		haul_set_floor(h, haul_share_q16(h->floor.lost, h->floor.got));
	h->floor.looked_us = a->now_us;
}

// The number of recent raises.
static inline u8 haul_raises(const struct haul *h, const struct haul_ack *a)
{
	return haul_since(a->now_us, h->raise_us) > 8 * HAUL_PROBE_INTERVAL_US ? 0 : haul_min(h->raises, HAUL_RAISES_MAX);
}

// Whether probes have measured the floor well.
static inline bool haul_floor_sure(const struct haul *h)
{
	return ((u64)(h->floor.got + h->floor.lost) * h->floor.share_q16 >> 16) >= HAUL_FLOOR_SURE;
}

// Whether a time of the host's clock at which all its flows act together has passed
// in the last epoch.
static inline bool haul_slot(const struct haul *h, const struct haul_ack *a, u32 bits)
{
	return a->now_us >> bits != h->epoch_us >> bits;
}

// The flow's window beside a rival, if recent: the rival was there all the time.
static inline u32 haul_left_window(const struct haul *h, const struct haul_ack *a)
{
	return haul_since(a->now_us, h->left_us) < HAUL_RIVAL_US ? h->left_window : 0;
}

static inline void haul_forget_loss(struct haul *h)
{
	h->late_lost = h->late_got = h->late_lossy = h->early_lost = h->early_got = 0;
}

// Losses beside CUBIC's window, in two pools: a burst is in only one of them.
// With a queue a loss may be an overflow.
static inline void haul_remember_loss(struct haul *h, const struct haul_ack *a)
{
	bool sends = h->mode == HAUL_COMPETE || h->mode == HAUL_CRUISE;
	if (h->cuts < 2 || !sends || h->queue_high_us > haul_calm_us(h, a))
		return;
	h->late_lost += h->missed;
	h->late_got += h->got;
	h->late_lossy += h->missed > 0;
	if (h->late_lossy >= HAUL_FLOOR_LOSSES / 2) {
		h->early_lost = h->late_lost, h->early_got = h->late_got;
		h->late_lost = h->late_got = h->late_lossy = 0;
	}
	haul_shrink_pool(&h->late_lost, &h->late_got, HAUL_RAISE_POOL);
}

// Loss that is not the path's own, or marks: CUBIC's window decides, until a test
// shows that there is no rival.
GLOBAL int haul_congestion(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	// An epoch with a change of the rate shows too little.
	bool mixed = h->mode == HAUL_CRUISE && h->queue_us <= haul_congested_us(h);
	u64 delivery = mixed ? haul_max(h->bw, h->bw_before) : h->delivery;
	u32 window = haul_segments(haul_needed(h, delivery), a->srtt_us, a->mss);
	u32 queue = haul_max(h->queue_high_us, haul_queue_us(h, h->rtt_high_us));
	h->cut_queue_us = haul_max(queue, h->cut_queue_us / 8 * 7);
	if (queue > haul_empty_us(h, a)) {
		h->room_us = queue / 2;
		h->room_seen_us = a->now_us;
		h->passed_us = haul_min(h->passed_us, queue);
	}
	if (h->mode != HAUL_COMPETE) {
		h->calm = 0;
		window = haul_max(window, haul_left_window(h, a));
		if (haul_since(a->now_us, h->cut_us) > HAUL_RIVAL_US) {
			haul_forget_loss(h);
			h->cuts = 0;
			h->cut_window = h->cut_delivery = 0;
		}
		h->cut_delivery = haul_max(h->delivery, h->cut_delivery);
		h->test_us = a->now_us;
		h->cut_window = haul_max(window, h->cut_window);
		haul_enter(h, HAUL_COMPETE);
		haul_cubic_start(h, a->now_us, window);
	} else if (window < h->window / 2) { // most was lost
		h->window = haul_max(window, HAUL_WINDOW_MIN);
	}
	haul_cubic_cut(h, a->now_us);
	if (h->cuts < 2)
		h->cuts++;
	h->loss_q16 = h->floor.share_q16;
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
	h->test_us = h->joined_us = a->now_us;
	h->over = 0;
	haul_enter(h, HAUL_DRAIN);
}

// The host's other connections to the same destination join in.
static inline void haul_test_all(struct haul *h, const struct haul_ack *a, u64 ref)
{
	haul_test(h, a, ref);
	h->any_test_us = a->now_us;
}

static inline void haul_cruise(struct haul *h, const struct haul_ack *a, u64 delivery)
{
	h->bw = h->bw_before = h->full_bw = delivery;
	h->period = 0;
	h->rate = haul_needed(h, delivery);
	h->over = h->calm = h->streak = 0;
	h->held = h->rate;
	h->low_us = a->now_us;
	haul_enter(h, HAUL_CRUISE);
}

// A probe: the flow sends less than arrives, for a round trip or two.
static inline void haul_probe(struct haul *h)
{
	h->from = h->mode;
	h->probe_lost = h->probe_got = 0;
	haul_enter(h, HAUL_PROBE);
}

GLOBAL int haul_leave_startup(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	h->rate = haul_needed(h, h->bw);
	haul_test(h, a, h->bw);
	return 0;
}

// Start-up is over: cruise at some rate of arrival, and look at the floor.
static inline void haul_settle(struct haul *h, const struct haul_ack *a, u64 delivery)
{
	haul_cruise(h, a, delivery);
	h->cut_us = a->now_us;
	h->loss_q16 = h->floor.share_q16;
	if (h->floor.share_q16)
		haul_probe(h);
}

// A queue that ends start-up.
static inline u32 haul_startup_queue_us(u32 min_rtt_us)
{
	return haul_max(8000, min_rtt_us / 8);
}

// The factor by which start-up grows in a round trip; 1 while there may be a queue.
static inline u32 haul_startup_factor(const struct haul *h, const struct haul_ack *a)
{
	if (!h->seen_rtt || h->min_rtt_us < HAUL_LONG_RTT_US)
		return 2;
	u32 low = h->quarter_samples < HAUL_QUARTER_SAMPLES / 3 ? h->recent_low_us : haul_min(h->recent_low_us, h->quarter_low_us);
	if (low != ~0u && low > h->min_rtt_us + haul_max(4000, h->min_rtt_us / 64) + h->noise_us)
		return h->got < HAUL_STARTUP_PACKETS ? 2 : 1; // of fewer packets the queue is hardly this flow's
	bool lossy = h->start_lost || h->round_lost || h->missed || a->lost != h->epoch_lost;
	return lossy || h->others || h->flat ? 2 : 3;
}

// Half of the first window has arrived, and more is on the way: the round trip is known.
static inline bool haul_reconnoitred(const struct haul *h, const struct haul_ack *a)
{
	return h->resume == HAUL_RECONNAISSANCE && h->mode == HAUL_STARTUP && h->seen_rtt && a->in_flight &&
	       a->delivered >= HAUL_RESUME_PACKETS;
}

// haul_resume begins with what the path carried, if it is remembered, the round trip is
// the same, and no other connection of the host uses it, or has just begun to. RFC 9959
// takes a round trip of half to ten times the former for the same path. For haul one
// longer than start-up permits is a queue, or another path.
GLOBAL int haul_resume(struct haul *h, const struct haul_ack *a, struct haul_path *p)
{
	if (!h || !a)
		return 0;
	h->resume = HAUL_NORMAL;
	if (!p)
		return 0;
	u32 rtt = h->min_rtt_us, before = haul_min(p->carried.rtt_us, HAUL_RTT_MAX_US);
	u64 carried = haul_bound_rate(p->carried.rate);
	bool fresh = haul_since(a->now_us, p->carried.seen_us) < HAUL_CARRIED_US;
	bool same = rtt >= before / 2 && rtt <= before + haul_startup_queue_us(before);
	bool alone = !h->others && haul_since(a->now_us, p->resume_us) > 3 * haul_min(rtt, HAUL_RTT_MAX_US);
	if (!fresh || !same || !alone || carried / 2 <= 2 * h->bw)
		return 0;
	p->resume_us = a->now_us;
	if (p->floor.share_q16 < p->carried.floor_q16) {
		p->floor.share_q16 = haul_min(p->carried.floor_q16, HAUL_LOSS_MAX_Q16);
		p->floor.most_q16 = p->floor.share_q16;
		p->floor.looked_us = a->now_us;
	}
	h->floor = p->floor;
	h->loss_q16 = h->floor.share_q16;
	h->resume = HAUL_UNVALIDATED;
	h->jump = carried;
	h->rate = haul_needed(h, carried / 2);
	// Lost packets are on the way for a quarter of a round trip more (RACK, RFC 8985).
	h->jump_window = haul_min(a->in_flight, WINDOW_MAX) + haul_segments(h->rate, rtt + rtt / 4, a->mss);
	h->jump_delivered = a->delivered;
	haul_begin_epoch(h, a);
	return 0;
}

// Safe Retreat: the path does not carry the jump. What arrives of it is what the path
// carries now. haul sends half of that until what is on the way fits.
GLOBAL int haul_retreat(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u64 arrives = haul_rate_of(haul_counted(a->delivered, h->epoch_delivered), a->mss, haul_since(a->now_us, h->epoch_us));
	h->resume = HAUL_NORMAL;
	h->bw = haul_max(haul_min(arrives, h->jump), a->mss);
	haul_leave_startup(h, a);
	return 0;
}

// Whether more of some packets was lost than the path loses by itself.
static inline bool haul_jump_lossy(const struct haul *h, u32 lost, u32 got)
{
	u64 all = (u64)lost + got, own = all * h->floor.share_q16 >> 16;
	return lost > own + 4 * haul_sqrt(own) + all / 64 + HAUL_RESUME_LOST;
}

GLOBAL int haul_resume_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	bool began = h->resume == HAUL_VALIDATING;
	if (began && haul_jump_lossy(h, h->missed, h->got)) {
		haul_retreat(h, a);
		return 0;
	}
	// Flags of the first window tell nothing of the jump.
	bool limited = began ? h->was_limited
			     : haul_counted(a->sent, h->epoch_sent) < haul_segments(h->rate, h->took_us, a->mss) / 4 * 3;
	if (!began) {
		h->resume = HAUL_VALIDATING;
		h->phase = h->flat = 0;
		h->jump_delivered = a->delivered;
		h->quarter_low_us = h->recent_low_us = ~0u;
		h->quarter_samples = 0;
		h->quarter_sum_us = 0;
		h->quarter_start_us = a->now_us;
	}
	if (limited) { // it did not send so much: only what arrives is proved
		h->phase = 0;
		h->rate = haul_needed(h, haul_min(haul_max(2 * h->delivery, h->jump / 2), h->jump));
		if (++h->flat >= HAUL_RESUME_ROUNDS) {
			h->resume = HAUL_NORMAL;
			h->bw = h->delivery;
			h->full_bw = 0;
			h->rate = haul_needed(h, h->bw);
			haul_enter(h, HAUL_STARTUP);
			h->phase = 3;
		}
		return 0;
	}
	h->rate = haul_needed(h, h->jump);
	if (h->phase++ >= 2) { // what was sent at the whole rate has arrived
		h->resume = HAUL_NORMAL;
		haul_settle(h, a, h->delivery);
	}
	return 0;
}

GLOBAL int haul_startup_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->phase < 3 && (++h->phase == 3 || h->got >= 8)) // of the first window the path may have carried little
		h->bw = haul_min(h->bw, haul_max(haul_startup_factor(h, a), 2) * h->delivery);
	h->bw = haul_max(h->bw, h->delivery);
	bool lossy = h->got + h->missed >= HAUL_STARTUP_PACKETS &&
		     haul_share_q16(h->missed, h->got) > h->floor.share_q16 + h->floor.share_q16 / 4 + HAUL_ONE / 8;
	if (h->limited && !lossy)
		return 0;
	if (h->bw >= haul_scale(h->full_bw, HAUL_STARTUP_GROWTH_Q16)) {
		h->full_bw = h->bw;
		h->flat = 0;
		// Loss of the round before, while arrivals still grow, is the path's own.
		// Beside others the growth may be at their expense.
		if (!h->others && h->queue_us <= haul_empty_us(h, a) && h->round_got >= HAUL_EPOCH_PACKETS) {
			h->start_lost += h->round_lost, h->start_got += h->round_got;
			if (h->start_lost >= HAUL_FLOOR_LOSSES)
				haul_prove_floor(h, a, h->start_lost, h->start_got);
		}
		h->round_lost = h->missed;
		h->round_got = h->got;
	} else if (lossy || ++h->flat >= HAUL_STARTUP_FLAT_ROUNDS) {
		if (lossy) // what was sent more was lost: so much is carried
			h->bw = haul_min(h->bw, h->delivery);
		haul_leave_startup(h, a);
		return 0;
	}
	h->rate = haul_needed(h, h->bw);
	return 0;
}

static inline void haul_restore(struct haul *h)
{
	haul_enter(h, HAUL_RESTORE);
	h->restore_lossy = false;
}

GLOBAL int haul_drain_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	// Data sent before the test still fills the queue, so the arrival rate is the
	// path's capacity now.
	bool full = h->rtt_low_us != ~0u && h->rtt_low_us > h->min_rtt_us + haul_empty_us(h, a);
	if (h->phase == 0 && h->from != HAUL_STARTUP && h->delivery < h->ref / 2 && full)
		h->ref = haul_max(h->delivery + h->delivery / 16, h->ref / 16);
	if (++h->phase < 2 || h->rtt_low_us == ~0u) {
		if (h->phase >= HAUL_DRAIN_ROUNDS)
			haul_restore(h);
		return 0;
	}
	bool empty = h->rtt_low_us <= h->min_rtt_us + haul_empty_us(h, a);
	// After start-up the queue is this flow's, and its output is the path's capacity.
	if (h->from == HAUL_STARTUP && !empty && h->delivery)
		h->ref = haul_min(h->ref, h->delivery);
	// Much longer at half the rate: the path itself changes.
	if (h->rtt_low_us > h->drain_low_us + h->drain_low_us / 4)
		h->before_us = h->drain_low_us = h->rtt_low_us;
	// The drain takes too long: the path has become narrower.
	if (!empty && h->phase > 5 && h->delivery < h->ref)
		h->ref -= (h->ref - h->delivery) / 4;
	bool shorter = h->rtt_low_us + haul_max(1000, h->rtt_low_us / 32) < h->drain_low_us;
	h->flat = shorter ? 0 : h->flat + 1;
	h->drain_low_us = haul_min(h->drain_low_us, h->rtt_low_us);
	if (empty || h->flat >= 2 || h->phase >= HAUL_DRAIN_ROUNDS)
		haul_restore(h);
	return 0;
}

GLOBAL int haul_restore_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	if (++h->phase < HAUL_RESTORE_ROUNDS || h->rtt_low_us == ~0u)
		return 0;
	u32 low = h->drain_low_us, queue = h->rtt_low_us > low ? h->rtt_low_us - low : 0;
	u32 back = h->before_us > low ? (h->before_us - low) / 3 : 0;
	u32 target = haul_target_us(low, h->ref, a->mss, h->room_us) + h->noise_us;
	// The round trip fell, but not to the earlier value: there is a queue that this
	// flow cannot empty.
	bool filled = low > h->min_rtt_us + haul_empty_us(h, a), strict = h->from == HAUL_COMPETE || filled;
	u32 least = strict ? haul_empty_us(h, a) : target + target / 4;
	h->rival = queue > haul_max(least, back);
	if (!h->rival) {
		h->left_us = a->now_us;
		h->left_window = h->from == HAUL_COMPETE && filled ? h->window : 0;
		h->min_rtt_us = h->min_rtt_next_us = low;
		h->min_rtt_start_us = a->now_us;
		haul_cruise(h, a, h->ref);
		return 0;
	}
	// There is a rival: the proof of a raise may have been at its expense.
	if (!h->others)
		h->floor.share_q16 = 0;
	if (h->from != HAUL_COMPETE) {
		h->cut_delivery = h->ref;
		// With the rate before the queue grew.
		u64 rate = haul_max(h->ref, haul_min(h->full_bw, 2 * h->ref));
		u32 window = haul_segments(haul_needed(h, rate), h->before_us, a->mss);
		haul_cubic_start(h, a->now_us, haul_max(window, haul_left_window(h, a)));
	}
	h->cut_lost = a->lost;
	h->cut_marked = a->marked;
	h->test_us = a->now_us;
	haul_enter(h, HAUL_COMPETE);
	if (h->restore_lossy)
		haul_cubic_cut(h, a->now_us);
	return 0;
}

GLOBAL int haul_cruise_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 target = haul_queue_target_us(h, a), queue = h->queue_us;
	u64 base = haul_needed(h, haul_max(h->bw, h->bw_before));
	// The slowest feedback with which a loop with a delay of 1.5 epochs is stable.
	u32 horizon = 3 * haul_min(haul_max(h->min_rtt_us, h->took_us), HAUL_RTT_MAX_US);

	u32 busy_us = haul_since(a->now_us, h->low_us);
	// All flows of a host act at once, or the others' traffic hides this flow's
	// effect; also now, if the flows of others empty the queue.
	bool due = busy_us > HAUL_PROBE_INTERVAL_US / 2 ||
		   (h->floor.share_q16 && haul_since(a->now_us, h->floor.looked_us) > HAUL_PROBE_INTERVAL_US / 2);
	if ((due && haul_slot(h, a, HAUL_PROBE_SLOT)) || busy_us > 2 * HAUL_PROBE_INTERVAL_US ||
	    (busy_us > HAUL_PROBE_INTERVAL_US / 3 * 2 && queue < h->queue_before_us && queue < target / 3 * 2)) {
		haul_probe(h);
		return 0;
	}

	if (queue > target) {
		u32 excess = queue - target, less = haul_min(((u64)excess << 16) / horizon, HAUL_ONE / 2);
		h->calm = h->empty = 0;
		h->streak /= 2;
		if (!h->over++) {
			h->full_bw = h->rate;
			h->over_rate = h->excess_us = h->yielded_us = 0;
		} else {
			// In its first epoch the arrivals are a mixture.
			h->over_rate = haul_max(h->over_rate, h->delivery);
		}
		h->excess_us = haul_max(h->excess_us, excess);
		// The queue does not shrink, or the flow has yielded much.
		bool stubborn = h->yielded_us > 2 * h->excess_us + h->min_rtt_us / 32 + 1000 ||
				(h->over > 1 && base < haul_scale(h->held, 49152)); // 0.75
		// The shortfall of arrivals against sending: the floor may be too high.
		u64 came = haul_max(h->delivery, 1);
		u64 arrives = haul_scale(haul_scale(base, HAUL_ONE - less), HAUL_ONE - haul_min(h->loss_q16, HAUL_ONE));
		if (arrives < came)
			h->yielded_us += haul_min(haul_min(h->took_us, HAUL_RTT_MAX_US) * (came - arrives) / came, 1000000);
		u32 since = haul_since(a->now_us, h->test_us);
		if (stubborn && since > HAUL_TEST_US && since > HAUL_TEST_ROUNDS * a->srtt_us) {
			haul_test_all(h, a, h->over_rate);
			return 0;
		}
		h->rate = haul_scale(base, HAUL_ONE - less);
		if (h->over_rate) // what does not help is not done for long
			h->rate = haul_max(h->rate, haul_scale(haul_needed(h, h->over_rate), 49152)); // 0.75
		return 0;
	}
	h->over = 0;
	if (base > h->held || queue <= haul_empty_us(h, a))
		h->held = base;
	if (h->room_us < HAUL_RTT_MAX_US && haul_since(a->now_us, h->room_seen_us) > HAUL_PROBE_INTERVAL_US) {
		h->room_us += h->room_us / 8;
		h->room_seen_us = a->now_us;
	}
	if (h->limited)
		return 0;
	// Room: send a little more, towards the target queue. If more arrives, the path
	// has become wider: grow faster as long as that holds.
	h->peak = haul_max(base, h->peak - h->peak / 512);
	bool empty = queue <= haul_empty_us(h, a);
	h->empty = empty ? haul_min(h->empty + 1, 12) : 0;
	u32 step = HAUL_ONE / 64 << h->empty / 4;
	if (haul_marked(h, a->now_us, 6 * HAUL_PROBE_INTERVAL_US)) // at most the target in a round trip
		step = haul_min(step, ((u64)target << 15) / (h->min_rtt_us + 1));
	u32 more = haul_max(((u64)(target - queue) << 16) / horizon, empty ? step : HAUL_ONE / 512);
	// If losses limit the flow, grow at least as Reno: a segment in a round trip.
	if (empty && h->cut_queue_us <= haul_empty_us(h, a) && haul_since(a->now_us, h->cut_us) < 3 * HAUL_PROBE_INTERVAL_US)
		more = haul_max(more, HAUL_ONE / haul_max(haul_segments(base, a->srtt_us, a->mss), HAUL_WINDOW_MIN));
	if (base >= haul_scale(h->full_bw, HAUL_ONE + HAUL_ONE / 12)) {
		if (h->streak < 3) // 1/16, 1/8, 1/4
			h->streak++;
		h->full_bw = base;
		h->calm = 0;
	} else if (++h->calm >= (h->streak ? 4 : 8)) {
		h->streak = 0;
		h->full_bw = base;
		h->calm = 0;
	}
	if (h->streak)
		more = haul_max(more, 2 * base < h->peak ? HAUL_ONE / 4 : HAUL_ONE / 32 << h->streak);
	// Far below the recent rate: start again, and expect half as much the next time.
	// Recent losses, or other flows of the host, may be the cause.
	u32 far = haul_since(a->now_us, h->cut_us) > HAUL_PROBE_INTERVAL_US / 2 ? 4 : 8;
	if (far * base < h->peak && !h->others && h->empty > 1 && haul_since(a->now_us, h->restart_us) > HAUL_PROBE_INTERVAL_US) {
		h->peak /= 2;
		h->restart_us = a->now_us;
		h->full_bw = base;
		h->round_lost = h->round_got = h->start_lost = h->start_got = 0;
		haul_enter(h, HAUL_STARTUP);
		h->phase = 3;
		return 0;
	}
	if (h->took_us > h->min_rtt_us + h->min_rtt_us / 2)
		more = haul_min(more, ((u64)target << 17) / h->took_us); // in a long epoch that would be a long queue
	u64 next = haul_scale(base, HAUL_ONE + more), known = haul_needed(h, h->cut_delivery);
	if (h->streak && base < known && next > known) {
		// Slowly, above the rate that was too much.
		next = known;
		h->streak = 0;
	}
	// The additional data, sent without a queue, has not arrived yet.
	h->rate = empty ? haul_max(next, haul_min(h->rate, haul_scale(base, 81920))) : next;
	if (h->mean > base) // up to the others, by at most 1/32
		h->rate = haul_scale(h->rate, HAUL_ONE + haul_min(((h->mean - base) << 11) / haul_max(base, 1), HAUL_ONE / 32));
	return 0;
}

// Whether to raise: the first time as soon as there is enough evidence, then at the
// common times of the host's flows, at ever longer intervals.
static inline bool haul_may_raise(struct haul *h, const struct haul_ack *a)
{
	if (h->limited || h->queue_us > haul_calm_us(h, a))
		return false;
	if (h->others && haul_since(a->now_us, h->any_raise_us) < HAUL_RAISE_ALONE_US)
		return false;
	u8 n = haul_raises(h, a);
	u32 since = haul_since(a->now_us, h->raise_us);
	// Between the times of probes.
	bool slot = haul_slot(h, a, HAUL_COMPETE_SLOT) && !haul_slot(h, a, HAUL_PROBE_SLOT);
	bool soon = h->window >= 4 * HAUL_RAISE_WINDOW && since > 2 * HAUL_PROBE_INTERVAL_US; // of many packets
	if (n && !soon && !slot)
		return false;
	u32 lost = h->late_lost, got = h->late_got, most = haul_explained_q16(h);
	u32 early = haul_share_q16(h->early_lost, h->early_got), late = haul_share_q16(lost, got);
	bool again = h->late_lossy >= HAUL_FLOOR_LOSSES / 2 - 1, both = h->early_lost && again;
	if (both && late < 4 * early && early < 4 * late)
		lost += h->early_lost, got += h->early_got;
	else if (h->early_lost && (!both || early < late)) // the lesser one: more is a burst
		lost = h->early_lost, got = h->early_got;
	u32 share = haul_share_q16(lost, got);
	bool known = most && got >= HAUL_EPOCH_PACKETS && share <= most;
	bool enough = h->early_lost ? both : again && h->window >= 4 * HAUL_RAISE_WINDOW && lost >= HAUL_FLOOR_LOSSES / 2;
	bool low = h->window <= h->cut_window / 2 && h->window >= HAUL_RAISE_WINDOW / 2;
	// Seldom, if the gain would be small.
	bool worth = !n || h->delivery <= h->cut_delivery / 3 * 2 || since >= 4 * HAUL_PROBE_INTERVAL_US;
	if (!known && !(enough && worth && (slot || low)))
		return false;
	if (n && !soon && since < (1u << 20) << haul_min(n, known ? HAUL_RAISES_MAX / 2 : HAUL_RAISES_MAX))
		return false;
	h->raises = n + 1;
	h->raise_us = a->now_us;
	h->floor_before_q16 = h->floor.share_q16;
	h->raise_most_q16 = most;
	if (share > most) {
		haul_set_floor(h, share);
		h->raise_most_q16 = share + 2 * share / haul_max(haul_sqrt(lost), 1);
	}
	return true;
}

// Doubles the rate towards the earlier delivery.
static inline void haul_raise_more(struct haul *h, const struct haul_ack *a)
{
	h->ref = haul_max(h->delivery, a->mss);
	u64 next = 2 * h->ref;
	if (h->floor.share_q16 <= h->floor_before_q16) // it is known, and no test
		next = haul_min(next, haul_max(h->cut_delivery, h->ref + h->ref / 4));
	h->raise_to = next;
	h->rate = haul_needed(h, next);
	h->phase = 0;
	h->step_lost = h->step_got = 0;
}

static inline void haul_raise(struct haul *h, const struct haul_ack *a)
{
	h->raise_lost = h->raise_got = 0;
	h->raise_from = h->delivery;
	h->raise_holds = false;
	h->raise_together = h->others ? h->together : 0;
	h->any_raise_us = a->now_us;
	haul_enter(h, HAUL_RAISE);
	haul_raise_more(h, a);
}

GLOBAL int haul_raise_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	// The loss beside CUBIC's window is the path's own if twice as much loses the same
	// share, and twice as much arrives. On a full path that is false.
	h->step_lost += h->missed, h->step_got += h->got;
	if (h->phase++ == 0) // what was sent at the higher rate is on the way
		return 0;
	if (h->raise_holds && h->phase <= 2) { // so is what was too much
		h->step_lost = h->step_got = 0;
		return 0;
	}
	u32 lost = h->raise_lost + h->step_lost, got = h->raise_got + h->step_got;
	u32 most = (u64)(lost + got) * h->raise_most_q16 >> 16;
	bool lossy = lost > most + 2 * haul_sqrt(most) + 1;
	bool grown = h->delivery > h->raise_to / 8 * 7, queued = h->queue_us > haul_calm_us(h, a);
	bool many = (lossy ? h->raise_lost + h->raise_got : lost + got) >= HAUL_RAISE_PACKETS;
	// With few packets the proof needs more doublings, unless a queue shows it.
	u64 enough = h->cut_delivery / 8 * 7, proof = (!many && (lossy || !queued) ? 3 : 1) * h->raise_from / 4 * 7;
	proof = haul_max(proof, h->raise_together / 8 * 7); // all together are to send nearly twice as much
	if (!lossy) {
		h->raise_lost = lost, h->raise_got = got;
		h->step_lost = h->step_got = 0;
		if (h->raise_holds && !many && !queued && h->phase < HAUL_RAISE_ROUNDS)
			return 0;
		if (!h->raise_holds && grown && !queued && h->delivery < haul_max(enough, proof)) {
			haul_raise_more(h, a);
			return 0;
		}
		if (!grown && !queued && h->phase < 4) // it may be about to show
			return 0;
		if (grown || queued)
			h->ref = h->delivery;
	}
	// The last rate was too high. Send the one before for longer, if it is nearly the
	// rate before the losses and at most the present delivery.
	u64 hold = haul_max(h->raise_from / 4 * 7, h->cut_delivery / 4 * 3);
	if (lossy && !many && !h->raise_holds && h->ref >= hold && h->ref <= h->delivery) {
		h->raise_holds = true;
		h->raise_to = h->ref;
		h->rate = haul_needed(h, h->ref);
		h->phase = 0;
		return 0;
	}
	bool known = h->floor.share_q16 <= h->floor_before_q16;
	// Such a share needs many packets as proof.
	bool few = h->floor.share_q16 > HAUL_ONE / 4 && h->raise_lost + h->raise_got < HAUL_LOSS_PACKETS / 4;
	if (few || h->ref < (known ? haul_min(enough, h->raise_from + h->raise_from / 4) : proof)) {
		haul_set_floor(h, h->floor_before_q16);
		haul_forget_loss(h);
		h->cut_lost = a->lost;
		h->cut_marked = a->marked;
		haul_enter(h, HAUL_COMPETE);
		haul_cubic_cut(h, a->now_us);
		h->loss_q16 = h->floor.share_q16;
		return 0;
	}
	if (known && h->raise_lost >= HAUL_FLOOR_SURE)
		haul_prove_floor(h, a, h->raise_lost, h->raise_got);
	else if (!known)
		haul_prove_floor(h, a, h->early_lost + h->late_lost + h->raise_lost, h->early_got + h->late_got + h->raise_got);
	h->loss_q16 = h->floor.share_q16;
	haul_cruise(h, a, h->ref);
	h->peak = haul_max(h->peak, h->cut_delivery);
	h->streak = lossy ? 0 : 3;
	haul_probe(h); // was it ours?
	return 0;
}

// The rounds in which a probe sends less.
static inline u32 haul_probe_rounds(const struct haul *h)
{
	return haul_floor_sure(h) || !h->floor.share_q16 ? 1 : 2;
}

GLOBAL int haul_probe_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	bool compete = h->from == HAUL_COMPETE;
	if (compete) // a dip is no time to grow by
		h->cut_us += h->took_us;
	// The reduced traffic is on the way. With an uncertain floor, so is earlier traffic
	// with losses not yet detected.
	if (h->phase++ < (compete ? 2 : haul_probe_rounds(h)))
		return 0;
	h->probe_lost += h->missed, h->probe_got += h->got;
	if (compete && h->probe_got < HAUL_PROBE_PACKETS && h->phase < HAUL_PROBE_ROUNDS)
		return 0;
	u32 floor = h->floor.share_q16;
	// One of the connections that probe now records it.
	bool first = !h->others || haul_since(a->now_us, h->floor.looked_us) > 2 * a->srtt_us;
	haul_see_floor(h, a, h->probe_lost, h->probe_got);
	h->low_us = a->now_us; // if the path was not empty now, it was tried
	h->cut_lost = a->lost;
	haul_enter(h, h->from);
	h->calm = 0;
	if (!compete && first && !h->was_limited && h->rtt_low_us != ~0u && h->queue_us > haul_queue_target_us(h, a) / 2 * 3) // it was no time to tell
		h->floor.share_q16 /= 2;
	if (h->floor.share_q16 < floor / 4 * 3) { // what was lost was ours
		h->mode = HAUL_CRUISE;
		haul_congestion(h, a);
	}
	return 0;
}

GLOBAL int haul_compete_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	if (h->limited) // CUBIC's window grows only by use: RFC 9438, 5.8
		h->cut_us += h->took_us;
	if (haul_may_raise(h, a)) {
		bool known = h->floor.share_q16 <= h->floor_before_q16;
		if (known && h->delivery > h->cut_delivery / 8 * 7)
			haul_cruise(h, a, h->delivery); // nothing has happened
		else
			haul_raise(h, a);
		return 0;
	}
	// All flows of a host test at once, at times of its clock. Otherwise each would
	// take the others for a rival.
	u32 empty = haul_empty_us(h, a);
	u32 since = haul_since(a->now_us, h->test_us);
	bool slot = haul_slot(h, a, h->rival ? HAUL_RIVAL_SLOT : HAUL_COMPETE_SLOT) &&
		    since > HAUL_COMPETE_ROUNDS * a->srtt_us;
	// Without a known rival, the queue is this flow's, or a rival has come.
	bool first = !h->rival && h->queue_us > haul_congested_us(h) && since > HAUL_TEST_US &&
		     since > HAUL_TEST_ROUNDS * h->min_rtt_us;
	if (h->queue_high_us > empty) {
		if (slot || first)
			haul_test_all(h, a, h->delivery);
		return 0;
	}
	if (slot) {
		h->rival = false;
		// As much arrives again, and no rival was found, which marks or a longer queue
		// would have shown.
		bool shows = haul_marked(h, a->now_us, 6 * HAUL_PROBE_INTERVAL_US) || h->passed_us >= HAUL_PASSED_US;
		if (shows && h->delivery > h->cut_delivery / 8 * 7) {
			haul_cruise(h, a, h->delivery);
			return 0;
		}
		if (h->floor.share_q16 && haul_slot(h, a, HAUL_PROBE_SLOT)) {
			h->test_us = a->now_us;
			haul_probe(h);
			return 0;
		}
	}
	// Without a visible queue a test shows nothing. If the window is well above the
	// earlier one without a loss, the path is wider.
	bool full = haul_since(a->now_us, h->cut_us) / 1000 >= h->k_ms;
	if (!h->rival && full && h->window > h->window_max + h->window_max / 4)
		haul_cruise(h, a, h->delivery);
	return 0;
}

// The largest delivery of the last epochs. If the queue was never empty in an epoch,
// that epoch's delivery is the path's capacity, and counts alone.
GLOBAL int haul_see_bw(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 busy_us = 2000 + haul_target_us(h->min_rtt_us, h->rate, a->mss, h->room_us) / 4 + h->noise_us;
	if (!h->limited && !h->was_limited && h->queue_low_us > busy_us) {
		h->bw = h->bw_before = h->delivery;
		h->period = 0;
		return 0;
	}
	if (h->delivery > h->bw)
		h->bw = h->delivery;
	if (++h->period >= HAUL_BW_EPOCHS && !h->limited) {
		h->bw_before = h->bw;
		h->bw = h->delivery;
		h->period = 0;
	}
	return 0;
}

// A sender short of CPU paces late, and sends less than the rate although the window
// has room. It then paces faster, until it sends at the rate.
static inline void haul_see_lateness(struct haul *h, const struct haul_ack *a, u64 sent)
{
	if (h->mode != HAUL_CRUISE || h->limited || h->got < HAUL_LATE_PACKETS || a->in_flight + a->in_flight / 8 > h->cwnd) {
		h->late = 0;
		return;
	}
	if (sent >= haul_scale(h->rate, 63570)) // 0.97
		h->late /= 2;
	else if (sent < haul_scale(h->rate, 60293) && h->late < HAUL_LATE_MAX) // 0.92
		h->late++;
}

// The queue of the epoch before has passed if it has lost nothing by now. Start-up's would
// lose many packets, so a few are the path's own.
static inline void haul_see_passed(struct haul *h, u32 lost, u32 delivered)
{
	bool begins = h->mode == HAUL_STARTUP || h->mode == HAUL_DRAIN;
	if (haul_max(lost, h->missed) <= (begins ? delivered / 64 : 0))
		h->passed_us = haul_max(h->passed_us, haul_max(h->queue_us, h->queue_high_us));
}

GLOBAL int haul_end_epoch(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 us = haul_since(a->now_us, h->epoch_us);
	u32 delivered = haul_counted(a->delivered, h->epoch_delivered);
	u32 spurious = haul_counted(a->spurious, h->epoch_spurious);
	s32 net = (s32)(a->lost - h->epoch_lost - spurious);
	u32 lost = net > 0 ? net : 0;

	h->took_us = us;
	h->got = delivered;
	haul_see_passed(h, lost, delivered);
	h->missed = lost;
	h->queue_before_us = h->queue_us;
	// More arrives than was sent only from a queue, or over a path that has just
	// become shorter: it is not the path's capacity.
	h->delivery = haul_rate_of(delivered, a->mss, us);
	if (h->mode != HAUL_DRAIN)
		h->delivery = haul_min(h->delivery, haul_max(h->pace, h->pace_before));
	h->pace_before = h->pace;
	if (!haul_just_cut(h, a))
		haul_pool_loss(h, net, delivered, a->delivered);
	u32 waste = haul_min(((u64)spurious << 16) / (delivered + 1), HAUL_ONE);
	h->waste_q16 = (7 * h->waste_q16 + waste) / 8;
	h->queue_low_us = haul_queue_us(h, h->rtt_low_us);
	if (h->rtt_low_us != ~0u) {
		h->queue_us = haul_queue_us(h, haul_max(h->rtt_low_us, haul_min(h->recent_low_us, h->quarter_low_us)));
		h->queue_high_us = haul_max(h->queue_us, haul_queue_us(h, h->rtt_high_us));
	} else if (lost > delivered / 8 && delivered >= HAUL_EPOCH_PACKETS) {
		// No sample, since all acknowledged data was sent again: the round trip was long.
		h->queue_us = haul_max(h->queue_us, haul_congested_us(h) + 1);
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
	h->held_back = h->limited;

	// Most packets are lost, or sent in vain: use the arrival rate.
	h->vain = lost > delivered + delivered / 2 ? h->vain + 1 : 0;
	if (h->vain >= 2 && h->mode != HAUL_STARTUP) {
		h->vain = 0;
		if (h->mode == HAUL_RAISE) // and it has proved nothing
			h->floor.share_q16 = h->floor_before_q16;
		haul_cruise(h, a, h->delivery);
		h->rate = h->delivery;
		h->loss_q16 = h->floor.share_q16;
		haul_begin_epoch(h, a);
		return 0;
	}
	// While another flow tests, this flow's traffic would look like a rival.
	if (h->others && !limited && h->any_test_us > h->joined_us && haul_since(a->now_us, h->any_test_us) < 2 * a->srtt_us &&
	    (h->mode == HAUL_CRUISE || h->mode == HAUL_COMPETE)) {
		haul_test(h, a, h->delivery);
		haul_begin_epoch(h, a);
		return 0;
	}
	switch (h->mode) {
	case HAUL_STARTUP:
		if (h->resume == HAUL_UNVALIDATED || h->resume == HAUL_VALIDATING)
			haul_resume_epoch(h, a);
		else
			haul_startup_epoch(h, a);
		break;
	case HAUL_DRAIN:
		haul_drain_epoch(h, a);
		break;
	case HAUL_RESTORE:
		haul_restore_epoch(h, a);
		break;
	case HAUL_CRUISE:
		haul_cruise_epoch(h, a);
		break;
	case HAUL_PROBE:
		haul_probe_epoch(h, a);
		break;
	case HAUL_RAISE:
		haul_raise_epoch(h, a);
		break;
	default:
		haul_compete_epoch(h, a);
	}
	haul_begin_epoch(h, a);
	return 0;
}

GLOBAL int haul_see_rtt(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u32 rtt = a->rtt_us;
	if (!rtt)
		return 0;
	if (!h->seen_rtt) {
		// The handshake's packets were short: on a slow path their time is less.
		h->seen_rtt = true;
		h->min_rtt_us = h->min_rtt_next_us = rtt;
	}
	if (rtt < h->rtt_low_us)
		h->rtt_low_us = rtt;
	if (haul_since(a->now_us, h->min_rtt_start_us) > 2 * HAUL_PROBE_INTERVAL_US) {
		h->min_rtt_us = h->min_rtt_next_us;
		h->min_rtt_next_us = rtt;
		h->min_rtt_start_us = a->now_us;
	}
	if (rtt < h->min_rtt_next_us)
		h->min_rtt_next_us = rtt;
	if (rtt < h->min_rtt_us)
		h->min_rtt_us = rtt;
	if (rtt <= h->min_rtt_us + h->min_rtt_us / 128 + 1000)
		h->low_us = a->now_us;

	if (rtt < h->quarter_low_us)
		h->quarter_low_us = rtt;
	h->quarter_samples++;
	h->quarter_sum_us += rtt;
	bool sooner = h->mode == HAUL_STARTUP && h->min_rtt_us >= HAUL_LONG_RTT_US;
	if (h->quarter_samples < HAUL_QUARTER_SAMPLES || haul_since(a->now_us, h->quarter_start_us) < h->min_rtt_us / (sooner ? 16 : 4))
		return 0;
	u32 spread_us = h->quarter_sum_us / h->quarter_samples - h->quarter_low_us;
	h->noise_us = h->noise_us ? (7ull * h->noise_us + spread_us / 3) / 8 : spread_us / 3;
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

// A probe sends so much less for a round trip that the queue empties, and less than
// arrives. The loss then does not depend on the sending rate.
static inline u32 haul_probe_gain_q16(const struct haul *h)
{
	u32 less = ((u64)h->queue_us << 17) / (h->min_rtt_us + 1);
	return HAUL_ONE - haul_max(HAUL_ONE - HAUL_PROBE_GAIN_Q16, haul_min(less, HAUL_ONE / 3));
}

// Pace and window from the present state.
GLOBAL int haul_apply(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
	u64 rate = h->rate;
	u32 gain = HAUL_ONE, window, rtt = h->min_rtt_us;

	if (h->mode == HAUL_COMPETE || (h->mode == HAUL_PROBE && h->from == HAUL_COMPETE)) {
		window = h->window;
		if (h->mode == HAUL_PROBE)
			window = haul_min(window - window / 3, haul_segments(h->delivery, a->srtt_us, a->mss) / 4 * 3);
		h->cwnd = window_bound(haul_max(window, HAUL_WINDOW_MIN), a->clamp);
		h->pace = haul_max(haul_scale(haul_rate_of(h->cwnd, a->mss, a->srtt_us), 78643), a->mss); // 1.2
		return 0;
	}
	if (h->mode == HAUL_DRAIN && h->from != HAUL_STARTUP) {
		rate = haul_needed(h, h->ref);
		window = haul_segments(rate, haul_min(h->drain_low_us, a->srtt_us), a->mss) / 2;
		h->cwnd = window_bound(haul_max(window, HAUL_WINDOW_MIN), a->clamp);
		h->pace = haul_max(haul_scale(rate, HAUL_DRAIN_GAIN_Q16), haul_rate_of(HAUL_WINDOW_MIN, a->mss, a->srtt_us));
		return 0;
	}
	u32 factor = haul_startup_factor(h, a);
	bool jumps = h->mode == HAUL_STARTUP && (h->resume == HAUL_UNVALIDATED || h->resume == HAUL_VALIDATING);
	if (jumps)
		; // as it is
	else if (h->mode == HAUL_STARTUP)
		gain = factor == 3 ? HAUL_TRIPLE_GAIN_Q16 : factor == 2 ? HAUL_STARTUP_GAIN_Q16 : HAUL_ONE;
	else if (h->mode == HAUL_DRAIN)
		gain = HAUL_DRAIN_GAIN_Q16;
	else if (h->mode == HAUL_RESTORE)
		rate = haul_scale(haul_needed(h, h->ref), 64225), rtt = h->drain_low_us; // 0.98
	else if (h->mode == HAUL_PROBE && h->phase < haul_probe_rounds(h))
		rate = haul_min(rate, haul_max(h->bw, h->bw_before)), gain = haul_probe_gain_q16(h);
	else
		gain += HAUL_ONE / 8 * h->late;
	if (h->mode == HAUL_CRUISE) { // a queue that has grown since the last epoch
		u32 now = haul_queue_us(h, haul_min(h->recent_low_us, h->quarter_low_us));
		u32 target = haul_max(h->queue_us, haul_queue_target_us(h, a));
		if (now > target)
			gain -= haul_min(((u64)(now - target) << 16) / ((u64)haul_min(h->min_rtt_us, HAUL_RTT_MAX_US) + 1), HAUL_ONE / 4);
	}
	// The rate is at least two packets for each round trip; the window bounds it.
	rate = haul_max(rate, haul_rate_of(2, a->mss, a->srtt_us));
	h->pace = haul_max(haul_scale(rate, gain), a->mss);

	// One and a half times the data that the path holds, jitter included.
	u32 jitter = a->srtt_us > rtt + h->queue_us ? a->srtt_us - rtt - h->queue_us : 0;
	window = haul_segments(rate, rtt + haul_min(jitter, rtt), a->mss);
	if (h->mode == HAUL_STARTUP && !jumps)
		window *= factor == 3 ? HAUL_TRIPLE_WINDOW : HAUL_STARTUP_WINDOW;
	else
		window += window / 2;
	if (jumps) { // and as in slow start: a packet more for each that arrives, or is the path's loss
		u32 more = h->resume == HAUL_VALIDATING ? haul_counted(a->delivered, h->jump_delivered) : 0;
		window = haul_min(window, h->jump_window + haul_made_up(more, h->floor.share_q16));
	}
	u32 burst = haul_max(1, haul_min(h->pace / 1000, 65536) / (a->mss ? a->mss : 1));
	h->cwnd = window_bound(haul_max(window, HAUL_WINDOW_MIN) + 2 * burst, a->clamp);
	return 0;
}

static inline void haul_init(struct haul *h, const struct haul_ack *a, u32 cwnd)
{
	__builtin_memset(h, 0, sizeof *h);
	h->min_rtt_us = a->srtt_us;
	h->cwnd = cwnd;
	h->quarter_low_us = h->recent_low_us = ~0u;
	h->quarter_start_us = h->last_ack_us = h->low_us = h->floor.looked_us = h->min_rtt_start_us = h->test_us = a->now_us;
	h->room_us = ~0u;
	h->cut_lost = a->lost;
	h->cut_marked = a->marked;
	if (!a->srtt_us)
		h->min_rtt_us = ~0u;
	h->min_rtt_next_us = h->min_rtt_us;
	haul_begin_epoch(h, a);
	h->bw = h->rate = haul_rate_of(cwnd, a->mss, a->srtt_us ? a->srtt_us : 1000);
	h->pace = haul_scale(h->rate, HAUL_STARTUP_GAIN_Q16);
}

// A mark of this flow's own queue: the flow sends less for a round trip, as in a probe,
// and keeps a shorter queue for 10 s, so that the marks end. If they do not, or if there
// is no queue to see, others fill it, and the mark is congestion as a loss is. Returns
// whether the mark was of the first kind.
GLOBAL int haul_shortens(struct haul *h, const struct haul_ack *a)
{
	if (!h || !a)
		return 0;
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
	h->rate = haul_min(h->rate, haul_needed(h, haul_max(h->bw, h->bw_before)));
	if (h->mode == HAUL_CRUISE)
		haul_probe(h);
	return true;
}

// Whether losses are too few, and the queue is too short, for an overflow: the path has
// carried twice the queue. A rival's losses are not spared.
static inline bool haul_spares(const struct haul *h, u32 queue_us, u32 lost, u32 came, u32 share_q16)
{
	return !h->rival && h->passed_us >= HAUL_PASSED_US && queue_us <= h->passed_us / 2 && lost <= 2 + came / 64 &&
	       share_q16 <= HAUL_SPARED_Q16;
}

// Evaluates losses and marks since the last cut.
static inline void haul_see_congestion(struct haul *h, const struct haul_ack *a)
{
	u32 lost = haul_counted(a->lost, h->cut_lost), marked = haul_counted(a->marked, h->cut_marked);
	if (!lost && !marked)
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
	if (h->mode == HAUL_RESTORE) { // the test comes first
		h->restore_lossy = true;
		return;
	}
	bool few = false;
	if (!marked) {
		// The pool holds the packets before this epoch.
		u32 n = haul_counted(a->delivered, h->epoch_delivered), l = haul_counted(a->lost, h->epoch_lost);
		u64 pool = haul_max((u64)n + l, haul_min(a->delivered, haul_loss_packets(h)));
		u64 share = ((u64)h->loss_q16 * (pool - n - l) + ((u64)l << 16)) / haul_max(pool, 1);
		// While a window limits the flow, less arrives, and earlier losses appear.
		// A queue as long as the one that overflowed before overflows again.
		u32 queue = haul_max(h->queue_high_us, haul_queue_us(h, h->rtt_high_us));
		bool full = h->floor.share_q16 < HAUL_LOSS_SMALL_Q16 && h->floor.lost < HAUL_FLOOR_SURE &&
			    h->cut_queue_us > haul_congested_us(h) && queue >= h->cut_queue_us / 4 * 3;
		if (h->floor.share_q16 && !full && (share <= haul_explained_q16(h) || h->limited || h->held_back))
			return;
		if (h->mode == HAUL_PROBE)
			return;
		few = haul_spares(h, queue, l, n, share);
		if (few && queue <= HAUL_SPARED_US)
			return;
	}
	if ((marked || few) && haul_shortens(h, a)) {
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
	u32 silent = haul_since(a->now_us, h->last_ack_us);
	h->last_ack_us = a->now_us;
	h->limited |= a->limited;
	haul_see_rtt(h, a);
	if (a->timeout != h->timeout || silent > 4 * a->srtt_us + 1000000) {
		// A measurement across a silence is meaningless.
		h->timeout = a->timeout;
		haul_begin_epoch(h, a);
		if (h->resume != HAUL_NORMAL) { // nor is what was to be resumed
			h->resume = HAUL_NORMAL;
			if (h->jump && h->mode == HAUL_STARTUP)
				h->bw = h->rate = haul_rate_of(2 * HAUL_WINDOW_MIN, a->mss, a->srtt_us);
		}
	}
	bool cold = h->resume == HAUL_RECONNAISSANCE || h->resume == HAUL_NORMAL;
	if (h->mode == HAUL_STARTUP && cold && a->sample_us && a->sample_delivered) {
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
	u32 more = (haul_counted(a->delivered, h->grown_delivered) + 1) / 2;
	h->grown_delivered = a->delivered;
	if (h->mode == HAUL_COMPETE)
		h->window = haul_min(haul_cubic(h, a->now_us, a->srtt_us), (u64)h->window + more);
	if (haul_reconnoitred(h, a))
		return true;
	// A round trip is over when a packet sent in it has arrived. If packets overtake
	// each other, that may be too early, or may not happen for long.
	u32 took_us = haul_since(a->now_us, h->epoch_us), rtt_us = h->min_rtt_us;
	bool over = a->sample_us && (s32)(a->prior_delivered - h->round_delivered) >= 0;
	if ((over && took_us >= rtt_us - rtt_us / 8) || took_us > (h->rounds + 2u) * a->srtt_us) {
		h->round_delivered = a->delivered;
		h->rounds++;
		u32 n = haul_counted(a->delivered, h->epoch_delivered);
		u32 rounds = h->mode == HAUL_CRUISE ? HAUL_EPOCH_ROUNDS : h->mode == HAUL_COMPETE ? 2 : 1;
		return (n >= HAUL_EPOCH_PACKETS && h->mode != HAUL_PROBE) || h->rounds >= rounds;
	}
	return false;
}

// haul_update_epoch ends an epoch; path is null for a connection that shares nothing.
static inline void haul_update_epoch(struct haul *h, const struct haul_ack *a, struct haul_path *path)
{
	haul_learn(h, path, a->now_us);
	if (haul_reconnoitred(h, a)) {
		haul_resume(h, a, path);
		return;
	}
	struct haul_floor floor = h->floor;
	bool raises = h->mode == HAUL_RAISE;
	h->proved = false;
	haul_end_epoch(h, a);
	// A raise without a proof, or not yet with one, does not share its floor.
	if ((raises || h->mode == HAUL_RAISE) && !h->proved)
		floor = h->floor;
	haul_tell(h, path, &floor);
}
