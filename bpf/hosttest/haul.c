//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "haulpath.h"

static void arithmetic(void)
{
	for (int i = 0; i < 300000; i++) {
		u64 n = i < 100000 ? (u64)i : any_up_to(1ull << 41);
		u64 root = haul_sqrt(n);
		CHECK(root * root <= n && (root + 1) * (root + 1) > n, "sqrt(%llu): %llu", n, root);
		n = i < 100000 ? (u64)i : any_up_to(~0ull >> 1);
		root = haul_cbrt(n);
		__uint128_t above = (__uint128_t)(root + 1) * (root + 1) * (root + 1);
		CHECK(root * root * root <= n && above > n, "cbrt(%llu): %llu", n, root);

		u64 rate = any_up_to(HAUL_RATE_MAX);
		u32 factor = any_up_to(4 * HAUL_ONE);
		double want = (double)rate * factor / HAUL_ONE;
		CHECK(near(haul_scale(rate, factor), want < HAUL_RATE_MAX ? want : HAUL_RATE_MAX, 1e-9, 1), "%llu by %u", rate, factor);

		u32 packets = any_up_to(1u << 26), mss = any_up_to(1u << 16), us = any_up_to(1u << 24) + 1;
		want = (double)packets * mss * 1e6 / us;
		CHECK(near(haul_rate_of(packets, mss, us), want < HAUL_RATE_MAX ? want : HAUL_RATE_MAX, 1e-9, 1), "%u of %u in %u us", packets, mss, us);

		u32 floor = any_up_to(HAUL_ONE);
		u64 made_up = haul_made_up(rate, floor);
		CHECK(made_up >= rate || made_up == HAUL_RATE_MAX, "%llu past a loss of %u: %llu", rate, floor, made_up);
		CHECK(made_up <= 2 * rate + 1, "%llu past a loss of %u: %llu", rate, floor, made_up);
	}
	// A tenth of the packets lost takes a ninth more.
	CHECK(near(haul_made_up(9000000, HAUL_ONE / 10), 10e6, 1e-4, 0), "past 10 %%: %llu", haul_made_up(9000000, HAUL_ONE / 10));
	CHECK(haul_made_up(9000000, 0) == 9000000, "no loss");
	// 100 Gb/s over 2 s.
	CHECK(near(haul_segments(FAST_RATE, LONG_RTT_US, 536), FAST_WINDOW, 1e-6, 1), "%u segments", haul_segments(FAST_RATE, LONG_RTT_US, 536));
	// The slower a flow, the longer the queue that it keeps.
	for (u32 rtt_us = 1000; rtt_us <= LONG_RTT_US; rtt_us *= 2)
		for (u64 rate = 10000; rate < FAST_RATE; rate *= 2)
			for (u32 room_us = 1000; room_us < LONG_RTT_US; room_us *= 4)
				CHECK(haul_target_us(rtt_us, rate, 1448, room_us) >= haul_target_us(rtt_us, 2 * rate, 1448, room_us), "%llu at %u us, room for %u", rate, rtt_us, room_us);
	// CUBIC's window, RFC 9438: back at W_max after K, and 0.4 segments per
	// cubic second away from it.
	struct haul h = {.cwnd = 1000, .window_max = 1000};
	haul_cubic_cut(&h, 0);
	CHECK(h.cwnd == 700 && near(h.k_ms, 1000 * cbrt(300 / 0.4), 1e-3, 1), "cut to %u, K %u ms", h.cwnd, h.k_ms);
	for (u32 t_ms = 0; t_ms < 30000; t_ms += 100) {
		double away = (t_ms - (double)h.k_ms) / 1000, want = 1000 + 0.4 * away * away * away;
		u32 got = haul_cubic(&h, t_ms * 1000, 10000000);
		CHECK(near(got, want, 0.01, 2), "%u ms after a cut: %u, want %.0f", t_ms, got, want);
	}
	// Ages are right beyond the range of a clock of 32 bits.
	for (u64 minutes = 0; minutes <= 60; minutes++)
		for (u64 up_us = 0; up_us < 3 * (1ull << 32); up_us += 1ull << 29)
			CHECK(haul_since(up_us + minutes * 60000000, up_us) == minutes * 60000000, "%llu minutes", minutes);
}

