//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The cases of the appendix of draft-ietf-ccwg-bbr-06 have its headings as comments.
#include "bbr3path.h"

static void arithmetic(void)
{
	for (int i = 0; i < 300000; i++) {
		u32 packets = any_up_to(~0u), us = any_up_to(1u << 26);
		double most = BBR3_BW_MAX_Q28, n = packets < WINDOW_MAX ? packets : WINDOW_MAX, want = n * 0x1p28 / (us ? us : 1);
		CHECK(near(bbr3_bw_q28(packets, us), want < most ? want : most, 1e-9, 1), "%u in %u us", packets, us);

		u64 bw = any_up_to(~0ull);
		u32 gain = 1 + any_up_to(276);
		double b = bw < BBR3_BW_MAX_Q28 ? bw : most, t = us < BBR3_RTT_MAX_US ? us : BBR3_RTT_MAX_US;
		want = b * t * gain / 100 / 0x1p28, most = WINDOW_MAX;
		u32 got = bbr3_segments(bw, us, gain);
		CHECK(near(got, want < most ? want : most, 1e-6, 1.001), "%llu over %u us by %u: %u, want %f", bw, us, gain, got, want);

		u32 mss = 1 + any_up_to(65535);
		want = b * mss * 1e6 / 0x1p28;
		CHECK(near(bbr3_bytes(bw, mss), want > mss ? want : mss, 1e-6, 3), "%llu of %u bytes: %llu, want %f", bw, mss, bbr3_bytes(bw, mss), want);
	}
	// 100 Gb/s over 2 s, and 64 kb/s.
	u64 fast = bbr3_bw_q28(FAST_WINDOW, LONG_RTT_US), slow = bbr3_bw_q28(1, MSS * 8e6 / 64e3);
	CHECK(near(bbr3_segments(fast, LONG_RTT_US, 100), FAST_WINDOW, 1e-6, 1), "%u segments", bbr3_segments(fast, LONG_RTT_US, 100));
	CHECK(near(bbr3_bytes(fast, 536), FAST_RATE, 1e-6, 1) && near(bbr3_bytes(slow, MSS), 8000, 1e-2, 0), "%llu and %llu bytes/s",
	      bbr3_bytes(fast, 536), bbr3_bytes(slow, MSS));

	struct bbr3 h = {.inflight_longterm = 100};
	CHECK(bbr3_with_headroom(&h) == 85, "headroom: %u of 100", bbr3_with_headroom(&h));
	h.inflight_longterm = 4;
	CHECK(bbr3_with_headroom(&h) == 4, "headroom: %u of 4", bbr3_with_headroom(&h));

	// Of a window of 1000, 22 are lost, the last 5 with this acknowledgement: 2 % of 998
	// packets are 20, so three of the 5 could be in flight without exceeding that.
	struct bbr3_ack a = {.cwnd = 1000};
	h = (struct bbr3){.rs_in_flight = 1000, .rs_lost = 22, .min_rtt_us = 1000};
	bbr3_answer_probe(&h, &a, 5);
	CHECK(h.inflight_longterm == 995 + 2, "inflight_longterm %u", h.inflight_longterm);
	// At most three tenths less than the target.
	h = (struct bbr3){.rs_in_flight = 10, .rs_lost = 5, .min_rtt_us = 100000, .bw = bbr3_bw_q28(1000, 100000)};
	bbr3_answer_probe(&h, &a, 5);
	CHECK(near(h.inflight_longterm, 700, 0, 1), "inflight_longterm %u", h.inflight_longterm);
}

// What was noted of the path when a packet was sent is found again.
static void history(void)
{
	struct bbr3 h;
	struct bbr3_ack a = {.now_us = 1000000, .delivered = ~0u - 5000, .cwnd = 10}; // wraps on the way
	bbr3_init(&h, &a, 100000);
	static struct bbr3_ack sent[20001];
	const u32 window = 1000, first = a.delivered;
	for (u32 i = 1; i <= 20000; i++) {
		a.delivered++;
		a.lost += i % 50 == 0;
		a.now_us += 100;
		a.prior_in_flight = window + i / 100;
		a.in_flight = a.prior_in_flight - 1;
		bbr3_note_sent(&h, &a);
		sent[i] = a;
		if (i <= 2 * window)
			continue;
		const struct bbr3_ack *then = &sent[i - window];
		a.prior_delivered = first + i - window;
		bbr3_look_up(&h, &a, 0);
		u32 lost = a.lost - then->lost;
		CHECK(h.rs_lost >= lost && h.rs_lost <= lost + 2, "after %u: %u lost, want %u", i, h.rs_lost, lost);
		CHECK(near(h.rs_in_flight, then->in_flight, 0.01, 2), "after %u: %u in flight, want %u", i, h.rs_in_flight, then->in_flight);
		// A reordering window of a quarter of a round trip earlier: an entry more.
		bbr3_look_up(&h, &a, window / 4 * 100);
		lost = a.lost - sent[i - window - window / 4].lost;
		CHECK(h.rs_lost >= lost && h.rs_lost <= lost + 3, "a quarter before, after %u: %u lost, want %u", i, h.rs_lost, lost);
	}
}

