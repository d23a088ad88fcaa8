// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A simulated bottleneck and TCP senders with selective acknowledgements over
// it. It shows an algorithm's behaviour in seconds instead of minutes, the same in
// every run. It does not replace measurements in the lab, with the kernel's own
// TCP.
#pragma once

#include "check.h"

#define MSS 1448u
#define PACKET 1500u // with headers
#define MAX_FLOWS 512
#define RING (1u << 19) // packets of a flow between the oldest and the newest, at most
#define NONE (~0u)
#define SECOND 1000000000ull
#define MS 1000000ull

enum place { BEFORE, AFTER };

// The path: the latest change of each setting holds.
struct path {
	double rate; // bits per second
	double rtt;  // seconds
	double queue_bytes;
	double loss, ack_loss, jitter; // shares, seconds
	double burst;		       // mean length of a loss burst, packets at the rate; 0 or 1: none
	enum place place;
	double policer, bucket; // bits per second, 0: none; bytes, 0: 65536
	double codel;		// target in seconds, 0: drop-tail (RFC 8289)
	double pie;		// target in seconds, 0: none (RFC 8033)
	double step;		// marks each packet that waits longer, seconds; 0: none
	bool ecn;		// CoDel and PIE mark instead of dropping
	double aggregate;	// ACKs come at multiples of so many seconds
	double batch;		// packets reach the bottleneck at multiples of so many seconds
	double wander, tau;	// standard deviation of a delay that wanders, and its correlation time, seconds
	double fade, fade_tau;	// standard deviation of the rate's natural logarithm, and its correlation time, seconds
	double handover;	// seconds from one to the next, 0: none
	double gap, shift;	// at each: the link is silent, the most of the delay that then is added, seconds
	bool down;
	double window_packets; // of the receiver; 0: boundless
};

struct packet {
	u64 sent, prior_mstamp, first_tx;
	u32 prior_delivered;
	u32 number; // of its latest transmission
	u32 next, prev; // in the order of sending; NONE: none
	bool delivered, lost, again, listed, marked, app_limited;
};

struct flow;

// A congestion control, called for every acknowledgement.
struct control {
	const char *name;
	void (*begin)(struct flow *);
	void (*ack)(struct flow *, u32 acked, u32 rtt_us);
	void (*lost)(struct flow *);    // recovery begins
	void (*timeout)(struct flow *); // everything on the way is taken for lost
	void (*end)(struct flow *);	// all that the application has sent has arrived
	u32 (*rto_max_ms)(const struct flow *); // after a timeout; 0: boundless
	void (*undo)(struct flow *);	// nothing of what a recovery sent again was lost
	void (*resume)(struct flow *);	// it sends again after the application was the limit
	bool reduces;			// it has ssthresh, and PRR (RFC 6937) sets the window in recovery
};

struct sample {
	u32 delivered, us, prior_delivered;
	bool app_limited;
};

// A flow's sent and received counts at some time, for differences.
struct tally {
	double in_order, arrived, sent, delivered; // packets
};

struct flow {
	const struct control *control;
	double begins, until; // seconds; until 0: to the end
	double extra_rtt;     // beyond the path's, seconds
	double app;	      // bits per second that the application offers, 0: all it can
	bool cold;	      // it begins without what earlier flows have learnt
	double bytes;	      // that the application sends, 0: no end
	double ended;	      // seconds; when all of them have been acknowledged
	double cbr, on, off;  // without ACKs: bits per second, seconds of sending and of silence
	u64 clock_us;	      // of its host, when the simulation begins
	u32 size, mask;	      // packets in the rings
	// Sender.
	struct packet *ring;
	u32 una, next, in_flight, prior_in_flight, head, tail; // prior: before the ACK
	u32 limited_until; // the window limits the sender until this is acknowledged
	u32 *again; // queue of what is to be sent again
	u32 again_first, again_count;
	u32 delivered, lost, sent, duplicates, timeouts;
	u64 delivered_mstamp, first_tx, next_send, last_progress;
	u32 rack_rtt_us, rack_number, reorder_steps, newest; // newest: that has arrived
	u64 reorder_until;
	bool reordered;	      // a packet has arrived after a later one
	u64 rack_timer;	      // when it is due, 0: not
	u64 last_sent;
	struct { // a tail loss probe
		bool on, copy;
		u32 end, duplicates; // what it must be answered by; the copies that had come before
	} probe;
	struct { // in recovery: the window before it, what has arrived and left since
		u32 prior, delivered, out;
	} prr;
	u32 srtt_us, rttvar_us, min_rtt_us, backoff, recovery_until;
	bool recovering, in_timeout, send_planned;
	bool undoable;	  // the last recovery
	u32 again_in_vain; // of what it sent again, not yet known to be in vain
	bool window_limited; // by the receiver
	bool cwnd_limited;   // or it waits for more of the window
	u32 app_limited;     // by the application, until so many are delivered; 0: not
	u32 marked;	     // acknowledged, with congestion experienced
	struct sample sample;
	u32 cwnd;
	u64 pace; // bytes per second, 0: none
	// Receiver: what arrived, in that order; the top bit marks a duplicate.
	u8 *got;
	u32 *log;
	u32 logged, read, expected, unacked;
	double share_hist[1024]; // in-order packets by second
	double deliver_hist[4096]; // arrived packets by tenth of a second
	double arrived;
	struct tally *at_from, *at_to; // of the windows that are looked at
	void *state;
	double cubic_max, cubic_k, cubic_at, cubic_reno, cubic_credit, cubic_prior;
	u32 ssthresh, low_us, low_n, flight_before, seen_marked, reno_credit;
};

