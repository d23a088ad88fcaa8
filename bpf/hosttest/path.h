// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A simulated bottleneck and TCP senders with selective acknowledgements over
// it: enough of both to see what an algorithm does in seconds instead of
// minutes, the same in every run. It is not the measurement: that is the lab,
// with the kernel's own TCP.
#pragma once

#include "check.h"

#define MSS 1448u
#define PACKET 1500u // with headers
#define MAX_FLOWS 10
#define RING (1u << 19) // packets of a flow between the oldest and the newest
#define SECOND 1000000000ull
#define MS 1000000ull

enum place { BEFORE, AFTER };

// The path: of the settings that change, the latest hold.
struct path {
	double rate; // bits per second
	double rtt;  // seconds
	double queue_bytes;
	double loss, ack_loss, jitter; // shares, seconds
	double burst;		       // mean length of a loss burst, packets; 0 or 1: none
	enum place place;
	double policer; // bits per second, 0: none
	bool down;
	double window_packets; // of the receiver; 0: boundless
};

struct packet {
	u64 sent, prior_mstamp, first_tx;
	u32 prior_delivered;
	u32 next, prev; // in the order of sending; RING: none
	bool delivered, lost, again, listed;
};

struct flow;

// A congestion control, told of every acknowledgement.
struct control {
	const char *name;
	void (*begin)(struct flow *);
	void (*ack)(struct flow *, u32 acked, u32 rtt_us);
	void (*lost)(struct flow *);    // recovery begins
	void (*timeout)(struct flow *); // everything on the way is taken for lost
};

struct sample {
	u32 delivered, us, prior_delivered;
};

struct flow {
	const struct control *control;
	double begins;
	// Sender.
	struct packet *ring;
	u32 una, next, in_flight, head, tail;
	u32 *again; // queue of what is to be sent again
	u32 again_first, again_count;
	u32 delivered, lost, sent, duplicates, timeouts;
	u64 delivered_mstamp, first_tx, next_send, last_progress, rack_sent;
	u32 rack_rtt_us, reorder_steps;
	u64 reorder_until;
	u32 srtt_us, rttvar_us, min_rtt_us, backoff, recovery_until;
	bool recovering, in_timeout, send_planned;
	bool window_limited; // by the receiver
	struct sample sample;
	u32 cwnd;
	u64 pace; // bytes per second, 0: none
	// Receiver: what arrived, in that order; the top bit marks a duplicate.
	u8 *got;
	u32 *log;
	u32 logged, read, expected, unacked;
	double share_hist[1024]; // in-order packets by second
	double deliver_hist[4096]; // arrived packets by tenth of a second
	void *state;
	double cubic_max, cubic_k, cubic_at;
	u32 ssthresh, low_us, low_n;
};

enum kind { DEPART, ARRIVE, ACK, SEND, TIMER, BEGIN, CHANGE };

struct event {
	u64 at;
	u32 kind, flow, arg;
};

static struct sim {
	u64 now;
	struct event *heap;
	u32 n, room;
	struct path path;
	struct flow flow[MAX_FLOWS];
	int flows;
	u64 busy_until;
	double tokens;
	u64 tokens_at;
	bool bad; // in a loss burst
	u64 queued, queue_ms[20001]; // histogram of the queue's delay in 0.1 ms
	struct path change[8];
	double change_at[8];
	int changes;
} sim;

static double uniform(void)
{
	return (any() >> 11) * 0x1p-53;
}

static void at(u64 when, u32 kind, u32 flow, u32 arg)
{
	if (sim.n == sim.room)
		sim.heap = realloc(sim.heap, (sim.room = sim.room ? 2 * sim.room : 1024) * sizeof *sim.heap);
	u32 i = sim.n++;
	for (; i && sim.heap[(i - 1) / 2].at > when; i = (i - 1) / 2)
		sim.heap[i] = sim.heap[(i - 1) / 2];
	sim.heap[i] = (struct event){when, kind, flow, arg};
}

static struct event next_event(void)
{
	struct event first = sim.heap[0], last = sim.heap[--sim.n];
	u32 i = 0;
	for (;;) {
		u32 c = 2 * i + 1;
		if (c >= sim.n)
			break;
		if (c + 1 < sim.n && sim.heap[c + 1].at < sim.heap[c].at)
			c++;
		if (sim.heap[c].at >= last.at)
			break;
		sim.heap[i] = sim.heap[c];
		i = c;
	}
	sim.heap[i] = last;
	return first;
}