// With any input from the kernel, pace and window stay within their bounds.
static void nonsense(void)
{
	struct bbr3 h;
	struct bbr3_ack a = {.mss = 1448, .cwnd = 10, .clamp = ~0u};
	bbr3_init(&h, &a, 100000);
	for (int i = 0; i < 1000000; i++) {
		u32 n = any_up_to(1u << 24);
		a = (struct bbr3_ack){
			.now_us = any() % 4 ? a.now_us + any_up_to(1u << 22) : any(),
			.delivered = a.delivered + n,
			.lost = a.lost + any_up_to(1u << 24) - any_up_to(1u << 20),
			.marked = a.marked + (any() % 8 ? 0 : any_up_to(1u << 24)),
			.prior_delivered = a.delivered - any_up_to(1u << 24),
			.sample_delivered = any_up_to(~0u),
			.sample_us = any_up_to(~0u),
			.rtt_us = any_up_to(~0u),
			.acked = any() % 8 ? n : any_up_to(~0u),
			.in_flight = any_up_to(~0u),
			.prior_in_flight = any_up_to(~0u),
			.reorder_us = any_up_to(~0u),
			.cwnd = any() % 4 ? h.cwnd : any_up_to(~0u),
			.clamp = any() % 2 ? ~0u : 1 + any_up_to(~0u - 1),
			.mss = any_up_to(65535) + 1,
			.random = any(),
			.app_limited = any() % 8 == 0,
			.cwnd_limited = any() % 2,
			.sack = any() % 8,
			.fast_recovery = any() % 8 == 0,
			.timeout = any() % 8 == 0,
		};
		if (any() % 16 == 0)
			bbr3_restart(&h, &a);
		if (any() % 16 == 0)
			bbr3_enter_recovery(&h, a.cwnd, any() % 2);
		if (any() % 16 == 0)
			bbr3_undo(&h, a.cwnd, a.delivered);
		if (any() % 4096 == 0)
			bbr3_init(&h, &a, any_up_to(~0u));
		bbr3_update(&h, &a);
		CHECK(h.pace <= 1ull << 46 && h.pace >= a.mss, "pace %llu", h.pace);
		CHECK(h.cwnd >= 1 && h.cwnd <= WINDOW_MAX && h.cwnd <= a.clamp, "window %u", h.cwnd);
		CHECK(h.state <= BBR3_PROBE_RTT && h.newest < BBR3_SENT, "state %u, newest %u", h.state, h.newest);
	}
}

// The changes of state of the first flow, with the state before and after.
struct change {
	double at;
	struct bbr3 was, is;
	u32 in_flight;
};

static struct change changes[4096];
static int changed;
static void (*on_change)(const struct change *);
static void (*on_ack)(const struct bbr3 *, const struct flow *);

static void observed(struct flow *f, u32 acked, u32 rtt_us)
{
	struct bbr3 *h = f->state, was = *h;
	bbr3_acked(f, acked, rtt_us);
	if (f != &sim.flow[0])
		return;
	if (on_ack)
		on_ack(h, f);
	if (was.state == h->state || changed == 4096)
		return;
	struct change *c = &changes[changed++];
	*c = (struct change){sim.now / 1e9, was, *h, f->in_flight};
	if (on_change)
		on_change(c);
}

static struct control control;

// scene is a simulated path with a flow on it.
static struct path scene(double rate_mbps, double rtt_ms, double loss, double queue_bdp)
{
	struct path p = {.rate = rate_mbps * 1e6, .rtt = rtt_ms / 1e3, .loss = loss, .queue_bytes = queue_bdp * rate_mbps * 125 * rtt_ms};
	clear(p);
	control = bbr3_control;
	control.ack = observed;
	changed = 0;
	on_change = 0;
	on_ack = 0;
	watch = 0;
	add(&control, 0);
	return p;
}

// The n-th change, from 0, from one state to another; null if there is none.
static const struct change *change_of(int n, u8 from, u8 to)
{
	for (int i = 0; i < changed; i++)
		if (changes[i].was.state == from && changes[i].is.state == to && n-- == 0)
			return &changes[i];
	return 0;
}

static double rate_of(u64 bw_q28)
{
	return bbr3_bytes(bw_q28, MSS) * 8.;
}

static double bdp_packets(const struct path *p)
{
	return p->rate / 8 * p->rtt / PACKET;
}

// Exiting STARTUP on Bandwidth Plateau. Exiting DRAIN Based on Inflight.
static u32 found_round; // in which nine tenths of the path were found

static void see_start(const struct bbr3 *h, const struct flow *f)
{
	if (!found_round && rate_of(bbr3_max_bw(h)) >= 0.9 * limit(&sim.path))
		found_round = h->round_count;
	(void)f;
}

