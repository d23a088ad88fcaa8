//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// haulsim runs haul over a simulated path, for whoever works on it:
//
//	gcc -O2 -o /tmp/haulsim bpf/hosttest/sim/haulsim.c -lm
//	/tmp/haulsim rate=100 rtt=300 loss=0.1 [place=after] [queue=1] [jitter=50] [time=60] [v=1] haul cubic haul@20
//	                [at=20 loss=0.5 until=30]
#include "../haulpath.h"

static int verbose;

static void show(double now)
{
	static int n;
	if (verbose == 1 && n++ % 5)
		return;
	if (verbose == 2 && now > 12)
		return;
	printf("%6.1f q %5.1f", now, sim.busy_until > sim.now ? (sim.busy_until - sim.now) / 1e6 : 0);
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		if (!f->state) {
			printf(" | %s w %u", f->control->name, f->cwnd);
			continue;
		}
		struct haul *h = f->state;
		static const char *modes[] = {"start", "drain", "cruise", "probe", "rival", "trial"};
		printf(" | %s%d r %.2f d %.2f q %.1f min %.1f loss %.3f floor %.3f fl %u w %u calm %u full %u", modes[h->mode], h->phase, h->rate * 8 / 1e6, h->delivery * 8 / 1e6,
		       h->queue_us / 1e3, h->min_rtt_us / 1e3, h->loss_q16 / 65536., h->floor_q16 / 65536., f->in_flight, h->cwnd, h->calm, h->full);
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	struct path p = {.rate = 100e6, .rtt = 0.3}, changed;
	double queue = 1, time = 60, from = 0, to = 0, window = 6;
	bool changing = false;
	clear(p);
	struct path *into = &p;
	for (int i = 1; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		if (!value) {
			char *begins = strchr(argv[i], '@');
			add(argv[i][0] == 'h' ? &haul_control : &cubic, begins ? atof(begins + 1) : 0);
			continue;
		}
		*value++ = 0;
		char *key = argv[i];
		double v = atof(value);
		if (!strcmp(key, "rate")) into->rate = v * 1e6;
		else if (!strcmp(key, "rtt")) into->rtt = v / 1e3;
		else if (!strcmp(key, "loss")) into->loss = v;
		else if (!strcmp(key, "ackloss")) into->ack_loss = v;
		else if (!strcmp(key, "jitter")) into->jitter = v / 1e3;
		else if (!strcmp(key, "burst")) into->burst = v;
		else if (!strcmp(key, "place")) into->place = *value == 'a' ? AFTER : BEFORE;
		else if (!strcmp(key, "queue")) queue = v;
		else if (!strcmp(key, "policer")) into->policer = v * 1e6;
		else if (!strcmp(key, "down")) into->down = v;
		else if (!strcmp(key, "window")) window = v;
		else if (!strcmp(key, "time")) time = v;
		else if (!strcmp(key, "seed")) seed ^= (u64)v * 0x9e3779b97f4a7c15ull;
		else if (!strcmp(key, "v")) verbose = v;
		else if (!strcmp(key, "at")) {
			p.queue_bytes = queue * p.rate / 8 * p.rtt;
			from = v, changed = p, into = &changed, changing = true;
		} else if (!strcmp(key, "until")) to = v;
		else {
			printf("what is %s?\n", key);
			return 1;
		}
	}
	if (!changing)
		p.queue_bytes = queue * p.rate / 8 * p.rtt;
	p.window_packets = changed.window_packets = window * p.rate / 8 * p.rtt / PACKET + 1000;
	if (!sim.flows)
		add(&haul_control, 0);
	sim.path = p;
	if (changing) {
		sim.changes = 2;
		sim.change[0] = changed, sim.change_at[0] = from;
		sim.change[1] = p, sim.change_at[1] = to;
	}
	if (verbose)
		watch = show;
	run(time);
	double l = limit(&p);
	for (int i = 0; i < sim.flows; i++) {
		struct flow *f = &sim.flow[i];
		double t90 = -1, t50 = -1, w = p.rtt * 2 < 1 ? 1 : p.rtt * 2;
		for (double t = f->begins; t + w < time; t += 0.1) {
			double a = arrived(f, t, t + w);
			if (t50 < 0 && a >= 0.5 * l) t50 = t + w - f->begins;
			if (t90 < 0 && a >= 0.9 * l) t90 = t + w - f->begins;
		}
		printf("%-6s whole %5.1f %% steady %5.1f %%  t50 %4.1f t90 %4.1f  sent/delivered %.3f (limit %.3f)  timeouts %u\n", f->control->name,
		       100 * goodput(f, f->begins, time) / l, 100 * goodput(f, time / 2, time) / l, t50, t90,
		       (double)f->sent / f->delivered, 1.05 / (1 - p.loss), f->timeouts);
		if (changing)
			for (double t = from - 2; t < time; t += 1)
				printf("%s%.0f:%.0f%%", t == from - 2 ? "  " : " ", t, 100 * arrived(f, t, t + 1) / l);
		if (changing)
			printf("\n");
	}
	printf("queue p50 %.1f p95 %.1f ms (of %.1f)\n", queue_percentile(.5), queue_percentile(.95), p.rtt * 125 > 25 ? p.rtt * 125 : 25);
}