// A span of time that is measured by itself.
struct span {
	double from, to;
	u64 queued;
	u32 *queue; // histogram of the queue's delay in 0.1 ms
};


enum kind { ENTER, ARRIVE, ACK, DELAYED_ACK, SEND, REORDER, TIMER, BEGIN, CHANGE, FROM, TO };

#define QUEUE_MOST 20000 // of the histograms, 0.1 ms
#define DELAY_STEP (1 * MS) // of the delay that wanders
#define RATE_STEP (50 * MS) // of the rate that walks
#define MAX_SHIFTS 128
#define MAX_CHANGES 32

// An Ornstein-Uhlenbeck process of standard deviation 1, at times that are step apart.
struct process {
	u64 step, random; // nanoseconds, the state of its random numbers
	double *x;
	u32 n, room;
};

struct event {
	u64 at;
	u32 kind, flow, arg, order; // order: of its making, for events of one time
};

static struct sim {
	u64 now;
	struct event *heap;
	u32 n, room, made;
	struct path path;
	struct flow flow[MAX_FLOWS];
	int flows;
	u64 busy_until;
	u64 clock_us; // of the flows' host
	double tokens;
	u64 tokens_at;
	bool bad; // in a loss burst
	u64 burst_turns, burst_random; // when it changes, its random numbers
	u64 queued, queue_ms[QUEUE_MOST + 1]; // histogram of the queue's delay in 0.1 ms
	struct path change[MAX_CHANGES];
	double change_at[MAX_CHANGES];
	int changes;
	struct span span[16];
	int spans;
	// CoDel's state, RFC 8289, section 5.
	u64 first_above, drop_next;
	u32 drops, last_drops;
	bool dropping;
	// PIE's state, RFC 8033, section 4.2.
	double pie_p, pie_old;
	u64 pie_at, pie_burst; // its last update, and the end of the burst that passes
	// What the path does by itself, the same whatever is sent.
	struct process delay, log_rate;
	double handover_phase; // of a period
	double shifts[MAX_SHIFTS]; // of the delay after each handover, of the most
	u64 last_arrival;
} sim;

// Hosts have no jitter and do not wait for bursts, and flows begin when they say: for tests of
// exact times.
static bool regular_hosts;

static double uniform_of(u64 *state)
{
	return (any_of(state) >> 11) * 0x1p-53;
}

static double uniform(void)
{
	return uniform_of(&seed);
}

static bool earlier(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : (s32)(a->order - b->order) < 0;
}

static void at(u64 when, u32 kind, u32 flow, u32 arg)
{
	if (sim.n == sim.room)
		sim.heap = realloc(sim.heap, (sim.room = sim.room ? 2 * sim.room : 1024) * sizeof *sim.heap);
	u32 i = sim.n++;
	struct event e = {when, kind, flow, arg, sim.made++};
	for (; i && earlier(&e, &sim.heap[(i - 1) / 2]); i = (i - 1) / 2)
		sim.heap[i] = sim.heap[(i - 1) / 2];
	sim.heap[i] = e;
}

static struct event next_event(void)
{
	struct event first = sim.heap[0], last = sim.heap[--sim.n];
	u32 i = 0;
	for (;;) {
		u32 c = 2 * i + 1;
		if (c >= sim.n)
			break;
		if (c + 1 < sim.n && earlier(&sim.heap[c + 1], &sim.heap[c]))
			c++;
		if (!earlier(&sim.heap[c], &last))
			break;
		sim.heap[i] = sim.heap[c];
		i = c;
	}
	sim.heap[i] = last;
	return first;
}

static bool unlucky(double p)
{
	if (sim.path.burst <= 1 || !(p > 0))
		return uniform() < p;
	// Gilbert, in time: every packet of a burst is lost, whoever sends it. A packet that is
	// sent again much later meets another.
	double mean = sim.path.burst * PACKET * 8e9 / sim.path.rate;
	while (sim.burst_turns <= sim.now) {
		sim.bad = !sim.bad && sim.burst_turns;
		sim.burst_turns += 1 - log(1 - uniform_of(&sim.burst_random)) * mean * (sim.bad ? 1 : (1 - p) / p);
	}
	return sim.bad;
}

static double normal_of(u64 *state)
{
	double radius = sqrt(-2 * log(uniform_of(state) + 1e-300));
	return radius * cos(2 * M_PI * uniform_of(state));
}

// A process' value at a time: that of its latest step.
static double process_at(struct process *p, u64 when, double tau)
{
	u32 i = when / p->step;
	while (p->n < i + 1) {
		if (p->n == p->room)
			p->x = realloc(p->x, (p->room = p->room ? 2 * p->room : 1024) * sizeof *p->x);
		double x = normal_of(&p->random), kept = exp(-(p->step / 1e9) / (tau > 0 ? tau : 0.5));
		p->x[p->n] = p->n ? p->x[p->n - 1] * kept + sqrt(1 - kept * kept) * x : x;
		p->n++;
	}
	return p->x[i];
}

// The number of handovers until a time, and the nanoseconds since the latest.
static u32 handovers(const struct path *p, u64 when, u64 *since)
{
	double periods = when / 1e9 / p->handover + sim.handover_phase;
	*since = (periods - floor(periods)) * p->handover * 1e9;
	return periods;
}

// The link's rate at a time, bits per second. Within two standard deviations.
static double rate_at(const struct path *p, u64 when)
{
	if (!(p->fade > 0))
		return p->rate;
	double x = process_at(&sim.log_rate, when, p->fade_tau);
	return p->rate * exp(p->fade * (x > 2 ? 2 : x < -2 ? -2 : x));
}