static bool unlucky(double p)
{
	if (sim.path.burst <= 1)
		return uniform() < p;
	// Gilbert: all is lost in a burst.
	double to_good = 1 / sim.path.burst, to_bad = p * to_good / (1 - p);
	sim.bad = sim.bad ? uniform() >= to_good : uniform() < to_bad;
	return sim.bad;
}

// Puts a packet on the path.
static void into_path(u32 flow, u32 seq)
{
	struct path *p = &sim.path;
	if (p->down)
		return;
	if (p->policer > 0) {
		sim.tokens += (sim.now - sim.tokens_at) / 1e9 * p->policer / 8;
		sim.tokens_at = sim.now;
		if (sim.tokens > 65536)
			sim.tokens = 65536;
		if (sim.tokens < PACKET)
			return;
		sim.tokens -= PACKET;
	}
	if (p->place == BEFORE && unlucky(p->loss))
		return;
	u64 start = sim.busy_until > sim.now ? sim.busy_until : sim.now;
	if ((start - sim.now) * p->rate / 8e9 > p->queue_bytes)
		return;
	u64 delay_100us = (start - sim.now) / 100000;
	sim.queue_ms[delay_100us > 20000 ? 20000 : delay_100us]++;
	sim.queued++;
	sim.busy_until = start + (u64)(PACKET * 8e9 / p->rate);
	if (p->place == AFTER && unlucky(p->loss))
		return;
	double delay = p->rtt / 2 + p->jitter * (2 * uniform() - 1);
	at(sim.busy_until + (u64)(delay * 1e9), ARRIVE, flow, seq);
}

static struct packet *packet(struct flow *f, u32 seq)
{
	return &f->ring[seq % RING];
}

static void unlist(struct flow *f, u32 seq)
{
	struct packet *p = packet(f, seq);
	if (!p->listed)
		return;
	if (p->prev != RING)
		f->ring[p->prev].next = p->next;
	else
		f->head = p->next;
	if (p->next != RING)
		f->ring[p->next].prev = p->prev;
	else
		f->tail = p->prev;
	p->listed = false;
}

static void transmit(u32 flow, u32 seq, bool again)
{
	struct flow *f = &sim.flow[flow];
	struct packet *p = packet(f, seq);
	if (!f->in_flight)
		f->first_tx = f->delivered_mstamp = sim.now;
	if (!again)
		*p = (struct packet){0};
	p->again |= again;
	p->lost = false;
	p->sent = sim.now;
	p->prior_mstamp = f->delivered_mstamp;
	p->first_tx = f->first_tx;
	p->prior_delivered = f->delivered;
	p->next = RING;
	p->prev = f->tail;
	if (f->tail != RING)
		f->ring[f->tail].next = seq % RING;
	else
		f->head = seq % RING;
	f->tail = seq % RING;
	p->listed = true;
	f->in_flight++;
	f->sent++;
	into_path(flow, seq);
}

static void try_send(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	u32 room = RING - 1;
	if (sim.path.window_packets > 0 && sim.path.window_packets < room)
		room = sim.path.window_packets;
	f->window_limited = false;
	while (f->in_flight < f->cwnd) {
		if (f->pace && f->next_send > sim.now + 1000) {
			if (!f->send_planned)
				at(f->next_send, SEND, flow, 0);
			f->send_planned = true;
			return;
		}
		u32 burst = f->pace ? f->pace / 1024 / MSS : 1, n = 0;
		burst = burst < 2 ? 2 : burst > 44 ? 44 : burst;
		while (n < burst && f->in_flight < f->cwnd) {
			bool sent = false;
			while (f->again_count && !sent) {
				u32 seq = f->again[f->again_first];
				f->again_first = (f->again_first + 1) % RING;
				f->again_count--;
				struct packet *p = packet(f, seq);
				if ((s32)(seq - f->una) < 0 || p->delivered || !p->lost)
					continue;
				transmit(flow, seq, true);
				sent = true;
			}
			if (!sent && f->next - f->una < room) {
				transmit(flow, f->next++, false);
				sent = true;
			}
			if (!sent) {
				f->window_limited = true;
				break;
			}
			n++;
		}
		if (!n)
			return;
		if (f->pace) {
			u64 from = f->next_send > sim.now ? f->next_send : sim.now;
			u64 took = n * (u64)MSS * SECOND / f->pace, late = sim.now - f->next_send;
			if (f->next_send < sim.now && f->next_send)
				took -= late < took / 2 ? late : took / 2;
			f->next_send = from + took;
		}
	}
}