static void starts(double rate_mbps, double rtt_ms)
{
	struct path p = scene(rate_mbps, rtt_ms, 0, 4);
	on_ack = see_start;
	found_round = 0;
	run(5 + 40 * p.rtt);
	const struct change *c = change_of(0, BBR3_STARTUP, BBR3_DRAIN), *d = c + 1;
	CHECK(c && d < changes + changed && d->was.state == BBR3_DRAIN, "%.0f Mb/s, %.0f ms: Startup or Drain does not end", rate_mbps, rtt_ms);
	if (!c)
		return;
	double bw = rate_of(bbr3_max_bw(&c->is));
	u32 most = ceil(log2(bdp_packets(&p) / 10 + 1)) + 3, rounds = c->is.round_count - found_round;
	CHECK(near(bw, limit(&p), 0.02, 0), "%.0f Mb/s, %.0f ms: max_bw %.2f Mb/s at the end of Startup", rate_mbps, rtt_ms, bw / 1e6);
	CHECK(found_round && found_round <= most, "%.0f Mb/s, %.0f ms: nine tenths found in round %u, want %u", rate_mbps, rtt_ms, found_round, most);
	CHECK(c->is.full_bw_now && c->is.full_bw_reached && c->is.full_bw_count == BBR3_FULL_ROUNDS, "Startup ends after %u rounds without growth",
	      c->is.full_bw_count);
	if (c == changes) // no ProbeRTT before
		CHECK(rounds <= BBR3_FULL_ROUNDS + 1, "%.0f Mb/s, %.0f ms: Startup goes on for %u rounds", rate_mbps, rtt_ms, rounds);
	// The queue of Startup, as long as the path, is gone soon.
	u32 bdp = bbr3_quantized(&d->was, MSS, bbr3_bdp(&d->was, d->is.bw, 100));
	CHECK(d->in_flight <= bdp && d->at - c->at <= 2.5 * p.rtt + 0.05, "%.0f Mb/s, %.0f ms: Drain ends after %.3f s with %u in flight of %u", rate_mbps,
	      rtt_ms, d->at - c->at, d->in_flight, bdp);
}

// Exiting STARTUP on Loss When Application-Limited, and not for half a percent.
static void starts_with_loss(double loss, double app_mbps, bool ends)
{
	scene(100, 60, loss, 4);
	sim.flow[0].app = app_mbps * 1e6;
	run(10);
	const struct change *c = change_of(0, BBR3_STARTUP, BBR3_DRAIN);
	bool plateau = c && c->is.full_bw_count == BBR3_FULL_ROUNDS;
	CHECK(ends ? c && !plateau && c->is.full_bw_reached && c->is.inflight_longterm != BBR3_NONE : !c || plateau,
	      "%.1f %% lost, %.0f Mb/s offered: Startup %s", 100 * loss, app_mbps, c ? plateau ? "ends on a plateau" : "ends on loss" : "goes on");
}

static struct path then;
static u8 then_in;

static void change_path(const struct change *c)
{
	if (c->is.state == then_in && c->at > 4)
		sim.path = then;
}

// Exiting DRAIN Based on Time. The path becomes so slow that half of the bandwidth is
// more than it.
static void slow_down(const struct bbr3 *h, const struct flow *f)
{
	if (h->full_bw_count == BBR3_FULL_ROUNDS - 1)
		sim.path = then;
	(void)f;
}

static void drains_by_time(void)
{
	then = scene(100, 60, 0, 4);
	then.rate = 20e6;
	on_ack = slow_down;
	run(5);
	const struct change *c = change_of(0, BBR3_DRAIN, BBR3_DOWN);
	u32 rounds = c ? c->is.round_count - c->is.drain_start_round : 0;
	CHECK(rounds == BBR3_DRAIN_ROUNDS + 1 && c->in_flight > bbr3_bdp(&c->is, c->is.bw, 100), "Drain ends after %u rounds with %u in flight", rounds,
	      c ? c->in_flight : 0);
}