// When the link can begin to send again, from a time on.
static u64 not_silent(const struct path *p, u64 when)
{
	u64 since, gap = p->gap * 1e9;
	if (!(p->handover > 0) || !gap || (handovers(p, when, &since) == 0) || since >= gap)
		return when;
	return when + gap - since;
}

// The bits that the link can send between two times.
static double served(const struct path *p, u64 from, u64 to)
{
	if (!(p->fade > 0) && !(p->handover > 0))
		return (to - from) / 1e9 * p->rate;
	double bits = 0;
	for (u64 t = from; t < to;) {
		u64 end = (t / RATE_STEP + 1) * RATE_STEP, begins = not_silent(p, t), since;
		end = end < to ? end : to;
		if (p->handover > 0) { // a step ends where a gap begins
			handovers(p, t, &since);
			u64 next = t + (u64)(p->handover * 1e9) - since;
			end = next < end && next > t ? next : end;
		}
		if (begins < end)
			bits += (end - begins) / 1e9 * rate_at(p, t);
		t = end;
	}
	return bits;
}

// CoDel's law: each drop shortens the time to the next.
static u64 codel_next(u64 t)
{
	return t + (u64)(100 * MS / sqrt(sim.drops));
}

// Whether CoDel drops (or marks) a packet that leaves the queue at some time.
static bool codel_drops(u64 leaves, u64 waited, double target)
{
	// A single packet is no standing queue, for any time that it takes.
	bool above = waited >= target * 1e9 && waited > PACKET * 8e9 / sim.path.rate;
	if (!above) {
		sim.first_above = 0;
		sim.dropping = false;
		return false;
	}
	if (!sim.first_above) {
		sim.first_above = leaves + 100 * MS;
		return false;
	}
	if (sim.dropping) {
		if (leaves < sim.drop_next)
			return false;
		sim.drops++;
		sim.drop_next = codel_next(sim.drop_next);
		return true;
	}
	if (leaves < sim.first_above)
		return false;
	sim.dropping = true;
	u32 more = sim.drops - sim.last_drops;
	sim.drops = more > 1 && leaves - sim.drop_next < 1600 * MS ? more : 1;
	sim.last_drops = sim.drops;
	sim.drop_next = codel_next(leaves);
	return true;
}

// Whether PIE drops (or marks) a packet that enters the queue.
static bool pie_drops(u64 waited, double target)
{
	const u64 update = 15 * MS, burst = 150 * MS;
	double delay = waited / 1e9;
	for (; sim.now >= sim.pie_at + update; sim.pie_at = sim.pie_at + 100 * update < sim.now ? sim.now : sim.pie_at + update) {
		double change = 0.125 * (delay - target) + 1.25 * (delay - sim.pie_old), below = 0.000001;
		for (double by = 2048; below <= 0.1001; below *= 10, by = by > 512 ? 512 : by / 4)
			if (sim.pie_p < below) {
				change /= by;
				break;
			}
		sim.pie_p += change;
		if (delay == 0 && sim.pie_old == 0)
			sim.pie_p *= 0.98;
		sim.pie_p = sim.pie_p < 0 ? 0 : sim.pie_p > 1 ? 1 : sim.pie_p;
		if (sim.pie_p == 0 && delay < target / 2 && sim.pie_old < target / 2)
			sim.pie_burst = sim.now + burst;
		sim.pie_old = delay;
	}
	if (sim.now < sim.pie_burst || (sim.pie_old < target / 2 && sim.pie_p < 0.2))
		return false;
	return uniform() < sim.pie_p;
}

static void count_queue(u64 waited)
{
	u64 n = waited / 100000;
	n = n > QUEUE_MOST ? QUEUE_MOST : n;
	sim.queue_ms[n]++;
	sim.queued++;
	for (int i = 0; i < sim.spans; i++)
		if (sim.now >= sim.span[i].from * 1e9 && sim.now < sim.span[i].to * 1e9) {
			sim.span[i].queue[n]++;
			sim.span[i].queued++;
		}
}

// The delay that the path adds at a time, seconds. Packets keep their order.
static double added_delay(const struct path *p, u64 when)
{
	double delay = 0;
	if (p->wander > 0) {
		delay = p->wander * (1 + process_at(&sim.delay, when, p->tau));
		delay = delay > 0 ? delay : 0;
	}
	if (p->handover > 0) {
		u64 since;
		delay += p->shift * sim.shifts[handovers(p, when, &since) % MAX_SHIFTS];
	}
	return delay;
}

// The time that a host takes for an event: random, up to that of a packet on the link. So no
// flow has its packets dropped because of its phase (Floyd and Jacobson, "On traffic phase
// effects in packet-switched gateways", 1992, section 3).
static u64 host_time(void)
{
	return regular_hosts ? 0 : (u64)(uniform() * PACKET * 8e9 / sim.path.rate);
}

