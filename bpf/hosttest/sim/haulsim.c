//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// haulsim runs haul, or another control, over a simulated path, for work on it and for the
// search in bench/haulsearch:
//
//	gcc -O2 -o /tmp/haulsim bpf/hosttest/sim/haulsim.c -lm
//	/tmp/haulsim rate=100 rtt=300 loss=0.1 time=60 v=1 haul
//	/tmp/haulsim rate=100 rtt=63 queue=0.5 haul cubic@10:until=40 cbr:rate=20,on=2,off=3 over=30:60
//	/tmp/haulsim rate=100 rtt=100 haul at=20 rate=10 until=35 at=50 rtt=130
//
// Keys of the path: rate= Mb/s, rtt= ms, queue= BDP (of the rate and round trip
// at the start, or of the change that names it), loss=, ackloss= shares, burst=
// packets at that rate, place=before|after (of the bottleneck), jitter= ms, codel= ms of its
// target, pie= the same, step= ms above which each packet is marked, ecn=1,
// policer= Mb/s, bucket= kB, aggregate= ms of ACKs, batch= ms of packets before the
// bottleneck, wander= and tau= ms of a delay that wanders, fade= (standard deviation of
// the rate's natural logarithm) and fadetau= ms of a rate that walks, handover= s from one
// to the next with gap= ms of silence and up to shift= ms of delay after it, down=1. at=T
// begins a change, until=T ends it. Of the run: time= s, window= of the receiver in BDP,
// seed=, phase=0 for hosts without jitter and bursts and flows that begin together,
// over=FROM:TO, json=1, v=1 to 5. off=NAME,NAME switches rules of haul off, and "haulsim
// rules" lists them.
//
// A flow is haul, bbr, bbr3, cubic, reno or cbr, then @ and its begin, then a colon and
// until= s, rtt= ms, app= Mb/s of its application, bytes= that it sends, clock= s of
// its host, cold=1 to begin without what earlier flows have learnt, and for cbr rate=
// Mb/s, on= and off= s.
#include "../bbr3path.h"
#include "../bbrpath.h"
#include "../haulpath.h"
#include "../renopath.h"

static int verbose, in_mode[MAX_FLOWS][7];

static const struct haul *haul_of(const struct flow *f)
{
	return f->control == &haul_control ? f->state : 0;
}

// inflight_longterm and inflight_shortterm are -1 while they bound nothing.
static void show_bbr3(const struct flow *f)
{
	static const char *states[] = {"start", "drain", "down", "cruise", "refill", "up", "rtt"};
	const struct bbr3 *h = f->state;
	printf(" | %s pace %.2f bw %.2f max %.2f min %.1f fl %u w %u long %d short %d extra %u", states[h->state], h->pace * 8e-6,
	       bbr3_bytes(h->bw, MSS) * 8e-6, bbr3_bytes(bbr3_max_bw(h), MSS) * 8e-6, h->min_rtt_us / 1e3, f->in_flight, f->cwnd,
	       (int)h->inflight_longterm, (int)h->inflight_shortterm, h->extra_acked);
}

static void show_bbr(const struct flow *f)
{
	static const char *states[] = {"start", "drain", "bw", "rtt"};
	const struct bbr *h = f->state;
	printf(" | %s%u pace %.2f max %.2f min %.1f fl %u w %u policed %.2f%s", states[h->state], h->phase, f->pace * 8e-6,
	       bbr_max_bw(h) * MSS * 8e-6, h->min_rtt * 1e3, f->in_flight, f->cwnd, h->policer.rate * MSS * 8e-6,
	       h->policer.uses ? " in use" : "");
}

static void show_flow(const struct flow *f)
{
	static const char *modes[] = {"start", "drain", "restore", "cruise", "probe", "compete", "raise"};
	const struct haul *h = haul_of(f);
	if (f->control == &bbr3_control && f->state) {
		show_bbr3(f);
		return;
	}
	if (f->control == &bbr_control && f->state) {
		show_bbr(f);
		return;
	}
	if (!h) {
		printf(" | %s w %u", f->control->name, f->cwnd);
		return;
	}
	printf(" | %s%d r %.2f d %.2f q %.1f min %.1f loss %.3f floor %.3f fl %u w %u empty %u excess %u", modes[h->mode],
	       h->phase, h->rate * 8 / 1e6, h->delivery * 8 / 1e6, h->queue_us / 1e3, h->min_rtt_us / 1e3,
	       h->loss_q16 / 65536., h->floor_q16 / 65536., f->in_flight, h->cwnd, h->empty, h->excess_us / 1000);
	if (verbose == 4)
		printf(" t %u room %d noise %u", haul_target_us(h->min_rtt_us, h->rate, 1448, h->room_us), (int)h->room_us, h->noise_us);
}

