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
	CHECK(haul_made_up(9000000, HAUL_LOSS_SMALL_Q16 - 1) == 9000000, "little loss");
	// 100 Gb/s over 2 s.
	CHECK(near(haul_segments(FAST_RATE, LONG_RTT_US, 536), FAST_WINDOW, 1e-6, 1), "%u segments", haul_segments(FAST_RATE, LONG_RTT_US, 536));
	// The slower a flow, the longer the queue that it keeps.
	for (u32 rtt_us = 1000; rtt_us <= LONG_RTT_US; rtt_us *= 2)
		for (u64 rate = 10000; rate < FAST_RATE; rate *= 2)
			CHECK(haul_target_us(rtt_us, rate, 1448) >= haul_target_us(rtt_us, 2 * rate, 1448), "%llu at %u us", rate, rtt_us);
	// CUBIC's window, RFC 9438: back at W_max after K, and 0.4 segments per
	// cubic second away from it.
	struct haul h = {.window = 1000, .window_max = 1000};
	haul_cubic_cut(&h, 0);
	CHECK(h.window == 800 && near(h.k_ms, 1000 * cbrt(200 / 0.4), 1e-3, 1), "cut to %u, K %u ms", h.window, h.k_ms);
	for (u32 t_ms = 0; t_ms < 30000; t_ms += 100) {
		double away = (t_ms - (double)h.k_ms) / 1000, want = 1000 + 0.4 * away * away * away;
		u32 got = haul_cubic(&h, t_ms * 1000, 10000000);
		CHECK(near(got, want, 0.01, 2), "%u ms after a cut: %u, want %.0f", t_ms, got, want);
	}
}

// Whatever the kernel tells, pace and window stay within their bounds.
static void nonsense(void)
{
	struct haul h;
	struct haul_ack a = {.srtt_us = 100000, .mss = 1448, .clamp = ~0u};
	haul_init(&h, &a, 10);
	for (int i = 0; i < 500000; i++) {
		a = (struct haul_ack){
			.now_us = any() % 4 ? a.now_us + any_up_to(1u << 22) : (u32)any(),
			.delivered = a.delivered + any_up_to(1u << 24),
			.lost = a.lost + any_up_to(1u << 24) - any_up_to(1u << 20),
			.spurious = a.spurious + any_up_to(1u << 24),
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
			.timeout = any() % 8 == 0,
		};
		haul_update(&h, &a);
		CHECK(h.pace <= HAUL_RATE_MAX && h.pace > 0, "pace %llu", h.pace);
		CHECK(h.cwnd >= 1 && h.cwnd <= WINDOW_MAX && h.cwnd <= a.clamp, "window %u", h.cwnd);
		CHECK(h.mode <= HAUL_TRIAL && h.floor_q16 <= HAUL_LOSS_MAX_Q16, "mode %u, floor %u", h.mode, h.floor_q16);
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

static void among_themselves(void)
{
	struct path p = scene(100, 63, 0, 1);
	for (int i = 0; i < 4; i++)
		add(&haul_control, 0);
	run(60);
	double sum = 0, squares = 0;
	for (int i = 0; i < 4; i++) {
		double share = goodput(&sim.flow[i], 30, 60) / limit(&p);
		sum += share, squares += share * share;
	}
	CHECK(sum * sum / 4 / squares >= 0.95 && sum >= 0.95, "four flows: Jain's index %.3f, together %.3f", sum * sum / 4 / squares, sum);

	p = scene(100, 63, 0, 1);
	add(&haul_control, 0);
	struct flow *late = add(&haul_control, 20);
	run(60);
	double share = arrived(late, 34, 36) / limit(&p);
	CHECK(share >= 0.3, "a late joiner has %.3f after 15 s", share);
}

static void beside_cubic(double queue_bdp, int rivals)
{
	struct path p = scene(100, 63, 0, queue_bdp);
	struct flow *f = add(&haul_control, 0);
	for (int i = 0; i < rivals; i++)
		add(&cubic, 0);
	run(60);
	double share = goodput(f, 30, 60) / limit(&p) * (rivals + 1), others = 0;
	for (int i = 1; i <= rivals; i++)
		others += goodput(&sim.flow[i], 30, 60) / limit(&p) * (rivals + 1) / rivals;
	CHECK(share >= 0.5, "beside %d with %.1f BDP: %.2f of the fair share", rivals, queue_bdp, share);
	CHECK(others >= 0.5, "%d beside with %.1f BDP: %.2f of the fair share", rivals, queue_bdp, others);
}

// For some time the path is another; then it must be used again within 5 s.
static void recovers(const char *what, struct path during)
{
	struct path p = scene(100, 100, 0.01, 1);
	during.queue_bytes = p.queue_bytes;
	struct flow *f = add(&haul_control, 0);
	sim.changes = 2;
	sim.change[0] = during, sim.change_at[0] = 20;
	sim.change[1] = p, sim.change_at[1] = 35;
	run(45);
	double before = arrived(f, 15, 20) / limit(&p), after = arrived(f, 40, 45) / limit(&p);
	CHECK(before >= 0.9 && after >= 0.8 * before, "%s: %.2f before, %.2f after", what, before, after);
	CHECK(f->sent < 1.5 * f->delivered, "%s: %.2f sent for each delivered", what, (double)f->sent / f->delivered);
}

int main(void)
{
	arithmetic();
	nonsense();
	static const double rates[] = {10, 100}, rtts[] = {20, 63, 150, 300};
	for (int r = 0; r < 2; r++)
		for (int t = 0; t < 4; t++)
			fills(rates[r], rtts[t], 0, 0.95, false);
	fills(1000, 63, 0, 0.95, false);
	fills(100, 300, 0.01, 0.92, false);
	fills(100, 300, 0.10, 0.92, false);
	fills(100, 300, 0.10, 0.92, true);
	fills(100, 300, 0.20, 0.85, false);
	among_themselves();
	beside_cubic(0.5, 1);
	beside_cubic(1, 1);
	beside_cubic(4, 1);
	beside_cubic(1, 4);
	struct path normal = scene(100, 100, 0.01, 1), during = normal;
	during.rate = 10e6;
	recovers("a tenth of the rate", during);
	during = normal, during.rtt = 0.3;
	recovers("three times the round trip", during);
	during = normal, during.loss = 0.5;
	recovers("half lost", during);
	during = normal, during.policer = 50e6;
	recovers("policed", during);
	clear(normal);
	return result();
}