static void mark_lost(struct flow *f, u32 seq)
{
	struct packet *p = packet(f, seq);
	p->lost = true;
	unlist(f, seq);
	f->in_flight--;
	f->lost++;
	f->again[(f->again_first + f->again_count++) % RING] = seq;
}

static void arrive(u32 flow, u32 seq)
{
	struct flow *f = &sim.flow[flow];
	bool duplicate = (s32)(seq - f->expected) < 0 || f->got[seq % RING];
	f->log[f->logged++ % RING] = seq;
	(void)duplicate;
	if (!duplicate) {
		u32 tenth = sim.now / (100 * MS);
		if (tenth < 4096)
			f->deliver_hist[tenth]++;
		f->got[seq % RING] = 1;
		while (f->got[f->expected % RING]) {
			f->got[f->expected % RING] = 0;
			f->expected++;
			u32 second = sim.now / SECOND;
			if (second < 1024)
				f->share_hist[second]++;
		}
	}
	// Every second packet is acknowledged at once, and what is out of order.
	bool hole = seq + 1 != f->expected;
	if (++f->unacked >= 2 || hole) {
		f->unacked = 0;
		if (sim.path.down || uniform() < sim.path.ack_loss)
			return;
		double delay = sim.path.rtt / 2 + sim.path.jitter * (2 * uniform() - 1);
		at(sim.now + (u64)(delay * 1e9), ACK, flow, f->logged);
	}
}

static u64 rto(struct flow *f)
{
	u64 us = f->srtt_us ? f->srtt_us + (4 * f->rttvar_us > 200000 ? 4 * f->rttvar_us : 200000) : 1000000;
	return (us << f->backoff) * 1000;
}

static void acknowledge(u32 flow, u32 upto)
{
	struct flow *f = &sim.flow[flow];
	u32 acked = 0, rtt_us = 0;
	f->sample = (struct sample){0};
	u64 prior_mstamp = 0;
	bool some = false;
	u64 snd_ns = 0;
	for (; (s32)(upto - f->read) > 0; f->read++) {
		u32 seq = f->log[f->read % RING];
		struct packet *p = packet(f, seq);
		if ((s32)(seq - f->una) < 0 || p->delivered) {
			f->duplicates++;
			// One more duplicate: packets overtake each other by more (RFC 8985).
			if (f->reorder_steps < 20 && sim.now > f->reorder_until) {
				f->reorder_steps++;
				f->reorder_until = sim.now + f->srtt_us * 1000ull;
			}
			continue;
		}
		p->delivered = true;
		if (!p->lost) {
			unlist(f, seq);
			f->in_flight--;
		}
		acked++;
		f->delivered++;
		f->delivered_mstamp = sim.now;
		if (!some || (s32)(p->prior_delivered - f->sample.prior_delivered) > 0) {
			some = true;
			f->sample.prior_delivered = p->prior_delivered;
			prior_mstamp = p->prior_mstamp;
			snd_ns = p->sent - p->first_tx;
			f->first_tx = p->sent;
		}
		if (!p->again)
			rtt_us = (sim.now - p->sent) / 1000;
		// What is acknowledged too soon after it was sent again had arrived before.
		bool doubtful = p->again && (sim.now - p->sent) / 1000 < f->min_rtt_us;
		if (p->sent >= f->rack_sent && !p->lost && !doubtful) {
			f->rack_sent = p->sent;
			f->rack_rtt_us = (sim.now - p->sent) / 1000;
		}
	}
	while (f->una != f->next && packet(f, f->una)->delivered)
		f->una++;
	if (acked) {
		f->last_progress = sim.now;
		f->backoff = 0;
	}
	if (rtt_us) {
		if (!f->srtt_us) {
			f->srtt_us = rtt_us;
			f->rttvar_us = rtt_us / 2;
		} else {
			u32 err = rtt_us > f->srtt_us ? rtt_us - f->srtt_us : f->srtt_us - rtt_us;
			f->rttvar_us = (3 * f->rttvar_us + err) / 4;
			f->srtt_us = (7ull * f->srtt_us + rtt_us) / 8;
		}
		if (!f->min_rtt_us || rtt_us < f->min_rtt_us)
			f->min_rtt_us = rtt_us;
	}
	if (some) {
		u64 ack_ns = sim.now - prior_mstamp, ns = ack_ns > snd_ns ? ack_ns : snd_ns;
		f->sample.delivered = f->delivered - f->sample.prior_delivered;
		f->sample.us = ns / 1000 >= f->min_rtt_us ? ns / 1000 : 0;
	}
	// What was sent well before something that has arrived is lost (RACK).
	bool lost = false;
	u32 reorder_us = (1 + f->reorder_steps) * (f->min_rtt_us / 4);
	u64 limit = (u64)f->rack_rtt_us + (reorder_us < f->srtt_us ? reorder_us : f->srtt_us);
	while (f->head != RING) {
		struct packet *p = &f->ring[f->head];
		if (p->sent >= f->rack_sent || (sim.now - p->sent) / 1000 < limit)
			break;
		u32 seq = f->una + (f->head - f->una) % RING;
		mark_lost(f, seq);
		lost = true;
	}
	if (f->in_timeout && (s32)(f->una - f->recovery_until) >= 0)
		f->in_timeout = false;
	if (f->recovering && (s32)(f->una - f->recovery_until) >= 0)
		f->recovering = false;
	if (lost && !f->recovering && !f->in_timeout) {
		f->recovering = true;
		f->recovery_until = f->next;
		if (f->control->lost)
			f->control->lost(f);
	}
	f->control->ack(f, acked, rtt_us);
	try_send(flow);
}