// What the kernel's counters and clock can do: the count of delivered packets wraps, the
// clock has whole microseconds, and round trips are of 5 us or of 2 s.
static void extremes(void)
{
	// The share of loss is pooled over as many packets after the wrap as before it.
	struct haul_ack a = {.srtt_us = 100000, .mss = 1448, .clamp = ~0u, .delivered = ~0u - 200000};
	struct haul h;
	struct haul_path path = {};
	haul_init(&h, &a, 10);
	for (u32 i = 0; i < 5000; i++) {
		a.delivered += 99, a.sent += 100, a.lost++, a.now_us += 100000;
		h.mode = HAUL_CRUISE, path.floor = (struct haul_floor){.share_q16 = 655, .most_q16 = 655};
		haul_learn(&h, &path, a.now_us);
		h.pace = h.rate = 1448000;
		haul_end_epoch(&h, &a, &path);
		u32 burst = h.loss_q16;
		struct haul one = h;
		haul_pool_loss(&one, &path, 3, 40);
		CHECK(i < 200 || (one.loss_q16 >= burst && one.loss_q16 <= haul_explained_q16(&h)), "delivered %u: 3 of 43 lost make a share of %u in place of %u",
		      a.delivered, one.loss_q16, burst);
	}
	CHECK(h.ever >= 400000, "delivered ever: %u", h.ever);

	// 100 Gb/s: 48 packets take 5.6 us.
	path = (struct haul_path){};
	a = (struct haul_ack){.srtt_us = 6, .rtt_us = 6, .mss = 1448, .clamp = ~0u};
	haul_init(&h, &a, 10);
	double packets = 0;
	u32 then[8] = {0};
	for (u32 us = 1; us < 100000; us++) {
		packets += FAST_RATE / 1448e6;
		a.now_us = us, a.delivered = packets, a.sent = packets + 50, a.in_flight = 50;
		a.prior_delivered = then[us % 8], a.sample_us = 6, a.sample_delivered = a.delivered - then[(us + 2) % 8];
		then[us % 8] = a.delivered;
		if (haul_update(&h, &a))
			haul_update_epoch(&h, &a, &path);
		haul_apply(&h, &a);
		h.pace = h.rate = 2 * FAST_RATE; // so that it does not bound what arrives
		CHECK(us < 1000 || h.delivery <= 1.02 * FAST_RATE, "100 Gb/s in whole us: %llu", h.delivery);
	}

	// Reno's part of CUBIC's window grows by 0.53 segments in a round trip below 1 ms too.
	h = (struct haul){.cwnd = 1000, .window_max = 1000};
	haul_cubic_cut(&h, 0);
	CHECK(near(haul_cubic(&h, 30000, 80), 700 + 0.529 * 30000 / 80, 0.01, 1), "30 ms after a cut at 80 us: %u", haul_cubic(&h, 30000, 80));

	// The timer waits for 4 s at most, but not less than what is on the way takes.
	static const u32 waits[][3] = {{0, 300000, 4000}, {0, 2000000, 4000}, {0, 3000000, 6000}, {100000, 12000000, 24000}, {12000000, 300000, 24000}, {0, 100000000, 120000}};
	for (u32 i = 0; i < sizeof waits / sizeof *waits; i++) {
		h = (struct haul){.last_ack_us = 1000000000 - waits[i][0]};
		CHECK(haul_rto_max_ms(&h, waits[i][1], 1000000000) == waits[i][2], "%u us silent, %u us of round trip: %u ms", waits[i][0], waits[i][1], haul_rto_max_ms(&h, waits[i][1], 1000000000));
	}
}

// With any input from the kernel, pace and window stay within their bounds.
static void nonsense(void)
{
	struct haul h;
	struct haul_path path = {};
	struct haul_ack a = {.srtt_us = 100000, .mss = 1448, .clamp = ~0u};
	haul_init(&h, &a, 10);
	for (int i = 0; i < 500000; i++) {
		a = (struct haul_ack){
			.now_us = any() % 4 ? a.now_us + any_up_to(1u << 22) : any(),
			.delivered = a.delivered + any_up_to(1u << 24),
			.lost = a.lost + any_up_to(1u << 24) - any_up_to(1u << 20),
			.acked = a.in_flight,
			.spurious = a.spurious + any_up_to(1u << 24),
			.marked = a.marked + (any() % 8 ? 0 : any_up_to(1u << 24)),
			.sent = a.sent + any_up_to(1u << 24),
			.prior_delivered = a.delivered - any_up_to(1u << 24),
			.sample_delivered = any_up_to(~0u),
			.sample_us = any_up_to(~0u),
			.rtt_us = any_up_to(~0u),
			.srtt_us = any_up_to(~0u >> 3),
			.in_flight = any_up_to(~0u),
			.mss = any_up_to(65535) + 1,
			.clamp = any() % 2 ? ~0u : 1 + any_up_to(~0u - 1),
			.limited = any() % 8 == 0,
		};
		if (haul_update(&h, &a))
			haul_update_epoch(&h, &a, i % 2 ? &path : 0);
		haul_apply(&h, &a);
		CHECK(h.pace <= HAUL_RATE_MAX && h.pace > 0, "pace %llu", h.pace);
		CHECK(h.cwnd >= 1 && h.cwnd <= WINDOW_MAX && h.cwnd <= a.clamp, "window %u", h.cwnd);
		CHECK(h.mode <= HAUL_RAISE && h.floor_q16 <= HAUL_LOSS_MAX_Q16, "mode %u, floor %u", h.mode, h.floor_q16);
	}
}

// Shared state of connections to one destination.
static void shared(void)
{
	struct haul_path path = {};
	struct haul a = {.delivery = 30000000, .room_us = ~0u, .mode = HAUL_CRUISE}, b = a;
	b.delivery = 10000000;
	u64 now_us = 100000000, period_us = 1u << HAUL_SLOT;
	haul_learn(&a, &path, now_us);
	CHECK(a.others == 0 && a.mean == 0 && a.room_us == ~0u, "alone: %u others, %llu B/s each", a.others, a.mean);
	for (int i = 0; i < 2; i++, now_us += period_us) {
		haul_learn(&a, &path, now_us);
		haul_learn(&b, &path, now_us + 1);
	}
	haul_learn(&a, &path, now_us);
	CHECK(a.others == 1 && a.mean == 20000000 && haul_together(&a, &path) == 40000000, "%u others, %llu B/s each, %llu together", a.others, a.mean, haul_together(&a, &path));

	struct haul_ack ack = {.now_us = now_us};
	haul_prove_floor(&a, &ack, &path, 10, 990);
	const u32 proved = haul_share_q16(10, 990);
	b.mode = HAUL_RAISE, b.floor_q16 = 5000;
	haul_learn(&b, &path, now_us);
	haul_tell(&b, &path);
	CHECK(b.floor_q16 == 5000 && path.floor.share_q16 == proved, "while a raise tries %u, %u is known", b.floor_q16, path.floor.share_q16);
	b.mode = HAUL_COMPETE;
	haul_learn(&b, &path, now_us);
	struct haul new = {.room_us = ~0u};
	haul_learn(&new, &path, now_us);
	CHECK(a.floor_q16 == proved && b.floor_q16 == proved && new.floor_q16 == proved && new.loss_q16 == proved,
	      "one knows %u, the others %u and %u, with %u lost of late", a.floor_q16, b.floor_q16, new.floor_q16, new.loss_q16);
	path.floor.share_q16 = 300; // by another
	haul_tell(&a, &path);
	CHECK(path.floor.share_q16 == 300, "told what it had not learnt: %u", path.floor.share_q16);
	path.floor.share_q16 = proved;

	// An unused row is out of date; a connection that returns to it knows more.
	now_us += 2 * HAUL_PROBE_INTERVAL_US + period_us;
	haul_learn(&b, &path, now_us);
	CHECK(b.others == 0 && b.mean == 0 && path.floor.share_q16 == proved, "long after: %u others, floor %u", b.others, path.floor.share_q16);
	new = (struct haul){.room_us = ~0u};
	haul_learn(&new, &path, now_us + 2 * HAUL_PROBE_INTERVAL_US + 1);
	CHECK(path.floor.share_q16 == 0, "a new connection finds a floor of %u", path.floor.share_q16);

	// A clock that is behind another CPU's counts in no other period.
	haul_learn(&a, &path, now_us + 3 * 2 * HAUL_PROBE_INTERVAL_US);
	u32 all = path.all;
	haul_learn(&b, &path, now_us);
	CHECK(all == 1 && path.all == 1, "%u connections, then %u", all, path.all);
}