// Exiting PROBE_UP on Bandwidth Plateau. Exiting PROBE_DOWN on Inflight. The cycle's
// times.
static void cycles(double rate_mbps, double rtt_ms, double least_s, double most_s)
{
	struct path p = scene(rate_mbps, rtt_ms, 0, 4);
	run(40);
	int ups = 0;
	double before = 0;
	for (int i = 0; i < changed; i++) {
		const struct change *c = &changes[i];
		static const double gains[] = {2.77, 0.5, 0.9, 1, 1, 1.25, 1};
		double pace = bbr3_bytes(c->is.bw, MSS) * gains[c->is.state] * 0.99;
		CHECK(near(c->is.pace, pace, 1e-3, 1), "paced at %llu B/s in state %u, want %.0f", c->is.pace, c->is.state, pace);
		if (c->was.state == BBR3_UP && c->is.state != BBR3_PROBE_RTT)
			CHECK(c->is.state == BBR3_DOWN && c->was.full_bw_count == BBR3_FULL_ROUNDS - 1, "UP ends in state %u after %u rounds", c->is.state,
			      c->was.full_bw_count);
		if (c->was.state == BBR3_DOWN && c->is.state == BBR3_CRUISE)
			CHECK(c->in_flight <= bbr3_quantized(&c->was, MSS, bbr3_bdp(&c->was, bbr3_max_bw(&c->is), 100)), "DOWN ends with %u in flight",
			      c->in_flight);
		if (c->is.state == BBR3_UP)
			CHECK(c->was.state == BBR3_REFILL, "UP comes after state %u", c->was.state);
		if (c->is.state == BBR3_REFILL) {
			ups++;
			before = c->at;
		}
		// From the end of a probe to the next one, if no ProbeRTT is between.
		if (c->is.state == BBR3_DOWN && i + 2 < changed && c->was.state == BBR3_UP && changes[i + 1].is.state == BBR3_CRUISE &&
		    changes[i + 2].is.state == BBR3_REFILL) {
			double waits = changes[i + 2].at - c->at;
			CHECK(waits >= least_s && waits <= most_s, "%.0f Mb/s, %.0f ms: %.2f s between probes, want %.2f to %.2f", rate_mbps, rtt_ms, waits,
			      least_s, most_s);
		}
	}
	// ProbeRTT begins the wait anew.
	CHECK(ups >= 40 / (most_s + 8 * p.rtt) - 4 && before > 30, "%.0f Mb/s, %.0f ms: %d probes, the last at %.1f s", rate_mbps, rtt_ms, ups, before);
	double share = goodput(&sim.flow[0], 10, 40) / limit(&p);
	CHECK(share >= 0.95, "%.0f Mb/s, %.0f ms: %.3f of the path", rate_mbps, rtt_ms, share);
}

static void limit_application(const struct change *c)
{
	struct flow *f = &sim.flow[0];
	if (c->is.state == BBR3_UP && c->at > 4 && f->app <= 0) {
		f->app = 40e6;
		f->begins = sim.now / 1e9 - f->next * MSS * 8 / f->app;
	}
}

static void lossy_limited(const struct change *c)
{
	change_path(c);
	limit_application(c);
}

// Exiting PROBE_UP on Loss When Application-Limited. Handling Loss During PROBE_UP After
// inflight_longterm is Set.
static void probes_with_loss(void (*in_up)(const struct change *), double queue_bdp)
{
	then = scene(100, 60, 0, queue_bdp);
	then.loss = 0.1;
	then_in = BBR3_UP;
	on_change = in_up;
	run(30);
	for (int i = 1; i < changed; i++) {
		const struct change *c = &changes[i];
		if (changes[i - 1].at < 4 || c->was.state != BBR3_UP || c->is.probe_precautionary)
			continue;
		u32 target = bbr3_target_inflight(&c->was, c->was.cwnd);
		// A flow with little in flight goes on to CRUISE at once.
		CHECK((c->is.state == BBR3_DOWN || c->is.state == BBR3_CRUISE) && c->is.probe_too_high && c->is.undo_state == BBR3_UP,
		      "UP with loss ends in state %u", c->is.state);
		if (in_up == lossy_limited)
			CHECK(c->is.inflight_longterm == c->was.inflight_longterm, "limited by the application: inflight_longterm from %u to %u",
			      c->was.inflight_longterm, c->is.inflight_longterm);
		else
			CHECK(c->is.inflight_longterm <= c->was.inflight_longterm && c->is.inflight_longterm >= target / 10 * 7,
			      "inflight_longterm from %u to %u, target %u", c->was.inflight_longterm, c->is.inflight_longterm, target);
		return;
	}
	CHECK(false, "UP does not end");
}

// Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss. Entering and
// Exiting PROBE_RTT During STARTUP.
static void app_limited(void)
{
	scene(100, 60, 0, 1);
	sim.flow[0].app = 10e6;
	run(30);
	for (int i = 0; i < changed; i++) {
		u8 to = changes[i].is.state;
		CHECK(to == (i % 2 ? BBR3_STARTUP : BBR3_PROBE_RTT), "limited by the application: state %u", to);
	}
	CHECK(changed >= 2, "limited by the application: %d changes of state", changed);
	CHECK(near(goodput(&sim.flow[0], 10, 30), 10e6, 0.02, 0), "limited by the application: %.2f Mb/s", goodput(&sim.flow[0], 10, 30) / 1e6);
}

static void app_limited_in_up(void)
{
	scene(100, 60, 0, 1);
	on_change = limit_application;
	run(40);
	bool up = false;
	for (int i = 0; i < changed; i++) {
		if (sim.flow[0].app > 0 && changes[i].is.state == BBR3_UP && changes[i].at > 4)
			up = true;
		else if (up)
			CHECK(changes[i].is.state == BBR3_PROBE_RTT || changes[i].was.state == BBR3_PROBE_RTT || changes[i].was.state == BBR3_CRUISE ||
				      changes[i].was.state == BBR3_REFILL,
			      "limited by the application in UP: from state %u to %u", changes[i].was.state, changes[i].is.state);
	}
	CHECK(up, "UP was not reached");
}