// A flow in the last second: its mode, Mb/s, packets sent for each delivered.
static void show_second(int i)
{
	static u32 was_sent[MAX_FLOWS], was_delivered[MAX_FLOWS];
	struct flow *f = &sim.flow[i];
	const struct haul *h = haul_of(f);
	u32 sent = f->sent - was_sent[i], got = f->delivered - was_delivered[i];
	was_sent[i] = f->sent, was_delivered[i] = f->delivered;
	printf(" | %c%d %5.2f x%.2f w%u", h ? "SDRCPWU"[h->mode] : '-', h ? h->phase : 0, got * 1448 * 8 / 1e6,
	       got ? (double)sent / got : 0, f->cwnd);
	if (h)
		printf(" f%.3f l%.3f q%.0f m%.0f", h->floor_q16 / 65536., h->loss_q16 / 65536., h->queue_us / 1e3,
		       h->min_rtt_us / 1e3);
}

static void show(double now)
{
	static int n;
	for (int i = 0; i < sim.flows; i++)
		if (haul_of(&sim.flow[i]))
			in_mode[i][haul_of(&sim.flow[i])->mode]++;
	if (verbose == 3 || (verbose == 1 && n++ % 5) || (verbose == 2 && now > 12) || (verbose == 5 && n++ % 10))
		return;
	printf("%6.1f q %5.1f", now, sim.busy_until > sim.now ? (sim.busy_until - sim.now) / 1e6 : 0);
	for (int i = 0; i < sim.flows; i++) {
		if (verbose < 5)
			show_flow(&sim.flow[i]);
		else if (i < 8)
			show_second(i);
	}
	printf("\n");
}

static _Noreturn void misuse(const char *what, const char *value)
{
	fprintf(stderr, "haulsim: %s %s: see the comment on top of haulsim.c\n", what, value);
	exit(1);
}

// Stores the value of a key of the path; false for an unknown key.
static bool path_key(struct path *p, const char *key, const char *value)
{
	double v = atof(value);
	if (!strcmp(key, "rate")) p->rate = v * 1e6;
	else if (!strcmp(key, "rtt")) p->rtt = v / 1e3;
	else if (!strcmp(key, "loss")) p->loss = v;
	else if (!strcmp(key, "ackloss")) p->ack_loss = v;
	else if (!strcmp(key, "jitter")) p->jitter = v / 1e3;
	else if (!strcmp(key, "burst")) p->burst = v;
	else if (!strcmp(key, "place")) p->place = *value == 'a' ? AFTER : BEFORE;
	else if (!strcmp(key, "codel")) p->codel = v / 1e3;
	else if (!strcmp(key, "pie")) p->pie = v / 1e3;
	else if (!strcmp(key, "step")) p->step = v / 1e3;
	else if (!strcmp(key, "ecn")) p->ecn = v;
	else if (!strcmp(key, "policer")) p->policer = v * 1e6;
	else if (!strcmp(key, "bucket")) p->bucket = v * 1e3;
	else if (!strcmp(key, "aggregate")) p->aggregate = v / 1e3;
	else if (!strcmp(key, "batch")) p->batch = v / 1e3;
	else if (!strcmp(key, "wander")) p->wander = v / 1e3;
	else if (!strcmp(key, "tau")) p->tau = v / 1e3;
	else if (!strcmp(key, "fade")) p->fade = v;
	else if (!strcmp(key, "fadetau")) p->fade_tau = v / 1e3;
	else if (!strcmp(key, "handover")) p->handover = v;
	else if (!strcmp(key, "gap")) p->gap = v / 1e3;
	else if (!strcmp(key, "shift")) p->shift = v / 1e3;
	else if (!strcmp(key, "down")) p->down = v;
	else return false;
	return true;
}

static void flow_of(char *arg)
{
	char *options = strchr(arg, ':'), *begins;
	if (options)
		*options++ = 0;
	if ((begins = strchr(arg, '@')))
		*begins++ = 0;
	static const struct control *controls[] = {&haul_control, &bbr_control, &bbr3_control, &cubic, &reno_control, &constant, 0};
	const struct control *c, **at = controls;
	while ((c = *at) && strcmp(arg, c->name))
		at++;
	if (!c || sim.flows == MAX_FLOWS)
		misuse("no such flow, or too many:", arg);
	struct flow *f = add(c, begins ? atof(begins) : 0);
	for (char *o = options ? strtok(options, ",") : 0; o; o = strtok(0, ",")) {
		char *value = strchr(o, '=');
		if (!value)
			misuse("no value for", o);
		*value++ = 0;
		double v = atof(value);
		if (!strcmp(o, "rtt")) f->extra_rtt = v / 1e3; // of the path, below
		else if (!strcmp(o, "app")) f->app = v * 1e6;
		else if (!strcmp(o, "bytes")) f->bytes = v;
		else if (!strcmp(o, "cold")) f->cold = v;
		else if (!strcmp(o, "until")) f->until = v;
		else if (!strcmp(o, "clock")) f->clock_us = v * 1e6;
		else if (!strcmp(o, "rate")) f->cbr = v * 1e6;
		else if (!strcmp(o, "on")) f->on = v;
		else if (!strcmp(o, "off")) f->off = v;
		else misuse("no such key of a flow:", o);
	}
	if ((c == &constant) != (f->cbr > 0))
		misuse("rate= belongs to cbr, and cbr needs it:", arg);
}