// Which connection begins with what the path carried.
static void resumed(void)
{
	const u64 now_us = 3 * (u64)HAUL_CARRIED_US;
	struct haul_ack a = {.now_us = now_us, .srtt_us = 300000, .mss = 1448, .clamp = ~0u, .delivered = HAUL_RESUME_PACKETS, .in_flight = 4};
	const struct haul_carried carried = {.rate = 12000000, .seen_us = now_us - 60000000, .rtt_us = 300000, .floor_q16 = 6554};
	static const struct {
		const char *what;
		u32 ago_us, rtt_us, others;
		u64 rate;
		bool just_resumed, jumps;
	} cases[] = {
		{"a minute ago", 60000000, 300000, 0, 12000000, false, true},
		{"too long ago", HAUL_CARRIED_US, 300000, 0, 12000000, false, false},
		{"a round trip below half", 60000000, 149999, 0, 12000000, false, false},
		{"a shorter one", 60000000, 150000, 0, 12000000, false, true},
		{"a queue of an eighth", 60000000, 337500, 0, 12000000, false, true},
		{"a longer one", 60000000, 337501, 0, 12000000, false, false},
		{"beside another", 60000000, 300000, 1, 12000000, false, false},
		{"just after another", 60000000, 300000, 0, 12000000, true, false},
		{"nothing is known", 60000000, 300000, 0, 0, false, false},
		{"hardly more than the first window", 60000000, 300000, 0, 100000, false, false},
	};
	for (u32 i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct haul h;
		struct haul_path path = {.used_us = now_us, .carried = carried};
		path.carried.rate = cases[i].rate;
		path.carried.seen_us = now_us - cases[i].ago_us;
		path.resume_us = cases[i].just_resumed ? now_us - 100000 : 0;
		haul_init(&h, &a, 10);
		h.min_rtt_start_us = now_us;
		h.min_rtt_us = cases[i].rtt_us;
		h.others = cases[i].others;
		haul_resume(&h, &a, &path);
		CHECK(h.resume == (cases[i].jumps ? HAUL_UNVALIDATED : HAUL_NORMAL), "%s: phase %u", cases[i].what, h.resume);
		if (!cases[i].jumps)
			continue;
		haul_apply(&h, &a);
		CHECK(near(h.pace, haul_made_up(6000000, 6554), 1e-3, 0) && h.floor_q16 == 6554, "%s: pace %llu, floor %u", cases[i].what, h.pace, h.floor_q16);
		CHECK(path.floor.share_q16 == 6554 && path.resume_us == now_us, "%s: told a floor of %u", cases[i].what, path.floor.share_q16);
	}
	// What is remembered: not of a connection that lacks data, and beside a rival less.
	struct haul_carried c = {};
	struct haul h = {.mode = HAUL_CRUISE, .bw = 1000, .was_limited = true};
	haul_tell_carried(&h, &c, 0);
	CHECK(c.rate == 0, "without data: %llu", c.rate);
	h.was_limited = false, h.floor_q16 = 50;
	haul_tell_carried(&h, &c, 0);
	CHECK(c.rate == 1000 && c.floor_q16 == 50, "cruises: %llu, floor %u", c.rate, c.floor_q16);
	h.mode = HAUL_COMPETE, h.floor_q16 = 0;
	for (u64 got = 2000; got; got -= 1000) {
		h.delivery = got;
		haul_tell_carried(&h, &c, 0);
	}
	CHECK(c.rate == 1000 && c.floor_q16 == 0, "a rival that leaves as much: %llu, floor %u", c.rate, c.floor_q16);
	h.delivery = 0;
	haul_tell_carried(&h, &c, 0);
	CHECK(c.rate == 750, "a rival that leaves nothing: %llu", c.rate);
	// A connection that ends is no longer one of the others.
	struct haul_path path = {};
	struct haul first = {.delivery = 1000, .mode = HAUL_CRUISE, .room_us = ~0u}, second = first;
	haul_learn(&first, &path, now_us);
	haul_forget(&first, &path);
	haul_learn(&second, &path, now_us + 1);
	CHECK(second.others == 0 && path.flows == 1 && path.sum == 1000, "%u others, %u flows, %llu", second.others, path.flows, path.sum);
	haul_learn(&second, &path, now_us + (1u << HAUL_SLOT));
	second.told--;
	haul_forget(&second, &path);
	CHECK(path.flows_before == 0 && path.sum_before == 0, "%u flows before, %llu", path.flows_before, path.sum_before);
}