// Exiting PROBE_DOWN After Max Time.
static void slow_down_in_down(const struct change *c)
{
	if (c->is.state != BBR3_DOWN || c->at < 4 || sim.path.rate == then.rate)
		return;
	sim.path = then;
	struct bbr3 *h = sim.flow[0].state;
	h->probe_rtt_min_at_us = h->cycle_at_us; // no ProbeRTT before the end
}

static void down_too_long(void)
{
	then = scene(100, 60, 0, 8);
	then.rate = 50e6;
	on_change = slow_down_in_down;
	run(14);
	const struct change *c = changes;
	while (c < changes + changed && (c->at < 4 || c->is.state != BBR3_DOWN))
		c++;
	const struct change *next = c + 1;
	CHECK(next < changes + changed, "DOWN does not end");
	double took = next->at - c->at;
	CHECK(next->is.state == BBR3_REFILL && took * 1e6 >= c->is.probe_wait_us && took <= 3.1, "DOWN ends in state %u after %.2f s", next->is.state, took);
}

// Entering and Exiting PROBE_RTT. Two flows keep a queue, so the round trip of an empty
// path is not seen otherwise.
static void in_probe_rtt(const struct bbr3 *h, const struct flow *f)
{
	if (h->state != BBR3_PROBE_RTT)
		return;
	u32 most = bbr3_max(bbr3_segments(h->bw, h->min_rtt_us, 50), 4);
	CHECK(f->cwnd <= most, "window of %u in ProbeRTT, want %u", f->cwnd, most);
	CHECK(h->limited && h->limited_until == f->delivered + f->in_flight, "ProbeRTT does not mark what it sends");
}

static void probes_rtt(void)
{
	struct path p = scene(100, 60, 0, 4);
	on_ack = in_probe_rtt;
	add(&bbr3_control, 0);
	sim.flow[1].app = 20e6;
	add(&cubic, 0);
	run(60);
	int n = 0;
	double before = 0;
	for (int i = 0; i + 1 < changed; i++) {
		const struct change *c = &changes[i], *out = &changes[i + 1];
		if (c->is.state != BBR3_PROBE_RTT)
			continue;
		double took = out->at - c->at;
		CHECK(took >= 0.2 + p.rtt && took <= 0.2 + 12 * p.rtt, "ProbeRTT takes %.3f s", took);
		CHECK(out->is.state == BBR3_CRUISE && out->is.full_bw_reached && out->is.bw_shortterm == BBR3_NO_BW, "ProbeRTT ends in state %u",
		      out->is.state);
		CHECK(out->is.cwnd > 1.5 * out->was.cwnd, "window of %u in ProbeRTT, %u after", out->was.cwnd, out->is.cwnd);
		CHECK(!n || c->at - before >= 5, "%.2f s between two of ProbeRTT", c->at - before);
		before = c->at;
		n++;
	}
	CHECK(n >= 6 && n <= 12, "ProbeRTT %d times in a minute", n);
}

// Skipping PROBE_RTT Due to Application-Limited Sending.
static double resumed_pace, resumed_bw;
static bool resumed;

static void pause_and_resume(double now)
{
	struct flow *f = &sim.flow[0];
	if (now >= 8 && now < 14.5) {
		f->until = 8;
	} else if (now >= 14.5 && f->until > 0) {
		f->until = 0;
		try_send(0);
		struct bbr3 *h = f->state;
		resumed = h->idle_restart;
		resumed_pace = h->pace, resumed_bw = bbr3_bytes(h->bw, MSS);
	}
}

static void idles(void)
{
	struct path p = scene(100, 60, 0, 1);
	watch = pause_and_resume;
	resumed = false;
	run(17);
	CHECK(resumed && near(resumed_pace, resumed_bw * 0.99, 1e-3, 1), "after idle time: restart %d, pace %.0f, bandwidth %.0f", resumed, resumed_pace,
	      resumed_bw);
	for (int i = 0; i < changed; i++)
		CHECK(changes[i].at < 8.1 || changes[i].is.state != BBR3_PROBE_RTT, "ProbeRTT %.2f s after an idle time", changes[i].at - 14.5);
	double share = arrived(&sim.flow[0], 14.8, 16.8) / limit(&p);
	CHECK(share >= 0.9, "after idle time: %.2f of the path", share);
}

// Achieving Expected STARTUP Bandwidth on a Link With Aggregation. Achieving Expected
// Cruise Bandwidth on a Link With Aggregation.
static u32 least_extra, most_window, least_window;

static void see_aggregation(const struct bbr3 *h, const struct flow *f)
{
	if (h->state == BBR3_STARTUP && f->cwnd > most_window)
		most_window = f->cwnd;
	if (h->state == BBR3_CRUISE && sim.now > 3 * SECOND) {
		least_extra = bbr3_min(least_extra, h->extra_acked);
		least_window = bbr3_min(least_window, f->cwnd);
	}
}