// Switches rules of haul off.
static void switch_off(char *names)
{
	for (char *name = strtok(names, ","); name; name = strtok(0, ",")) {
		int rule = 0;
		while (rule < HAUL_RULE_COUNT && strcmp(name, haul_rules[rule].name))
			rule++;
		if (rule == HAUL_RULE_COUNT)
			misuse("no such rule:", name);
		haul_rules_off |= 1ull << rule;
	}
}

// The path's mean capacity over some time, as payload, bits per second.
static double capacity(struct path first, double from, double to)
{
	double sum = 0, at = 0;
	struct path p = first;
	for (int i = 0; i <= sim.changes; i++) {
		double end = i < sim.changes ? sim.change_at[i] : to;
		double a = at > from ? at : from, b = end < to ? end : to;
		if (b > a && !p.down)
			sum += (b - a) * limit(&p) * served(&p, a * 1e9, b * 1e9) / ((b - a) * p.rate);
		at = end;
		if (i < sim.changes)
			p = sim.change[i];
	}
	return sum / (to - from);
}

static void print_json(struct path first)
{
	printf("{\"limit_bps\":%.0f,\"flows\":[", limit(&first));
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		printf("%s{\"control\":\"%s\",\"begins_s\":%g,\"sent\":%u,\"delivered\":%u,\"timeouts\":%u}", i ? "," : "", f->control->name, f->begins, f->sent, f->delivered, f->timeouts);
	}
	printf("],\"over\":[");
	for (int w = 0; w < sim.spans; w++) {
		struct span *s = &sim.span[w];
		double took = s->to - s->from;
		printf("%s{\"from_s\":%g,\"to_s\":%g,\"queue_p50_ms\":%.1f,\"queue_p95_ms\":%.1f,\"capacity_bps\":%.0f,\"flows\":[", w ? "," : "", s->from, s->to,
		       s->queued ? span_percentile(s, 0.5) : 0, s->queued ? span_percentile(s, 0.95) : 0, capacity(first, s->from, s->to));
		for (int i = 0; i < sim.flows; i++) {
			struct tally *a = &sim.flow[i].at_from[w], *b = &sim.flow[i].at_to[w];
			double bits = 8. * MSS / took;
			printf("%s{\"goodput_bps\":%.0f,\"arrived_bps\":%.0f,\"sent\":%.0f,\"delivered\":%.0f}", i ? "," : "", (b->in_order - a->in_order) * bits,
			       (b->arrived - a->arrived) * bits, b->sent - a->sent, b->delivered - a->delivered);
		}
		printf("]}");
	}
	printf("]}\n");
}

static void print_text(struct path first, double time)
{
	double l = limit(&first);
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		double t90 = -1, t50 = -1, w = first.rtt * 2 < 1 ? 1 : first.rtt * 2;
		for (double t = f->begins; t + w < time; t += 0.1) {
			double a = arrived(f, t, t + w);
			if (t50 < 0 && a >= 0.5 * l) t50 = t + w - f->begins;
			if (t90 < 0 && a >= 0.9 * l) t90 = t + w - f->begins;
		}
		printf("%-6s whole %5.1f %% steady %5.1f %%  t50 %4.1f t90 %4.1f  sent/delivered %.3f (limit %.3f)  timeouts %u\n", f->control->name,
		       100 * goodput(f, f->begins, time) / l, 100 * goodput(f, time / 2, time) / l, t50, t90,
		       f->delivered ? (double)f->sent / f->delivered : 0, 1.05 / (1 - first.loss), f->timeouts);
		if (f->ended > 0)
			printf("       ended after %.3f s\n", f->ended - f->begins);
		if (!sim.changes)
			continue;
		double from = sim.change_at[0] > 2 ? sim.change_at[0] - 2 : 0;
		for (double t = from; t < time; t += 1)
			printf("%s%.0f:%.0f%%", t == from ? "  " : " ", t, 100 * arrived(f, t, t + 1) / l);
		printf("\n");
	}
	if (verbose == 3)
		for (int i = 0; i < sim.flows && haul_of(&sim.flow[i]); i++)
			printf("%d: start %d drain %d restore %d cruise %d probe %d compete %d\n", i, in_mode[i][0], in_mode[i][1], in_mode[i][2], in_mode[i][3], in_mode[i][4], in_mode[i][5]);
	printf("queue p50 %.1f p95 %.1f ms (of %.1f)\n", queue_percentile(.5), queue_percentile(.95), first.rtt * 125 > 25 ? first.rtt * 125 : 25);
	for (int w = 0; w < sim.spans; w++)
		printf("%g to %g s: queue p50 %.1f p95 %.1f ms\n", sim.span[w].from, sim.span[w].to, span_percentile(&sim.span[w], .5), span_percentile(&sim.span[w], .95));
}