// By which factor start-up grows.
static void startup_factor(void)
{
	static const struct {
		const char *what;
		u32 min_rtt_us, recent_us, quarter_us, samples, lost, others, flat, got, factor;
	} cases[] = {
		{"a short round trip", 249999, ~0u, ~0u, 0, 0, 0, 0, 128, 2},
		{"a long one", 250000, ~0u, ~0u, 0, 0, 0, 0, 128, 3},
		{"a queue on a short one", 100000, 110000, 110000, 12, 0, 0, 0, 128, 2},
		{"no queue", 640000, 650000, 650000, 12, 0, 0, 0, 128, 3},
		{"a queue of a 64th", 640000, 650001, 650001, 12, 0, 0, 0, 128, 1},
		{"a queue that has gone", 640000, 650001, 640000, 4, 0, 0, 0, 128, 3},
		{"a queue, and hardly a packet since", 640000, 650001, 640000, 3, 0, 0, 0, 128, 1},
		{"a queue that has just come", 640000, 640000, 650001, 12, 0, 0, 0, 128, 3},
		{"4 ms, at least", 250000, 254000, 254000, 12, 0, 0, 0, 128, 3},
		{"more", 250000, 254001, 254001, 12, 0, 0, 0, 128, 1},
		{"a queue beside a small flow", 640000, 650001, 650001, 12, 0, 0, 0, 127, 2},
		{"a lost packet", 300000, ~0u, ~0u, 0, 1, 0, 0, 128, 2},
		{"beside another", 300000, ~0u, ~0u, 0, 0, 1, 0, 128, 2},
		{"a round without growth", 300000, ~0u, ~0u, 0, 0, 0, 1, 128, 2},
	};
	for (u32 i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct haul h = {.min_rtt_start_us = 1, .min_rtt_us = cases[i].min_rtt_us, .recent_low_us = cases[i].recent_us,
				 .quarter_low_us = cases[i].quarter_us, .quarter_samples = cases[i].samples,
				 .others = cases[i].others, .flat = cases[i].flat, .got = cases[i].got};
		struct haul_ack a = {.lost = cases[i].lost};
		u32 factor = haul_startup_factor(&h, &a);
		CHECK(factor == cases[i].factor, "%s: %u, want %u", cases[i].what, factor, cases[i].factor);
		h.min_rtt_start_us = 0;
		CHECK(haul_startup_factor(&h, &a) == 2, "%s, without a round trip of data: not 2", cases[i].what);
	}
}

// scene is a simulated path with flows on it.
static struct path scene(double rate_mbps, double rtt_ms, double loss, double queue_bdp)
{
	struct path p = {.rate = rate_mbps * 1e6, .rtt = rtt_ms / 1e3, .loss = loss, .queue_bytes = queue_bdp * rate_mbps * 125 * rtt_ms};
	clear(p);
	return p;
}

static void fills(double rate_mbps, double rtt_ms, double loss, double least, bool with_loss_after)
{
	struct path p = scene(rate_mbps, rtt_ms, loss, 1);
	sim.path.place = p.place = with_loss_after ? AFTER : BEFORE;
	struct flow *f = add(&haul_control, 0);
	run(40);
	double share = goodput(f, 20, 40) / limit(&p), sent = (double)f->sent / f->delivered;
	double queue = queue_percentile(0.95), queue_most = rtt_ms / 8 > 25 ? rtt_ms / 8 : 25;
	CHECK(share >= least, "%.0f Mb/s, %.0f ms, %.0f %% lost: %.3f of the limit, want %.3f", rate_mbps, rtt_ms, 100 * loss, share, least);
	CHECK(sent <= 1.05 / (1 - loss), "%.0f Mb/s, %.0f ms, %.0f %% lost: %.3f sent for each delivered", rate_mbps, rtt_ms, 100 * loss, sent);
	if (!loss && rtt_ms <= 300) // at 600 ms start-up is much of the time
		CHECK(queue <= queue_most, "%.0f Mb/s, %.0f ms: queue of %.1f ms, want %.1f", rate_mbps, rtt_ms, queue, queue_most);
}

// Figures that depend on which packets get lost are measured in several runs.
#define RUNS 9

static double median(double v[RUNS]);

// Packets overtake each other by up to 100 ms. The kernel's PAWS is not simulated.
static void overtaken(void)
{
	double share[RUNS];
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(10, 200, 0.1, 1);
		sim.path.jitter = 0.05;
		struct flow *f = add(&haul_control, 0);
		run(60);
		share[i] = goodput(f, 0, 60) / limit(&p);
	}
	CHECK(median(share) >= 0.8, "100 ± 50 ms each way, 10 %% lost: %.2f of the path", median(share));
}

static double median(double v[RUNS])
{
	for (int i = 0; i < RUNS; i++)
		for (int j = i + 1; j < RUNS; j++)
			if (v[j] < v[i]) {
				double t = v[i];
				v[i] = v[j], v[j] = t;
			}
	return v[RUNS / 2];
}

// look adds a span of time that is measured by itself. used returns a flow's share of
// some rate in a span, needless the packets sent in it for each delivered.
static void look(double from, double to)
{
	sim.span[sim.spans].from = from;
	sim.span[sim.spans++].to = to;
}

static double used(int span, int flow, double of_bps)
{
	struct flow *f = &sim.flow[flow];
	struct span *s = &sim.span[span];
	return (f->at_to[span].arrived - f->at_from[span].arrived) * MSS * 8 / (s->to - s->from) / of_bps;
}