static void aggregates(void)
{
	struct path p = scene(100, 40, 0, 4);
	p.aggregate = sim.path.aggregate = 0.03;
	on_ack = see_aggregation;
	most_window = 0, least_extra = least_window = ~0u;
	run(30);
	const struct change *c = change_of(0, BBR3_STARTUP, BBR3_DRAIN);
	double bdp = bdp_packets(&p), share = goodput(&sim.flow[0], 5, 30) / limit(&p);
	// A sample that begins within a bunch of acknowledgements has most of it and of a later one:
	// two or three bunches in the time of one less.
	double max_bw = c ? rate_of(bbr3_max_bw(&c->is)) : 0;
	CHECK(max_bw >= 0.95 * limit(&p) && max_bw <= 1.5 * limit(&p), "aggregation: max_bw %.1f Mb/s", max_bw / 1e6);
	CHECK(most_window > 2 * bdp, "aggregation: window of %u in Startup, BDP %.0f", most_window, bdp);
	CHECK(least_extra >= 0.5 * sim.path.aggregate * p.rate / 8 / PACKET && least_window >= 2 * bdp, "aggregation: extra_acked %u, window %u, BDP %.0f",
	      least_extra, least_window, bdp);
	CHECK(share >= 0.95, "aggregation: %.3f of the path", share);
}

// Correctly Managing Sub-Packet BDPs.
static void least_of_window(const struct bbr3 *h, const struct flow *f)
{
	least_window = bbr3_min(least_window, f->cwnd);
	(void)h;
}

static void below_a_packet(void)
{
	struct path p = scene(0.1, 20, 0, 100);
	on_ack = least_of_window;
	least_window = ~0u;
	run(60);
	const struct bbr3 *h = sim.flow[0].state;
	CHECK(h->full_bw_reached && least_window >= 4 && goodput(&sim.flow[0], 20, 60) >= 0.9 * limit(&p), "0.1 Mb/s, 20 ms: window of %u, %.3f of it",
	      least_window, goodput(&sim.flow[0], 20, 60) / limit(&p));
	CHECK(near(rate_of(bbr3_max_bw(h)), limit(&p), 0.1, 0), "0.1 Mb/s: max_bw %.4f Mb/s", rate_of(bbr3_max_bw(h)) / 1e6);
}

// Increasing Bandwidth 10x and Ensuring Full Bandwidth is Reached. Decreasing Bandwidth
// 10x and Ensuring Max Bandwidth Adapts Down.
static u64 least_shortterm;

static void see_shortterm(const struct bbr3 *h, const struct flow *f)
{
	if (sim.now > 20 * SECOND && h->bw_shortterm < least_shortterm)
		least_shortterm = h->bw_shortterm;
	(void)f;
}

static void ten_times(double from_mbps, double to_mbps)
{
	struct path p = scene(from_mbps, 60, 0, 1), to = p;
	to.rate = to_mbps * 1e6;
	sim.changes = 1, sim.change[0] = to, sim.change_at[0] = 20;
	on_ack = see_shortterm;
	least_shortterm = BBR3_NO_BW;
	run(40);
	const struct bbr3 *h = sim.flow[0].state;
	double later = arrived(&sim.flow[0], 25, 40) / limit(&to);
	CHECK(later >= 0.9, "from %.0f to %.0f Mb/s: %.2f of it from 5 s on", from_mbps, to_mbps, later);
	CHECK(near(rate_of(bbr3_max_bw(h)), limit(&to), 0.05, 0), "from %.0f to %.0f Mb/s: max_bw %.2f Mb/s", from_mbps, to_mbps,
	      rate_of(bbr3_max_bw(h)) / 1e6);
	if (to_mbps < from_mbps)
		CHECK(rate_of(least_shortterm) < from_mbps * 1e6 / 2, "from %.0f to %.0f Mb/s: bw_shortterm not below %.2f Mb/s", from_mbps, to_mbps,
		      rate_of(least_shortterm) / 1e6);
}

// inflight_longterm, once set, grows by 1, 2, 4 and so on segments in the rounds of UP.
static void slope(void)
{
	struct bbr3 h = {.state = BBR3_UP, .inflight_longterm = 1000, .rs_delivered = 1, .acks = BBR3_ACKS_FEEDBACK};
	struct bbr3_ack a = {.cwnd = 1000, .cwnd_limited = true, .sack = true, .acked = 1};
	bbr3_raise_slope(&h, a.cwnd);
	for (u32 round = 0; round < 6; round++) {
		u32 before = h.inflight_longterm;
		for (u32 i = 0; i < 1000; i++) {
			h.round_start = i == 999;
			a.cwnd = h.inflight_longterm;
			bbr3_adapt_longterm(&h, &a);
		}
		u32 grown = h.inflight_longterm - before;
		CHECK(near(grown, 1u << round, 0.1, 1), "in round %u of UP inflight_longterm grows by %u", round, grown);
	}
	a.cwnd_limited = false;
	u32 before = h.inflight_longterm;
	for (u32 i = 0; i < 1000; i++)
		bbr3_adapt_longterm(&h, &a);
	CHECK(h.inflight_longterm == before, "inflight_longterm grows without use");
}