static void timer(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	if ((f->in_flight || f->una != f->next) && sim.now - f->last_progress >= rto(f)) {
		while (f->head != RING)
			mark_lost(f, f->una + (f->head - f->una) % RING);
		f->timeouts++;
		f->in_timeout = true;
		f->recovering = false;
		f->recovery_until = f->next;
		f->last_progress = sim.now;
		f->backoff++;
		f->cwnd = 1;
		f->next_send = 0;
		if (f->control->timeout)
			f->control->timeout(f);
		try_send(flow);
	}
	at(sim.now + 10 * MS, TIMER, flow, 0);
}

static void (*watch)(double now);

static void run(double seconds)
{
	for (int i = 0; i < sim.flows; i++)
		at((u64)(sim.flow[i].begins * 1e9), BEGIN, i, 0);
	for (int i = 0; i < sim.changes; i++)
		at((u64)(sim.change_at[i] * 1e9), CHANGE, 0, i);
	u64 shown = 0;
	while (sim.n && sim.heap[0].at < seconds * 1e9) {
		struct event e = next_event();
		sim.now = e.at;
		if (watch && sim.now - shown >= 100 * MS) {
			shown = sim.now;
			watch(sim.now / 1e9);
		}
		switch (e.kind) {
		case ARRIVE:
			arrive(e.flow, e.arg);
			break;
		case ACK:
			acknowledge(e.flow, e.arg);
			break;
		case SEND:
			sim.flow[e.flow].send_planned = false;
			try_send(e.flow);
			break;
		case TIMER:
			timer(e.flow);
			break;
		case BEGIN: {
			struct flow *f = &sim.flow[e.flow];
			// The handshake has measured the round trip.
			f->srtt_us = f->min_rtt_us = sim.path.rtt * 1e6;
			f->rttvar_us = f->srtt_us / 2;
			f->cwnd = 10;
			f->last_progress = sim.now;
			f->control->begin(f);
			at(sim.now + 10 * MS, TIMER, e.flow, 0);
			try_send(e.flow);
			break;
		}
		case CHANGE:
			sim.path = sim.change[e.arg];
		}
	}
	sim.now = seconds * 1e9;
}

static void clear(struct path p)
{
	for (int i = 0; i < MAX_FLOWS; i++) {
		struct flow *f = &sim.flow[i];
		free(f->ring), free(f->again), free(f->got), free(f->log), free(f->state);
	}
	free(sim.heap);
	memset(&sim, 0, sizeof sim);
	sim.path = p;
}