static double needless(int span)
{
	double sent = 0, delivered = 0;
	for (int i = 0; i < sim.flows; i++)
		if (sim.flow[i].state) {
			sent += sim.flow[i].at_to[span].sent - sim.flow[i].at_from[span].sent;
			delivered += sim.flow[i].at_to[span].delivered - sim.flow[i].at_from[span].delivered;
		}
	return sent / delivered;
}

static double queued(int span)
{
	return span_percentile(&sim.span[span], 0.95);
}

// jain is Jain's index of the flows' rates in a span.
static double jain(int span)
{
	double sum = 0, squares = 0;
	for (int i = 0; i < sim.flows; i++)
		sum += used(span, i, 1), squares += used(span, i, 1) * used(span, i, 1);
	return sum * sum / sim.flows / squares;
}

// A target is never below the jitter, whatever the state is: a shorter one would yield to a
// queue that is not there.
static void targets(void)
{
	for (int i = 0; i < 200000; i++) {
		struct haul h = {.min_rtt_us = any_up_to(HAUL_RTT_MAX_US), .rate = any_up_to(HAUL_RATE_MAX), .mean = any() % 2 ? any_up_to(HAUL_RATE_MAX) : 0,
				 .bw = any_up_to(HAUL_RATE_MAX), .room_us = any() % 2 ? ~0u : any_up_to(1u << 24), .noise_us = any_up_to(1u << 22),
				 .mark_us = any() % 2, .mark_room_us = any_up_to(1u << 20)};
		struct haul_ack a = {.now_us = 1000, .mss = 1 + any_up_to(65535)};
		u32 target = haul_queue_target_us(&h, &a);
		CHECK(target >= h.noise_us, "target of %u us with %u us of jitter", target, h.noise_us);
		CHECK(h.mean || target >= haul_grain_us(h.rate, a.mss) / 2, "target of %u us at %llu B/s", target, h.rate);
	}
}

// On a path of its own haul comes to rest nowhere but at a full path: with an empty queue, and
// no more loss than its floor, it has at least 0.9 of the path. Nor does it send in vain.
static void rests(void)
{
	for (int i = 0; i < 24; i++) {
		double rate_mbps = 2 * pow(10, uniform()), rtt_ms = 10 * pow(20, uniform()), loss = i % 3 ? 0 : 0.02;
		struct path p = scene(rate_mbps, rtt_ms, loss, 0.25 + uniform());
		struct flow *f = add(&haul_control, 0);
		look(20, 40);
		run(40);
		const struct haul *h = f->state;
		double share = used(0, 0, limit(&p)), sent = needless(0);
		bool rest = queued(0) <= 1 && h->loss_q16 <= haul_explained_q16(h);
		CHECK(share >= 0.9 || !rest, "%.1f Mb/s, %.0f ms, %.2f BDP, %.0f %% lost: %.2f of the path, queue of %.1f ms", rate_mbps, rtt_ms,
		      p.queue_bytes / (rate_mbps * 125 * rtt_ms), 100 * loss, share, queued(0));
		// The least window overfills a path that holds little more.
		double holds = (p.rate * p.rtt / 8 + p.queue_bytes) / PACKET;
		CHECK(sent <= 1.1 / (1 - loss) || holds < 2 * HAUL_WINDOW_MIN, "%.1f Mb/s, %.0f ms, %.0f %% lost: %.3f sent for each delivered", rate_mbps, rtt_ms, 100 * loss, sent);
	}
}

// A round trip of 2 s, and a link of 1 kb/s, where a packet takes 12 s.
static void slow_paths(void)
{
	struct path p = scene(5, 2000, 0, 1);
	struct flow *f = add(&haul_control, 0);
	run(60);
	CHECK(goodput(f, 30, 60) >= 0.9 * limit(&p), "2 s: %.2f of the path", goodput(f, 30, 60) / limit(&p));
	double sent[2];
	for (int i = 0; i < 2; i++) {
		p = scene(0.001, 300, 0, 10);
		f = add(i ? &cubic : &haul_control, 0);
		run(1000);
		sent[i] = (double)f->sent / f->delivered;
	}
	CHECK(sent[0] <= 1.5 * sent[1], "1 kb/s: %.1f sent for each delivered, CUBIC %.1f", sent[0], sent[1]);
}

// So few losses that no floor is proved in time. They come from a short queue, and the path
// has carried a longer one.
static void loses_little(double rate_mbps, double rtt_ms, double loss)
{
	double share[RUNS];
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(rate_mbps, rtt_ms, loss, 1);
		add(&haul_control, 0);
		look(5, 60);
		run(60);
		share[i] = used(0, 0, limit(&p));
	}
	CHECK(median(share) >= 0.9, "%.0f Mb/s, %.0f ms, %.2f %% lost: %.3f of the path", rate_mbps, rtt_ms, loss * 100, median(share));
}

// A satellite network: handovers, a delay that wanders, a rate that walks, and few losses. A
// test of a queue may take the wandering for a rival, and must not cost the floor.
static void hands_over(void)
{
	double share[RUNS];
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(60, 40, 0.002, 3);
		sim.path.handover = 15, sim.path.gap = 0.05, sim.path.shift = 0.03;
		sim.path.wander = 0.002, sim.path.tau = 0.15;
		sim.path.fade = 0.15, sim.path.fade_tau = 3;
		struct flow *f = add(&haul_control, 0);
		run(60);
		share[i] = goodput(f, 0, 60) / limit(&p);
	}
	CHECK(median(share) >= 0.85, "handovers: %.2f of the path", median(share));
}