// Handling Token Bucket Policers.
static void policed(void)
{
	struct path p = scene(100, 60, 0, 1);
	p.policer = sim.path.policer = 50e6;
	sim.path.bucket = 1e6;
	run(60);
	struct flow *f = &sim.flow[0];
	double share = goodput(f, 10, 60) / limit(&p), sent = (double)f->sent / f->delivered;
	CHECK(share >= 0.75 && sent <= 1.05, "policed: %.2f of it, %.3f sent for each delivered", share, sent);
}

// Handling Spurious Fast Recovery. Handling Spurious RTO Recovery.
static void undoes(void)
{
	struct bbr3_ack a = {.cwnd = 100, .mss = MSS, .delivered = 500};
	for (int timeout = 0; timeout < 2; timeout++) {
		struct bbr3 h;
		bbr3_init(&h, &a, 100000);
		h.state = BBR3_UP, h.full_bw_reached = true, h.bw = h.max_bw[0] = bbr3_bw_q28(100, 100000);
		h.inflight_longterm = 300, h.rs_in_flight = 100, h.rs_lost = 50, h.probe_sample = true;
		bbr3_enter_recovery(&h, 250, false);
		bbr3_answer_probe(&h, &a, 50);
		CHECK(h.state == BBR3_DOWN && h.inflight_longterm < 300, "a probe with loss: state %u, inflight_longterm %u", h.state, h.inflight_longterm);
		h.bw_shortterm /= 2, h.inflight_shortterm /= 2;
		bbr3_undo(&h, timeout ? 1 : 100, a.delivered);
		CHECK(h.state == BBR3_REFILL && h.inflight_longterm == 300 && h.cwnd == 250 && h.bw_shortterm == BBR3_NO_BW && h.inflight_shortterm == BBR3_NONE,
		      "undone: state %u, inflight_longterm %u, window %u", h.state, h.inflight_longterm, h.cwnd);
		// Startup that ended for loss.
		h.state = BBR3_STARTUP, h.full_bw_reached = false, h.loss_events = BBR3_FULL_LOSSES;
		h.rs_in_flight = 100, h.rs_lost = 50;
		a.fast_recovery = true;
		bbr3_check_high_loss(&h, &a);
		a.fast_recovery = false;
		bbr3_check_startup_and_drain(&h, &a);
		bool ended = h.full_bw_reached && h.state != BBR3_STARTUP;
		bbr3_undo(&h, 100, a.delivered);
		CHECK(ended && h.state == BBR3_STARTUP && !h.full_bw_reached, "undone: state %u, full_bw_reached %d", h.state, h.full_bw_reached);
	}
}

// A probe that an idle time ends goes on at the bandwidth, and ProbeRTT is over.
static void restarts(void)
{
	struct bbr3_ack a = {.now_us = 10000000, .cwnd = 100, .mss = MSS, .delivered = 500};
	struct bbr3 h;
	bbr3_init(&h, &a, 100000);
	h.state = BBR3_UP, h.full_bw_reached = true, h.bw = h.max_bw[0] = bbr3_bw_q28(100, 100000);
	bbr3_set_pace(&h, MSS, 125);
	bbr3_restart(&h, &a);
	CHECK(near(h.pace, 1000 * MSS * 0.99, 1e-3, 1) && h.idle_restart, "after idle time: paced at %llu B/s", h.pace);
	h.state = BBR3_PROBE_RTT, h.probe_rtt_done_us = a.now_us - 1, h.prior_cwnd = 250;
	bbr3_restart(&h, &a);
	CHECK(h.state == BBR3_CRUISE && h.cwnd == 250, "ProbeRTT after idle time: state %u, window %u", h.state, h.cwnd);
}

static int undone;

static void count_undo(struct flow *f)
{
	bbr3_undone(f);
	undone++;
}

// Packets that overtake each other are taken for lost until the reordering is known.
static void reordered(void)
{
	struct path p = scene(100, 60, 0, 1);
	sim.path.jitter = 0.01;
	control.undo = count_undo;
	undone = 0;
	run(40);
	double share = goodput(&sim.flow[0], 20, 40) / limit(&p);
	CHECK(undone > 0 && share >= 0.9, "reordering: undone %d times, %.2f of the path", undone, share);
}

// Handling Application-Limited Sending During PROBE_REFILL.
static void pause_in_refill(const struct change *c)
{
	struct flow *f = &sim.flow[0];
	if (c->is.state == BBR3_REFILL && c->at > 4 && f->app <= 0) {
		f->app = 5e6;
		f->begins = sim.now / 1e9 - f->next * MSS * 8. / f->app;
	} else if (c->is.state == BBR3_UP && f->app > 0) {
		f->app = 0;
	}
}

static void app_limited_in_refill(void)
{
	struct path p = scene(100, 60, 0, 1);
	on_change = pause_in_refill;
	run(12);
	int n = 0;
	for (int i = 0; i < changed; i++)
		if (changes[i].is.state == BBR3_UP && changes[i].at > 4) {
			n++;
			CHECK(near(rate_of(bbr3_max_bw(&changes[i].is)), limit(&p), 0.02, 0), "after a REFILL limited by the application: max_bw %.2f Mb/s",
			      rate_of(bbr3_max_bw(&changes[i].is)) / 1e6);
		}
	double share = arrived(&sim.flow[0], 9, 12) / limit(&p);
	CHECK(n && share >= 0.85, "%d times UP after a REFILL limited by the application, %.2f of the path then", n, share);
}