static struct flow *add(const struct control *c, double begins)
{
	struct flow *f = &sim.flow[sim.flows++];
	f->control = c;
	f->begins = begins;
	f->ring = calloc(RING, sizeof *f->ring);
	f->again = calloc(RING, sizeof *f->again);
	f->got = calloc(RING, 1);
	f->log = calloc(RING, sizeof *f->log);
	f->head = f->tail = RING;
	f->ssthresh = ~0u;
	return f;
}

// What arrived in order between two times, in bits per second.
static double goodput(const struct flow *f, double from, double to)
{
	double n = 0;
	for (int s = from; s < to && s < 1024; s++)
		n += f->share_hist[s];
	return n * MSS * 8 / (to - from);
}

// What arrived, in order or not.
static double arrived(const struct flow *f, double from, double to)
{
	double n = 0;
	for (int s = from * 10; s < to * 10 && s < 4096; s++)
		n += f->deliver_hist[s];
	return n * MSS * 8 / (to - from);
}

static double limit(const struct path *p)
{
	double l = p->rate * MSS / PACKET;
	if (p->policer > 0 && p->policer < p->rate)
		l = p->policer * MSS / PACKET;
	return p->place == AFTER ? l * (1 - p->loss) : l;
}

// The queue's delay that a share of the packets did not exceed, in ms.
static double queue_percentile(double share)
{
	u64 n = 0;
	for (int i = 0; i <= 20000; i++)
		if ((n += sim.queue_ms[i]) >= share * sim.queued)
			return i / 10.0;
	return 2000;
}

// CUBIC by RFC 9438, with the delay part of HyStart (RFC 9406).
static void cubic_begin(struct flow *f)
{
	f->low_us = ~0u;
}

static double now_seconds(void)
{
	return sim.now / 1e9;
}

static void cubic_ack(struct flow *f, u32 acked, u32 rtt_us)
{
	if (f->recovering || f->in_timeout) {
		if (f->in_timeout && f->cwnd < f->ssthresh)
			f->cwnd += acked;
		return;
	}
	if (f->cwnd < f->ssthresh) {
		f->cwnd += acked;
		if (rtt_us && rtt_us < f->low_us)
			f->low_us = rtt_us;
		if (++f->low_n >= 16) {
			u32 eta = f->min_rtt_us / 8;
			eta = eta < 4000 ? 4000 : eta > 16000 ? 16000 : eta;
			if (f->low_us > f->min_rtt_us + eta)
				f->ssthresh = f->cwnd;
			f->low_us = ~0u;
			f->low_n = 0;
		}
		f->cubic_max = f->cwnd;
		f->cubic_k = 0;
		f->cubic_at = now_seconds();
		return;
	}
	double t = now_seconds() - f->cubic_at + f->srtt_us / 1e6, away = t - f->cubic_k;
	double target = f->cubic_max + 0.4 * away * away * away;
	double reno = f->cubic_max * 0.7 + 0.53 * (now_seconds() - f->cubic_at) / (f->srtt_us / 1e6);
	if (target > 1.5 * f->cwnd)
		target = 1.5 * f->cwnd;
	if (reno > target)
		target = reno;
	static double credit[MAX_FLOWS];
	double *c = &credit[f - sim.flow];
	if (target > f->cwnd) {
		*c += (target - f->cwnd) / f->cwnd * acked;
		while (*c >= 1) {
			f->cwnd++;
			*c -= 1;
		}
	}
}

static void cubic_lost(struct flow *f)
{
	f->cubic_max = f->cwnd < f->cubic_max ? f->cwnd * 0.85 : f->cwnd;
	f->cwnd = f->cwnd * 0.7 < 2 ? 2 : f->cwnd * 0.7;
	f->ssthresh = f->cwnd;
	double drop = f->cubic_max - f->cwnd;
	f->cubic_k = cbrt((drop > 0 ? drop : 0) / 0.4);
	f->cubic_at = now_seconds();
}

static void cubic_timeout(struct flow *f)
{
	f->ssthresh = f->ssthresh == ~0u ? 10 : f->ssthresh * 0.7;
}

static const struct control cubic = {"cubic", cubic_begin, cubic_ack, cubic_lost, cubic_timeout};