static void among_themselves(void)
{
	double fair[RUNS], together[RUNS], late[RUNS], sent[RUNS];
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(100, 63, 0, 1);
		for (int n = 0; n < 4; n++)
			add(&haul_control, 0);
		look(30, 60);
		run(60);
		fair[i] = jain(0), together[i] = 0;
		for (int n = 0; n < 4; n++)
			together[i] += used(0, n, limit(&p));

		p = scene(100, 63, 0, 1);
		add(&haul_control, 0);
		add(&haul_control, 20);
		look(34, 36);
		run(36);
		late[i] = used(0, 1, limit(&p));
	}
	double index = median(fair);
	CHECK(index >= 0.95 && median(together) >= 0.95, "four flows: Jain's index %.3f, together %.3f", index, median(together));
	CHECK(median(late) >= 0.3, "a late joiner has %.3f after 15 s", median(late));

	// A buffer of a tenth of the path, in which no flow sees a queue.
	for (int i = 0; i < RUNS; i++) {
		scene(100, 63, 0, 0.1);
		for (int n = 0; n < 4; n++)
			add(&haul_control, 0);
		look(0, 60);
		look(30, 60);
		run(60);
		sent[i] = needless(0), fair[i] = jain(1);
	}
	CHECK(median(sent) <= 1.1 && median(fair) >= 0.9, "four flows, a short buffer: %.3f sent for each delivered, Jain's index %.3f", median(sent), median(fair));

	// Fifty, one after the other.
	for (int i = 0; i < RUNS; i++) {
		scene(200, 63, 0, 0.5);
		for (int n = 0; n < 50; n++)
			add(&haul_control, n * 0.1);
		look(30, 60);
		run(60);
		sent[i] = needless(0), fair[i] = jain(0);
	}
	CHECK(median(sent) <= 1.1 && median(fair) >= 0.9, "fifty flows: %.3f sent for each delivered, Jain's index %.3f", median(sent), median(fair));

	// A path that loses packets by itself: one flow proves the floor for all.
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(100, 63, 0.01, 1);
		for (int n = 0; n < 6; n++)
			add(&haul_control, n * 0.5);
		look(30, 60);
		run(60);
		sent[i] = needless(0), fair[i] = jain(0), together[i] = 0;
		for (int n = 0; n < 6; n++)
			together[i] += used(0, n, limit(&p));
	}
	CHECK(median(fair) >= 0.9 && median(together) >= 0.8 && median(sent) <= 1.1 / 0.99,
	      "six flows, 1 %% lost: Jain's index %.3f, together %.3f, %.3f sent for each delivered", median(fair), median(together), median(sent));
}

static void beside_cubic(double rate_mbps, double rtt_ms, double queue_bdp, double codel, int rivals)
{
	double ours[RUNS], theirs[RUNS], seconds = rtt_ms < 20 ? 20 : 60;
	for (int i = 0; i < RUNS; i++) {
		struct path p = scene(rate_mbps, rtt_ms, 0, queue_bdp);
		sim.path.codel = codel;
		add(&haul_control, 0);
		for (int n = 0; n < rivals; n++)
			add(&cubic, 0);
		look(seconds / 2, seconds);
		run(seconds);
		ours[i] = used(0, 0, limit(&p)) * (rivals + 1), theirs[i] = 0;
		for (int n = 1; n <= rivals; n++)
			theirs[i] += used(0, n, limit(&p)) * (rivals + 1) / rivals;
	}
	CHECK(median(ours) >= 0.5, "beside %d with %.1f BDP: %.2f of the fair share", rivals, queue_bdp, median(ours));
	CHECK(median(theirs) >= 0.5, "%d beside with %.1f BDP: %.2f of the fair share", rivals, queue_bdp, median(theirs));
}

// The path changes for some time. Then the flow must use it again within 5 s, and never
// leave it unused.
static void recovers(const char *what, struct path during)
{
	double before[RUNS], after[RUNS], sent[RUNS], least = 1;
	struct path p = scene(100, 100, 0.01, 1);
	during.queue_bytes = p.queue_bytes;
	for (int i = 0; i < RUNS; i++) {
		clear(p);
		add(&haul_control, 0);
		sim.changes = 2;
		sim.change[0] = during, sim.change_at[0] = 20;
		sim.change[1] = p, sim.change_at[1] = 35;
		look(15, 20);
		look(40, 45);
		look(65, 75);
		look(0, 75);
		run(75);
		before[i] = used(0, 0, limit(&p)), after[i] = used(1, 0, limit(&p)), sent[i] = needless(3);
		least = used(2, 0, limit(&p)) < least ? used(2, 0, limit(&p)) : least;
	}
	double was = median(before), is = median(after);
	CHECK(was >= 0.9 && is >= 0.8 * was, "%s: %.2f before, %.2f after", what, was, is);
	CHECK(least >= 0.5, "%s: %.2f from 30 s after it", what, least);
	// A path that loses half carries as much if twice that is sent.
	double due = (60 / (1 - p.loss) + 15 / (1 - during.loss)) / 75;
	CHECK(median(sent) < 1.1 * due, "%s: %.2f sent for each delivered", what, median(sent));
}