// Fifteen percent of inflight_longterm stay free in CRUISE.
static bool bounded;

static void see_headroom(const struct bbr3 *h, const struct flow *f)
{
	if (h->state != BBR3_CRUISE || h->inflight_longterm == BBR3_NONE)
		return;
	bounded = true;
	CHECK(f->cwnd <= bbr3_max(h->inflight_longterm - h->inflight_longterm * 3 / 20, 4), "window of %u in CRUISE, inflight_longterm %u", f->cwnd,
	      h->inflight_longterm);
}

static void leaves_headroom(void)
{
	struct path p = scene(100, 60, 0, 0.1);
	on_ack = see_headroom;
	bounded = false;
	run(60);
	struct flow *f = &sim.flow[0];
	double share = goodput(f, 10, 60) / limit(&p), sent = (double)f->sent / f->delivered;
	// After a probe that lost too much, the next one ends where that one did, and if it
	// loses less, another follows at once.
	int cautious = 0, again = 0;
	for (int i = 0; i + 1 < changed; i++) {
		const struct change *c = &changes[i], *next = c + 1;
		if (c->was.state != BBR3_UP || !c->is.probe_precautionary)
			continue;
		cautious++;
		CHECK(c->was.probe_too_high && !c->is.probe_too_high, "a cautious probe after one that lost less");
		while (next < changes + changed && next->is.state == BBR3_CRUISE)
			next++;
		again += next < changes + changed && next->is.state == BBR3_REFILL && !next->is.probe_too_high;
		if (next < changes + changed && next->is.state == BBR3_REFILL && !next->was.probe_too_high)
			CHECK(next->at - c->at <= 3 * p.rtt, "%.2f s after a cautious probe", next->at - c->at);
	}
	CHECK(cautious && again, "%d cautious probes, %d of them go on", cautious, again);
	CHECK(bounded && share >= 0.85 && sent <= 1.02, "a short buffer: inflight_longterm %s, %.2f of the path, %.3f sent for each delivered",
	      bounded ? "set" : "not set", share, sent);
}

// A loss of less than 2 % is tolerated, and a larger one is not.
static void tolerates(double loss, double least, double most)
{
	struct path p = scene(100, 60, loss, 1);
	run(60);
	double share = goodput(&sim.flow[0], 10, 60) / limit(&p);
	CHECK(share >= least && share <= most, "%.1f %% lost: %.2f of the path, want %.2f to %.2f", 100 * loss, share, least, most);
}

// A mark of congestion is answered.
static void marked(void)
{
	struct path p = scene(100, 60, 0, 4);
	sim.path.codel = 0.005, sim.path.ecn = true;
	struct flow *f = &sim.flow[0];
	run(40);
	const struct change *c = change_of(0, BBR3_UP, BBR3_DOWN);
	const struct bbr3 *h = f->state;
	CHECK(f->marked > 0 && c && h->inflight_longterm != BBR3_NONE, "marked %u times, inflight_longterm %u", f->marked, h->inflight_longterm);
	CHECK(goodput(f, 10, 40) >= 0.9 * limit(&p) && queue_percentile(0.95) <= 30, "marked: %.2f of the path, queue of %.1f ms",
	      goodput(f, 10, 40) / limit(&p), queue_percentile(0.95));
}

int main(void)
{
	regular_hosts = true;
	arithmetic();
	history();
	nonsense();
	static const double rates[] = {1, 10, 100, 1000}, rtts[] = {10, 60, 300};
	for (int r = 0; r < 4; r++)
		for (int t = 0; t < 3; t++)
			starts(rates[r], rtts[t]);
	starts_with_loss(0.1, 0, true);
	starts_with_loss(0.1, 20, true);
	starts_with_loss(0.005, 0, false);
	starts_with_loss(0, 20, false);
	drains_by_time();
	cycles(100, 60, 2, 3.1);
	cycles(100, 200, 2, 3.5);
	cycles(10, 20, 0.2, 0.5);   // 17 packets: as many rounds
	cycles(100, 10, 0.6, 0.75); // 83 packets: 63 rounds
	probes_with_loss(change_path, 1);
	probes_with_loss(change_path, 0.1);
	probes_with_loss(lossy_limited, 1);
	app_limited();
	app_limited_in_up();
	down_too_long();
	probes_rtt();
	idles();
	aggregates();
	below_a_packet();
	ten_times(10, 100);
	ten_times(100, 10);
	slope();
	policed();
	undoes();
	restarts();
	reordered();
	app_limited_in_refill();
	leaves_headroom();
	tolerates(0.01, 0.7, 1);
	tolerates(0.005, 0.85, 1);
	tolerates(0.04, 0, 0.5);
	marked();
	struct path p = scene(1, 1, 0, 1);
	clear(p);
	return result();
}