// Puts a packet on the path.
static void into_path(u32 flow, u32 seq)
{
	struct path *p = &sim.path;
	struct flow *f = &sim.flow[flow];
	if (p->down)
		return;
	if (p->policer > 0) {
		sim.tokens += (sim.now - sim.tokens_at) / 1e9 * p->policer / 8;
		sim.tokens_at = sim.now;
		double most = p->bucket > 0 ? p->bucket : 65536;
		if (sim.tokens > most)
			sim.tokens = most;
		if (sim.tokens < PACKET)
			return;
		sim.tokens -= PACKET;
	}
	if (p->place == BEFORE && unlucky(p->loss))
		return;
	u64 start = sim.busy_until > sim.now ? sim.busy_until : sim.now;
	if (served(p, sim.now, start) / 8 > p->queue_bytes)
		return;
	start = not_silent(p, start);
	count_queue(start - sim.now);
	bool marked = false;
	if (p->codel > 0 && codel_drops(start, start - sim.now, p->codel)) {
		if (!p->ecn || f->cbr > 0)
			return;
		marked = true;
	}
	if (p->pie > 0 && pie_drops(start - sim.now, p->pie)) {
		if (!p->ecn || f->cbr > 0 || sim.pie_p > 0.1) // RFC 8033, section 5.1
			return;
		marked = true;
	}
	sim.busy_until = start + (u64)(PACKET * 8e9 / rate_at(p, start));
	if (p->place == AFTER && unlucky(p->loss))
		return;
	if (f->cbr > 0) {
		f->delivered++;
		f->arrived++;
		f->expected++;
		return;
	}
	if (p->step > 0 && start - sim.now > p->step * 1e9)
		marked = true;
	if (marked)
		f->ring[seq & f->mask].marked = true;
	double delay = (p->rtt + f->extra_rtt) / 2 + p->jitter * (2 * uniform() - 1) + added_delay(p, sim.busy_until);
	u64 when = sim.busy_until + (u64)((delay > 0 ? delay : 0) * 1e9);
	if ((p->wander > 0 || p->handover > 0) && when < sim.last_arrival)
		when = sim.last_arrival;
	sim.last_arrival = when;
	at(when, ARRIVE, flow, seq);
}

static struct packet *packet(struct flow *f, u32 seq)
{
	return &f->ring[seq & f->mask];
}

static void unlist(struct flow *f, u32 seq)
{
	struct packet *p = packet(f, seq);
	if (!p->listed)
		return;
	if (p->prev != NONE)
		f->ring[p->prev].next = p->next;
	else
		f->head = p->next;
	if (p->next != NONE)
		f->ring[p->next].prev = p->prev;
	else
		f->tail = p->prev;
	p->listed = false;
}

static void transmit(u32 flow, u32 seq, bool again)
{
	struct flow *f = &sim.flow[flow];
	struct packet *p = packet(f, seq);
	if (!f->in_flight) {
		f->first_tx = f->delivered_mstamp = sim.now;
		if (f->app_limited && f->control->resume)
			f->control->resume(f);
	}
	if (!again)
		*p = (struct packet){0};
	p->again |= again;
	f->again_in_vain += again;
	p->lost = false;
	p->sent = sim.now;
	p->prior_mstamp = f->delivered_mstamp;
	p->first_tx = f->first_tx;
	p->prior_delivered = f->delivered;
	p->app_limited = f->app_limited;
	p->next = NONE;
	p->prev = f->tail;
	if (f->tail != NONE)
		f->ring[f->tail].next = seq & f->mask;
	else
		f->head = seq & f->mask;
	f->tail = seq & f->mask;
	p->listed = true;
	f->in_flight++;
	p->number = ++f->sent;
	f->prr.out++;
	f->last_sent = sim.now;
	u64 step = sim.path.batch * 1e9;
	if (step)
		at((sim.now / step + 1) * step, ENTER, flow, seq);
	else
		into_path(flow, seq);
}

// The number of packets that the application has given the sender so far.
static u32 offered(const struct flow *f)
{
	double end = f->until > 0 && sim.now > f->until * 1e9 ? f->until : sim.now / 1e9;
	if (f->bytes > 0)
		return ceil(f->bytes / MSS);
	if (f->app > 0)
		return (end - f->begins) * f->app / 8 / MSS + 2;
	return f->until > 0 && sim.now > f->until * 1e9 ? f->next : NONE;
}

static void plan_send(u32 flow, u64 when)
{
	if (!sim.flow[flow].send_planned)
		at(when, SEND, flow, 0);
	sim.flow[flow].send_planned = true;
}

// A constant rate, at any loss.
static void send_constant(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	double since = sim.now / 1e9 - f->begins, cycle = f->on + f->off;
	if (f->until > 0 && sim.now >= f->until * 1e9)
		return;
	if (cycle > 0 && fmod(since, cycle) >= f->on) {
		plan_send(flow, sim.now + (u64)((cycle - fmod(since, cycle)) * 1e9) + 1);
		return;
	}
	f->sent++;
	into_path(flow, 0);
	plan_send(flow, sim.now + (u64)(PACKET * 8e9 / f->cbr));
}

// The packets that leave a host together: up to 64 kB, and of its pace 1 ms. Without a pace
// that is the kernel's estimate, 1.2 windows in a round trip.
static u32 host_burst(const struct flow *f)
{
	double pace = f->pace ? f->pace : 1.2e6 * f->cwnd * MSS / (f->srtt_us ? f->srtt_us : 1);
	u32 packets = pace / 1024 / MSS;
	return packets < 2 ? 2 : packets > 44 ? 44 : packets;
}

// Whether a host without pace waits until the window lets more packets leave together: at
// most for a third of it.
static bool waits_for_burst(const struct flow *f, u32 left)
{
	if (f->pace || regular_hosts || !f->in_flight || f->again_count)
		return false;
	u32 burst = host_burst(f), open = f->cwnd - f->in_flight;
	return open < burst && open < f->cwnd / 3 && left >= burst;
}