// The path changes at 20 s, and changes back at some time, if that is not 0. From 5 s
// after the last change the flow uses four fifths of it, and from 15 s nine tenths. From
// 30 s the queue is short.
static void changes(const char *what, struct path p, struct path to, double back)
{
	double soon[RUNS], later[RUNS], queue[RUNS], at = back > 0 ? back : 20;
	struct path last = back > 0 ? p : to;
	to.queue_bytes = p.queue_bytes;
	for (int i = 0; i < RUNS; i++) {
		clear(p);
		add(&haul_control, 0);
		sim.change[0] = to, sim.change_at[0] = 20;
		sim.change[1] = p, sim.change_at[1] = back;
		sim.changes = back > 0 ? 2 : 1;
		look(at + 5, at + 15);
		look(at + 15, at + 60);
		look(at + 30, at + 60);
		run(at + 60);
		soon[i] = used(0, 0, limit(&last)), later[i] = used(1, 0, limit(&last)), queue[i] = queued(2);
	}
	double most = last.rtt * 125 > 25 ? last.rtt * 125 : 25;
	CHECK(median(soon) >= 0.8, "%s: %.2f of the path from 5 s", what, median(soon));
	CHECK(median(later) >= 0.9, "%s: %.2f of the path from 15 s", what, median(later));
	CHECK(median(queue) <= most, "%s: queue of %.1f ms, want %.1f", what, median(queue), most);
}

static void no_traps(void)
{
	// The route becomes longer, on a path that loses little, or nothing.
	struct path p = scene(100, 100, 0.001, 1), to = p;
	to.rtt = 0.13;
	changes("30 ms longer, 0.1 % lost", p, to, 0);
	p = scene(100, 100, 0.003, 1), to = p, to.rtt = 0.2;
	changes("100 ms longer for a while, 0.3 % lost", p, to, 35);
	p = scene(50, 100, 0, 4), to = p, to.rtt = 0.12;
	changes("20 ms longer, a long queue", p, to, 0);
	p = scene(50, 100, 0, 2), to = p, to.rtt = 0.115;
	changes("15 ms longer", p, to, 0);
	changes("15 ms longer for a while", p, to, 59);
	p = scene(11.8, 9, 0, 1.356), to = p, to.rate = 1.18e6;
	changes("a tenth of a slow path", p, to, 35);
	p = scene(100, 100, 0.001, 1), to = p, to.rate = 40e6;
	changes("less than half of the rate", p, to, 0);

	double share[RUNS], sent[RUNS], queue[RUNS];
	// CUBIC leaves a long queue.
	for (int i = 0; i < RUNS; i++) {
		p = scene(100, 100, 0, 4);
		add(&haul_control, 0);
		add(&cubic, 0)->until = 40;
		look(70, 120);
		run(120);
		share[i] = used(0, 0, limit(&p)), queue[i] = queued(0);
	}
	CHECK(median(queue) <= 25 && median(share) >= 0.9, "after CUBIC: queue of %.1f ms, %.2f of the path", median(queue), median(share));

	// A policer with a large bucket.
	for (int i = 0; i < RUNS; i++) {
		p = scene(100, 63, 0, 1);
		p.policer = 50e6, p.bucket = 1e6;
		clear(p);
		add(&haul_control, 0);
		look(10, 60);
		run(60);
		share[i] = used(0, 0, limit(&p)), sent[i] = needless(0);
	}
	CHECK(median(sent) <= 1.15 && median(share) >= 0.8, "policed: %.3f sent for each delivered, %.2f of it used", median(sent), median(share));

	// A slow path.
	for (int i = 0; i < RUNS; i++) {
		p = scene(1.3, 17, 0, 6.5);
		add(&haul_control, 0);
		look(10, 60);
		run(60);
		share[i] = used(0, 0, limit(&p));
	}
	CHECK(median(share) >= 0.9, "1.3 Mb/s: %.2f of it", median(share));

	// Uncontrolled traffic takes four fifths.
	for (int i = 0; i < RUNS; i++) {
		p = scene(100, 63, 0.01, 1);
		add(&haul_control, 0);
		add(&constant, 0)->cbr = 80e6;
		look(0, 60);
		look(30, 60);
		run(60);
		sent[i] = needless(0), share[i] = used(1, 0, limit(&p)), queue[i] = queued(1);
	}
	CHECK(median(sent) <= 1.05 / 0.99 && median(share) >= 0.15 && median(queue) <= 25,
	      "beside 80 Mb/s: %.3f sent for each delivered, %.2f of the path, queue of %.1f ms", median(sent), median(share), median(queue));
}

// The seconds that 10 MB take after another connection.
static double after(struct path p, struct path then, bool cold, bool rival, double *queue_ms)
{
	clear(p);
	add(&haul_control, 0)->until = 12;
	if (rival)
		add(&cubic, 14);
	sim.change[0] = then, sim.change_at[0] = 15;
	sim.changes = 1;
	struct flow *f = add(&haul_control, 18);
	f->bytes = rival ? 0 : 10e6;
	f->cold = cold;
	look(18, 38);
	run(38);
	*queue_ms = queued(0);
	return f->ended - f->begins;
}

// A connection begins with what the path carried: Careful Resume.
static void warm(void)
{
	double cold_s[RUNS], warm_s[RUNS], cold_ms[RUNS], warm_ms[RUNS];
	for (int rtt_ms = 300; rtt_ms <= 600; rtt_ms += 300)
		for (double loss = 0; loss <= 0.1; loss += 0.1) {
			for (int i = 0; i < RUNS; i++) {
				struct path p = scene(100, rtt_ms, loss, 1);
				cold_s[i] = after(p, p, true, false, &cold_ms[i]);
				warm_s[i] = after(p, p, false, false, &warm_ms[i]);
			}
			double saved = (median(cold_s) - median(warm_s)) / rtt_ms * 1e3;
			CHECK(saved >= 2.8, "10 MB over %d ms, %.0f %% lost: %.2f s instead of %.2f, %.1f round trips less", rtt_ms, 100 * loss, median(warm_s), median(cold_s), saved);
		}
	// The path has become narrower, or a rival has come: no longer queue than after a cold start.
	for (int kind = 0; kind < 3; kind++) {
		for (int i = 0; i < RUNS; i++) {
			struct path p = scene(100, kind == 1 ? 63 : 300, 0, kind == 1 ? 1 : 0.5), then = p;
			then.rate = kind == 0 ? 50e6 : kind == 2 ? 25e6 : 100e6;
			cold_s[i] = after(p, then, true, kind == 1, &cold_ms[i]);
			warm_s[i] = after(p, then, false, kind == 1, &warm_ms[i]);
		}
		CHECK(median(warm_ms) <= 2 * median(cold_ms) + 1, "the path has changed (%d): queue of %.1f ms, %.1f after a cold start", kind, median(warm_ms), median(cold_ms));
	}
}