static double bdp_bytes(const struct path *p)
{
	return p->rate / 8 * p->rtt;
}

int main(int argc, char **argv)
{
	struct path p = {.rate = 100e6, .rtt = 0.3}, *into = &p;
	double queue = 1, time = 60, window = 6, changed_queue = 0;
	bool json = false;
	clear(p);
	if (argc == 2 && !strcmp(argv[1], "rules")) {
		for (int i = 0; i < HAUL_RULE_COUNT; i++)
			printf("%s\t%s\n", haul_rules[i].name, haul_rules[i].says);
		return 0;
	}
	for (int i = 1; i < argc; i++) {
		char *value = strchr(argv[i], '='), *colon = strchr(argv[i], ':');
		if (!value || (colon && colon < value)) {
			flow_of(argv[i]);
			continue;
		}
		*value++ = 0;
		char *key = argv[i];
		double v = atof(value);
		if (path_key(into, key, value)) continue;
		else if (!strcmp(key, "queue") && into == &p) queue = v;
		else if (!strcmp(key, "queue")) changed_queue = v;
		else if (!strcmp(key, "window")) window = v;
		else if (!strcmp(key, "time")) time = v;
		else if (!strcmp(key, "seed")) seed ^= (u64)v * 0x9e3779b97f4a7c15ull;
		else if (!strcmp(key, "v")) verbose = v;
		else if (!strcmp(key, "json")) json = v;
		else if (!strcmp(key, "off")) switch_off(value);
		else if (!strcmp(key, "phase")) regular_hosts = !v;
		else if (!strcmp(key, "over")) {
			if (sim.spans == 16 || !strchr(value, ':'))
				misuse("over=", value);
			sim.span[sim.spans].from = v;
			sim.span[sim.spans++].to = atof(strchr(value, ':') + 1);
		} else if (!strcmp(key, "at")) {
			if (into == &p)
				p.queue_bytes = queue * bdp_bytes(&p);
			else if (changed_queue > 0)
				into->queue_bytes = changed_queue * bdp_bytes(into);
			if (sim.changes > MAX_CHANGES - 2)
				misuse("too many changes: at", value);
			sim.change[sim.changes] = into == &p ? p : *into;
			sim.change_at[sim.changes] = v;
			into = &sim.change[sim.changes++];
			changed_queue = 0;
		} else if (!strcmp(key, "until")) {
			if (into == &p)
				misuse("until without at:", value);
			if (changed_queue > 0)
				into->queue_bytes = changed_queue * bdp_bytes(into);
			changed_queue = 0;
			sim.change[sim.changes] = sim.changes > 1 ? sim.change[sim.changes - 2] : p;
			sim.change_at[sim.changes] = v;
			into = &sim.change[sim.changes++];
		} else misuse("no such key:", key);
	}
	if (into == &p)
		p.queue_bytes = queue * bdp_bytes(&p);
	else if (changed_queue > 0)
		into->queue_bytes = changed_queue * bdp_bytes(into);
	if (!sim.flows)
		add(&haul_control, 0);
	// The receiver's window is for the largest of the path's settings.
	double rtt = p.rtt, most = p.rate;
	for (int i = 0; i < sim.changes; i++) {
		rtt = sim.change[i].rtt > rtt ? sim.change[i].rtt : rtt;
		most = sim.change[i].rate > most ? sim.change[i].rate : most;
	}
	double base = p.rtt;
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		f->extra_rtt = f->extra_rtt > 0 ? f->extra_rtt - base : 0;
		rtt = p.rtt + f->extra_rtt > rtt ? p.rtt + f->extra_rtt : rtt;
	}
	double packets = window * most / 8 * rtt / PACKET + 2 * p.queue_bytes / PACKET + 200;
	p.window_packets = packets;
	for (int i = 0; i < sim.changes; i++)
		sim.change[i].window_packets = packets;
	sim.path = p;
	if (verbose && !json)
		watch = show;
	run(time);
	if (json)
		print_json(p);
	else
		print_text(p, time);
}