// The most packets between the oldest and the newest that are not acknowledged.
static u32 send_room(const struct flow *f)
{
	u32 room = f->size - 1;
	return sim.path.window_packets > 0 && sim.path.window_packets < room ? sim.path.window_packets : room;
}

static void try_send(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	u32 room = send_room(f), most = offered(f);
	f->window_limited = false;
	f->cwnd_limited = waits_for_burst(f, most - f->next);
	if (f->cwnd_limited)
		return;
	while (f->in_flight < f->cwnd) {
		if (f->pace && f->next_send > sim.now + 1000) {
			plan_send(flow, f->next_send + host_time());
			return;
		}
		u32 burst = host_burst(f), n = 0;
		while (n < burst && f->in_flight < f->cwnd) {
			bool sent = false;
			while (f->again_count && !sent) {
				u32 seq = f->again[f->again_first];
				f->again_first = (f->again_first + 1) & f->mask;
				f->again_count--;
				struct packet *p = packet(f, seq);
				if ((s32)(seq - f->una) < 0 || p->delivered || !p->lost)
					continue;
				transmit(flow, seq, true);
				sent = true;
			}
			if (!sent && f->next - f->una < room && f->next < most) {
				transmit(flow, f->next++, false);
				sent = true;
			}
			if (!sent) {
				f->window_limited = f->next - f->una >= room;
				if (!f->window_limited) {
					u32 until = f->delivered + f->in_flight;
					f->app_limited = until ? until : 1;
					if (f->app > 0 && !(f->until > 0 && sim.now > f->until * 1e9))
						plan_send(flow, sim.now + (u64)(2 * MSS * 8e9 / f->app));
				}
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
	f->cwnd_limited = true;
	f->limited_until = f->next;
}

static void mark_lost(struct flow *f, u32 seq)
{
	struct packet *p = packet(f, seq);
	p->lost = true;
	unlist(f, seq);
	f->in_flight--;
	f->lost++;
	f->again[(f->again_first + f->again_count++) & f->mask] = seq;
}

// The receiver acknowledges all packets that have arrived.
static void answer(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	f->unacked = 0;
	if (sim.path.down || uniform() < sim.path.ack_loss)
		return;
	double delay = (sim.path.rtt + f->extra_rtt) / 2 + sim.path.jitter * (2 * uniform() - 1);
	u64 when = sim.now + (u64)((delay > 0 ? delay : 0) * 1e9) + host_time(), step = sim.path.aggregate * 1e9;
	if (step)
		when = (when + step - 1) / step * step;
	at(when, ACK, flow, f->logged);
}

static void arrive(u32 flow, u32 seq)
{
	struct flow *f = &sim.flow[flow];
	bool duplicate = (s32)(seq - f->expected) < 0 || f->got[seq & f->mask];
	f->log[f->logged++ & f->mask] = seq;
	if (!duplicate) {
		f->arrived++;
		u32 tenth = sim.now / (100 * MS);
		if (tenth < 4096)
			f->deliver_hist[tenth]++;
		f->got[seq & f->mask] = 1;
		while (f->got[f->expected & f->mask]) {
			f->got[f->expected & f->mask] = 0;
			f->expected++;
			u32 second = sim.now / SECOND;
			if (second < 1024)
				f->share_hist[second]++;
		}
	}
	// The receiver acknowledges every second packet at once, and those out of order.
	bool hole = seq + 1 != f->expected;
	if (++f->unacked >= 2 || hole)
		answer(flow);
	else
		at(sim.now + 40 * MS, DELAYED_ACK, flow, f->logged);
}

static u64 rto(struct flow *f)
{
	u64 us = f->srtt_us ? f->srtt_us + (4 * f->rttvar_us > 200000 ? 4 * f->rttvar_us : 200000) : 1000000;
	us <<= f->backoff;
	if (f->backoff && f->control->rto_max_ms && us > f->control->rto_max_ms(f) * 1000ull)
		us = f->control->rto_max_ms(f) * 1000ull;
	return us * 1000;
}

static void begin_prr(struct flow *f)
{
	f->prr.prior = f->cwnd;
	f->prr.delivered = f->prr.out = 0;
}

static void begin_recovery(struct flow *f)
{
	f->undoable = true;
	f->again_in_vain = 0;
	begin_prr(f);
}

// The window of an acknowledgement in recovery (RFC 6937): in proportion to what arrives, and
// below ssthresh by slow start unless more is lost.
static void reduce(struct flow *f, u32 acked, bool advanced, bool lost)
{
	s32 below = (s32)f->ssthresh - (s32)f->in_flight, send;
	f->prr.delivered += acked;
	if (below < 0) {
		send = (s32)(((u64)f->prr.delivered * f->ssthresh + f->prr.prior - 1) / f->prr.prior) - (s32)f->prr.out;
	} else {
		send = (s32)f->prr.delivered - (s32)f->prr.out;
		send = send > (s32)acked ? send : (s32)acked;
		send += advanced && !lost;
		send = send < below ? send : below;
	}
	s32 least = f->prr.out ? 0 : 1; // the first packet that was lost
	f->cwnd = f->in_flight + (send > least ? send : least);
}

// How long a packet may be behind a later one before it counts as lost (RFC 8985, section
// 6.2, step 4).
static u32 reorder_us(const struct flow *f)
{
	if (!f->reordered && (f->recovering || f->in_timeout || f->delivered - f->una >= 3))
		return 0;
	u32 us = (1 + f->reorder_steps) * (f->min_rtt_us / 4);
	return us < f->srtt_us ? us : f->srtt_us;
}

// A packet sent before one that has arrived is lost when it is late (RACK, RFC 8985). A timer
// looks again if none is late yet. Packets of one burst count in the order of sending: copies
// leave in the order in which they were found lost, not in that of their numbers.
static bool find_lost(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	u64 limit = (u64)f->rack_rtt_us + reorder_us(f);
	bool lost = false;
	f->rack_timer = 0;
	while (f->head != NONE) {
		struct packet *p = &f->ring[f->head];
		u32 seq = f->una + ((f->head - f->una) & f->mask);
		if ((s32)(p->number - f->rack_number) >= 0)
			break;
		if ((sim.now - p->sent) / 1000 < limit) {
			f->rack_timer = p->sent + limit * 1000 + 1000;
			at(f->rack_timer, REORDER, flow, 0);
			break;
		}
		mark_lost(f, seq);
		lost = true;
	}
	return lost;
}

static void enter_recovery(struct flow *f)
{
	if (f->recovering || f->in_timeout)
		return;
	f->recovering = true;
	f->recovery_until = f->next;
	begin_recovery(f);
	if (f->control->lost)
		f->control->lost(f);
}

static void reorder_timer(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	if (f->rack_timer != sim.now || !find_lost(flow))
		return;
	enter_recovery(f);
	if (f->control->reduces && f->recovering)
		reduce(f, 0, false, true);
	try_send(flow);
}

// Whether a tail loss probe was answered (RFC 8985, section 7.4): it has repaired a loss if it
// was a copy, later data has arrived, and no copy has arrived twice.
static void probe_acked(struct flow *f)
{
	if (!f->probe.on || (f->duplicates == f->probe.duplicates && (s32)(f->una - f->probe.end) < 0))
		return;
	bool repaired = f->probe.copy && f->duplicates == f->probe.duplicates;
	if (repaired && (s32)(f->una - f->probe.end) == 0)
		return; // not yet later data
	f->probe.on = false;
	if (repaired && f->control->reduces && !f->recovering && !f->in_timeout) {
		f->control->lost(f);
		f->cwnd = f->ssthresh;
	}
}

static void acknowledge(u32 flow, u32 upto)
{
	struct flow *f = &sim.flow[flow];
	u32 acked = 0, rtt_us = 0;
	f->sample = (struct sample){0};
	f->prior_in_flight = f->in_flight;
	u64 prior_mstamp = 0;
	bool some = false, undo = false;
	u32 una = f->una;
	u64 snd_ns = 0;
	for (; (s32)(upto - f->read) > 0; f->read++) {
		u32 seq = f->log[f->read & f->mask];
		struct packet *p = packet(f, seq);
		if ((s32)(seq - f->una) < 0 || p->delivered) {
			f->duplicates++;
			if (f->undoable && f->again_in_vain && --f->again_in_vain == 0)
				undo = true;
			// One more duplicate: packets overtake each other by more (RFC 8985).
			if (f->reorder_steps < 20 && sim.now > f->reorder_until) {
				f->reorder_steps++;
				f->reorder_until = sim.now + f->srtt_us * 1000ull;
			}
			continue;
		}
		p->delivered = true;
		if ((s32)(seq - f->newest) > 0)
			f->newest = seq;
		else if (!p->again && seq != f->newest)
			f->reordered = true;
		if (!p->lost) {
			unlist(f, seq);
			f->in_flight--;
		}
		acked++;
		f->marked += p->marked;
		p->marked = false;
		f->delivered++;
		if (f->app_limited && f->delivered > f->app_limited)
			f->app_limited = 0;
		f->delivered_mstamp = sim.now;
		if (!some || (s32)(p->prior_delivered - f->sample.prior_delivered) > 0) {
			some = true;
			f->sample.prior_delivered = p->prior_delivered;
			f->sample.app_limited = p->app_limited;
			prior_mstamp = p->prior_mstamp;
			snd_ns = p->sent - p->first_tx;
			f->first_tx = p->sent;
		}
		if (!p->again)
			rtt_us = (sim.now - p->sent) / 1000;
		// A packet acknowledged too soon after it was sent again had arrived before.
		bool doubtful = p->again && (sim.now - p->sent) / 1000 < f->min_rtt_us;
		if ((s32)(p->number - f->rack_number) > 0 && !p->lost && !doubtful) {
			f->rack_number = p->number;
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
	bool lost = find_lost(flow);
	if (f->in_timeout && (s32)(f->una - f->recovery_until) >= 0)
		f->in_timeout = false;
	if (f->recovering && (s32)(f->una - f->recovery_until) >= 0) {
		f->recovering = false;
		if (f->control->reduces)
			f->cwnd = f->ssthresh;
	}
	if (lost && !f->recovering && !f->in_timeout) {
		enter_recovery(f);
	} else if (undo && !lost && f->control->undo) {
		f->undoable = f->recovering = f->in_timeout = false;
		f->control->undo(f);
	}
	probe_acked(f);
	f->control->ack(f, acked, rtt_us);
	if (f->control->reduces && f->recovering)
		reduce(f, acked, f->una != una, lost);
	try_send(flow);
	bool all = f->bytes > 0 ? f->next >= offered(f) : f->until > 0 && sim.now > f->until * 1e9;
	if (all && f->una == f->next && !f->ended) {
		f->ended = sim.now / 1e9;
		if (f->control->end)
			f->control->end(f);
	}
}

// Sends a tail loss probe (RFC 8985, section 7.3): new data, or a copy of the last packet.
static void probe_tail(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	if (!f->in_flight || f->probe.on || f->recovering || f->in_timeout || f->delivered != f->una || !f->srtt_us)
		return;
	u64 since = f->last_sent > f->last_progress ? f->last_sent : f->last_progress;
	u64 us = 2 * f->srtt_us + (f->in_flight == 1 ? 200000 : 0);
	if (sim.now - since < us * 1000)
		return;
	f->probe.on = true;
	f->probe.duplicates = f->duplicates;
	f->probe.copy = f->next - f->una >= send_room(f) || f->next >= offered(f);
	if (f->probe.copy) {
		unlist(f, f->next - 1);
		f->in_flight--;
		transmit(flow, f->next - 1, true);
		f->again_in_vain--;
	} else
		transmit(flow, f->next++, false);
	f->probe.end = f->next;
	f->last_progress = sim.now; // the retransmission timer begins anew
}

static void timer(u32 flow)
{
	struct flow *f = &sim.flow[flow];
	probe_tail(flow);
	if ((f->in_flight || f->una != f->next) && sim.now - f->last_progress >= rto(f)) {
		if (!f->backoff)
			f->flight_before = f->cwnd;
		while (f->head != NONE)
			mark_lost(f, f->una + ((f->head - f->una) & f->mask));
		f->timeouts++;
		f->in_timeout = true;
		f->recovering = f->probe.on = false;
		f->recovery_until = f->next;
		f->last_progress = sim.now;
		f->backoff++;
		f->cwnd = 1;
		f->next_send = 0;
		begin_recovery(f);
		if (f->control->timeout)
			f->control->timeout(f);
		try_send(flow);
	}
	at(sim.now + 10 * MS, TIMER, flow, 0);
}

static void take(bool from, u32 span)
{
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		struct tally *t = from ? &f->at_from[span] : &f->at_to[span];
		*t = (struct tally){f->expected, f->arrived, f->sent, f->delivered};
	}
}

// The most packets on the way at once: the receiver's window bounds them.
static void make_rings(struct flow *f)
{
	u32 most = sim.path.window_packets > 0 && sim.path.window_packets < RING - 64 ? sim.path.window_packets + 64 : RING;
	for (f->size = 1024; f->size < most; f->size *= 2)
		;
	f->mask = f->size - 1;
	f->ring = calloc(f->size, sizeof *f->ring);
	f->again = calloc(f->size, sizeof *f->again);
	f->got = calloc(f->size, 1);
	f->log = calloc(f->size, sizeof *f->log);
}

static void (*watch)(double now);

static void run(double seconds)
{
	sim.delay = (struct process){.step = DELAY_STEP, .random = any()};
	sim.log_rate = (struct process){.step = RATE_STEP, .random = any()};
	sim.burst_random = any();
	sim.handover_phase = uniform();
	for (int i = 0; i < MAX_SHIFTS; i++)
		sim.shifts[i] = uniform();
	sim.clock_us = uniform() * 7200e6;
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		if (!(f->cbr > 0))
			make_rings(f);
		if (!f->clock_us) // all flows are of one host, if they do not say otherwise
			f->clock_us = sim.clock_us;
		f->at_from = calloc(16, sizeof *f->at_from);
		f->at_to = calloc(16, sizeof *f->at_to);
	}
	// Flows after the first begin up to a round trip later.
	for (int i = 0; i < sim.flows; i++)
		at((u64)((sim.flow[i].begins + (i && !regular_hosts ? uniform() * sim.path.rtt : 0)) * 1e9), BEGIN, i, 0);
	for (int i = 0; i < sim.changes; i++)
		at((u64)(sim.change_at[i] * 1e9), CHANGE, 0, i);
	for (int i = 0; i < sim.spans; i++) {
		sim.span[i].queue = calloc(QUEUE_MOST + 1, sizeof(u32));
		at((u64)(sim.span[i].from * 1e9), FROM, 0, i);
		at((u64)(sim.span[i].to * 1e9) - 1, TO, 0, i);
	}
	u64 shown = 0;
	while (sim.n && sim.heap[0].at < seconds * 1e9) {
		struct event e = next_event();
		sim.now = e.at;
		if (watch && sim.now - shown >= 100 * MS) {
			shown = sim.now;
			watch(sim.now / 1e9);
		}
		switch (e.kind) {
		case ENTER:
			into_path(e.flow, e.arg);
			break;
		case ARRIVE:
			arrive(e.flow, e.arg);
			break;
		case DELAYED_ACK:
			if (sim.flow[e.flow].unacked && sim.flow[e.flow].logged == e.arg)
				answer(e.flow);
			break;
		case ACK:
			acknowledge(e.flow, e.arg);
			break;
		case SEND:
			sim.flow[e.flow].send_planned = false;
			if (sim.flow[e.flow].cbr > 0)
				send_constant(e.flow);
			else
				try_send(e.flow);
			break;
		case REORDER:
			reorder_timer(e.flow);
			break;
		case TIMER:
			timer(e.flow);
			break;
		case BEGIN: {
			struct flow *f = &sim.flow[e.flow];
			if (f->cbr > 0) {
				send_constant(e.flow);
				break;
			}
			// The handshake has measured the round trip.
			f->srtt_us = f->min_rtt_us = (sim.path.rtt + f->extra_rtt + added_delay(&sim.path, sim.now)) * 1e6;
			f->rttvar_us = f->srtt_us / 2;
			f->cwnd = 10;
			f->last_progress = sim.now;
			f->control->begin(f);
			at(sim.now + 10 * MS, TIMER, e.flow, 0);
			try_send(e.flow);
			break;
		}
		case FROM:
		case TO:
			take(e.kind == FROM, e.arg);
			break;
		case CHANGE:
			sim.path = sim.change[e.arg];
		}
	}
	sim.now = seconds * 1e9;
}

static void clear(struct path p)
{
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		free(f->ring), free(f->again), free(f->got), free(f->log), free(f->state), free(f->at_from), free(f->at_to);
	}
	for (int i = 0; i < sim.spans; i++)
		free(sim.span[i].queue);
	free(sim.heap), free(sim.delay.x), free(sim.log_rate.x);
	memset(&sim, 0, sizeof sim);
	sim.path = p;
}

static struct flow *add(const struct control *c, double begins)
{
	struct flow *f = &sim.flow[sim.flows++];
	f->control = c;
	f->begins = begins;
	f->head = f->tail = NONE;
	f->ssthresh = ~0u;
	return f;
}

// The rate of arrivals in order between two times, in bits per second.
static double goodput(const struct flow *f, double from, double to)
{
	double n = 0;
	for (int s = from; s < to && s < 1024; s++)
		n += f->share_hist[s];
	return n * MSS * 8 / (to - from);
}

// The rate of all arrivals, in order or not.
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
	for (int i = 0; i <= QUEUE_MOST; i++)
		if ((n += sim.queue_ms[i]) >= share * sim.queued)
			return i / 10.0;
	return QUEUE_MOST / 10.0;
}

static double span_percentile(const struct span *w, double share)
{
	u64 n = 0;
	for (int i = 0; i <= QUEUE_MOST; i++)
		if ((n += w->queue[i]) >= share * w->queued)
			return i / 10.0;
	return QUEUE_MOST / 10.0;
}

// Whether an acknowledgement brings a mark that counts as a loss: once in a window (RFC 3168).
static bool marked_anew(struct flow *f)
{
	bool anew = f->marked != f->seen_marked && !f->recovering && !f->in_timeout;
	f->seen_marked = f->marked;
	if (anew) {
		f->recovering = true;
		f->recovery_until = f->next;
		begin_prr(f);
	}
	return anew;
}

// CUBIC by RFC 9438, with the delay part of HyStart (RFC 9406).
static void cubic_begin(struct flow *f)
{
	f->low_us = ~0u;
	f->cubic_at = -1;
}

static double now_seconds(void)
{
	return sim.now / 1e9;
}

// A new epoch of congestion avoidance, from the present window.
static void cubic_epoch(struct flow *f)
{
	if (f->cubic_max < f->cwnd)
		f->cubic_max = f->cwnd;
	f->cubic_k = cbrt((f->cubic_max - f->cwnd) / 0.4);
	f->cubic_at = now_seconds();
	f->cubic_reno = f->cwnd;
	f->cubic_credit = 0;
}

static void cubic_cut(struct flow *f)
{
	f->cubic_prior = f->cwnd;
	f->cubic_max = f->cwnd < f->cubic_max ? f->cwnd * 0.85 : f->cwnd;
	f->ssthresh = f->cwnd * 0.7 < 2 ? 2 : f->cwnd * 0.7;
	f->cubic_at = -1;
}

static void cubic_ack(struct flow *f, u32 acked, u32 rtt_us)
{
	if (marked_anew(f))
		cubic_cut(f);
	if (f->recovering || !f->cwnd_limited) { // RFC 9438, 5.8: grows by use only
		if (!f->cwnd_limited && f->cubic_at >= 0 && f->app_limited)
			f->cubic_at = -1;
		return;
	}
	if (f->cwnd < f->ssthresh) {
		f->cwnd += acked;
		if (rtt_us && rtt_us < f->low_us)
			f->low_us = rtt_us;
		if (++f->low_n >= 16 && f->ssthresh == ~0u) {
			u32 eta = f->min_rtt_us / 8;
			eta = eta < 4000 ? 4000 : eta > 16000 ? 16000 : eta;
			if (f->low_us > f->min_rtt_us + eta)
				f->ssthresh = f->cwnd;
			f->low_us = ~0u;
			f->low_n = 0;
		}
		return;
	}
	if (f->cubic_at < 0)
		cubic_epoch(f);
	double t = now_seconds() - f->cubic_at + f->srtt_us / 1e6, away = t - f->cubic_k;
	double target = f->cubic_max + 0.4 * away * away * away;
	// Section 4.3: Reno's window, with as much for each window as its larger decrease allows.
	f->cubic_reno += (f->cubic_reno < f->cubic_prior ? 3 * (1 - 0.7) / (1 + 0.7) : 1) * acked / f->cwnd;
	if (target > 1.5 * f->cwnd)
		target = 1.5 * f->cwnd;
	if (f->cubic_reno > target)
		target = f->cubic_reno;
	if (target > f->cwnd) {
		f->cubic_credit += (target - f->cwnd) / f->cwnd * acked;
		while (f->cubic_credit >= 1) {
			f->cwnd++;
			f->cubic_credit -= 1;
		}
	}
}

// A timeout has already reset the window: reduces from the data that was on the way.
static void cubic_timeout(struct flow *f)
{
	f->ssthresh = f->flight_before * 0.7 < 2 ? 2 : f->flight_before * 0.7;
	f->cubic_max = 0;
	f->cubic_at = -1;
}

static const struct control cubic = {
	.name = "cubic",
	.begin = cubic_begin,
	.ack = cubic_ack,
	.lost = cubic_cut,
	.timeout = cubic_timeout,
	.reduces = true,
};

// Uncontrolled cross traffic.
static const struct control constant = {.name = "cbr"};