// A long round trip: start-up triples, and makes a shorter queue than doubling did (2.1 BDP).
static void starts_long(void)
{
	for (double rate_mbps = 10; rate_mbps <= 100; rate_mbps *= 10) {
		struct path p = scene(rate_mbps, 600, 0, 4);
		struct flow *f = add(&haul_control, 0);
		run(12);
		double by = rate_mbps < 50 ? 3.7 : 5, share = arrived(f, by, by + 1) / limit(&p), longest = queue_percentile(1) / 600;
		CHECK(share >= 0.9, "%.0f Mb/s, 600 ms: %.3f of the limit after %.1f s", rate_mbps, share, by);
		CHECK(longest <= 1.5 && f->lost == 0, "%.0f Mb/s, 600 ms: a queue of %.2f BDP, %u lost", rate_mbps, longest, f->lost);
	}
}

// A queue that CoDel or PIE marks is a queue. A flow alone keeps it shorter than the marks
// begin, and uses the path. Beside CUBIC marks are congestion, as losses are.
static void marked(void)
{
	double share[RUNS], queue[RUNS], cubics[RUNS];
	static const struct {
		double rate_mbps, rtt_ms;
		bool pie;
	} paths[] = {{10, 63, false}, {100, 63, false}, {100, 150, true}};
	for (u32 n = 0; n < sizeof paths / sizeof *paths; n++) {
		for (int i = 0; i < 2 * RUNS; i++) {
			struct path at = scene(paths[n].rate_mbps, paths[n].rtt_ms, 0, 4);
			sim.path.ecn = true;
			*(paths[n].pie ? &sim.path.pie : &sim.path.codel) = paths[n].pie ? 0.015 : 0.005;
			struct flow *f = add(i % 2 ? &cubic : &haul_control, 0);
			look(10, 40);
			run(40);
			if (i % 2) {
				cubics[i / 2] = queued(0);
				continue;
			}
			queue[i / 2] = queued(0);
			share[i / 2] = used(0, 0, limit(&at));
			CHECK(f->lost == 0 || paths[n].pie, "%u lost although marked", f->lost);
		}
		CHECK(median(share) >= 0.95 && median(queue) <= median(cubics) + 1, "%.0f Mb/s, %.0f ms, %s: %.3f of the path, queue of %.1f ms, CUBIC's %.1f",
		      paths[n].rate_mbps, paths[n].rtt_ms, paths[n].pie ? "PIE" : "CoDel", median(share), median(queue), median(cubics));
	}
	struct path p = scene(100, 63, 0, 4);
	p.codel = 0.005, p.ecn = true;
	clear(p);
	struct flow *f = add(&haul_control, 0);
	add(&cubic, 0);
	look(30, 60);
	run(60);
	CHECK(f->marked > 0 && used(0, 0, limit(&p)) >= 0.25 && used(0, 1, limit(&p)) >= 0.25, "marked %u times: haul %.2f of the path, CUBIC %.2f",
	      f->marked, used(0, 0, limit(&p)), used(0, 1, limit(&p)));
}

// With the argument "all" it simulates all paths, without it a share of those that are judged
// by the median of several runs: they take most of the time.
int main(int argc, char **argv)
{
	bool all = argc > 1 && strcmp(argv[1], "all") == 0;
	arithmetic();
	extremes();
	nonsense();
	shared();
	resumed();
	startup_factor();
	starts_long();
	targets();
	rests();
	slow_paths();
	if (all) {
		warm();
		no_traps();
	}
	static const double rates[] = {10, 100}, rtts[] = {20, 63, 150, 300};
	for (int r = 0; r < 2; r++)
		for (int t = 0; t < 4; t++)
			fills(rates[r], rtts[t], 0, 0.95, false);
	fills(1000, 63, 0, 0.95, false);
	fills(100, 300, 0.01, 0.92, false);
	fills(100, 300, 0.10, 0.92, false);
	fills(100, 300, 0.10, 0.92, true);
	fills(100, 300, 0.20, 0.85, false);
	loses_little(20, 40, 0.0005);
	if (all) {
		loses_little(10, 100, 0.0005);
		loses_little(100, 40, 0.0001);
		loses_little(20, 300, 0.0001);
	}
	overtaken();
	hands_over();
	if (all) {
		among_themselves();
		beside_cubic(100, 63, 0.1, 0, 1);
		beside_cubic(100, 63, 0.5, 0, 1);
	}
	beside_cubic(100, 63, 1, 0, 1);
	if (all) {
		beside_cubic(100, 63, 4, 0, 1);
		beside_cubic(100, 63, 1, 0, 4);
		beside_cubic(100, 63, 4, 0.005, 1);
		beside_cubic(1000, 10, 1.2, 0, 1); // a buffer of 12 ms
		marked();
	}
	struct path normal = scene(100, 100, 0.01, 1), during = normal;
	during.rate = 10e6;
	recovers("a tenth of the rate", during);
	if (all) {
		during = normal, during.rtt = 0.3;
		recovers("three times the round trip", during);
		during = normal, during.loss = 0.5;
		recovers("half lost", during);
		during = normal, during.policer = 50e6;
		recovers("policed", during);
	}
	clear(normal);
	return result();
}
