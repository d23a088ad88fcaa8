// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// TCP Hybla.
//
// Source: C. Caini and R. Firrincieli, "TCP Hybla: a TCP enhancement for
// heterogeneous networks", International Journal of Satellite Communications
// and Networking 22(5), 2004.
//
// A connection gets the sending rate that standard TCP would reach over a
// reference path of round trip RTT0 = 25 ms. With rho = max(RTT/RTT0, 1), each
// acknowledged segment raises the window W by
//
//	2^rho - 1   in slow start,
//	rho^2 / W   in congestion avoidance,
//
// and the first window is rho times the usual one. Losses halve the window, as
// with Reno.
//
// Where this departs from the paper:
//   - RTT is the lowest smoothed round trip so far, so that a standing queue
//     does not make the sender more aggressive.
//   - At 300 ms rho is 12, and slow start would multiply the window by 4096 in
//     one round trip. The paper bounds it by a bandwidth estimate made once, at
//     the start. Here the window is at most HYBLA_LEAD times the delivery of the
//     previous round trip, as long as slow start lasts.
//   - Beyond rho = 16 slow start gets no steeper.
//   - Segments are spaced by the kernel's pacing, at twice the window per round
//     trip in slow start and 1.2 times in avoidance. Before Linux 6.0 only a qdisc
//     like fq spaces them.
//   - A connection that changes to Hybla keeps its window.

#include "tcp.h"
#include "hybla.h"

LICENSE;

struct hybla {
	u64 rho_q16;
	u64 credit_q16;      // growth short of a segment
	u32 min_rtt_us;      // lowest smoothed round trip; 0 if none yet
	u32 round_end;       // the round trip is over when this is acknowledged
	u32 round_delivered; // tp->delivered at its start
	u32 ceiling;         // of slow start during it
};

CHECK_CA_PRIV(struct hybla);

static ALWAYS_INLINE void update_rho(struct tcp_sock *tp, struct hybla *h)
{
	u32 rtt_us = srtt_us(tp);
	if (rtt_us && (!h->min_rtt_us || rtt_us < h->min_rtt_us)) {
		h->min_rtt_us = rtt_us;
		h->rho_q16 = hybla_rho_q16(rtt_us);
	}
}

static ALWAYS_INLINE void start_round(struct tcp_sock *tp, struct hybla *h)
{
	h->round_end = tp->snd_nxt;
	h->round_delivered = tp->delivered;
}

static ALWAYS_INLINE void begin(struct tcp_sock *tp)
{
	struct hybla *h = ca_priv(tp);
	h->min_rtt_us = 0;
	h->rho_q16 = hybla_rho_q16(0);
	h->credit_q16 = 0;
	update_rho(tp, h);
	if (!tp->data_segs_out)
		tp->snd_cwnd = hybla_initial_window(tp->snd_cwnd, h->rho_q16, tp->snd_cwnd_clamp);
	h->ceiling = hybla_ceiling(tp->snd_cwnd);
	start_round(tp, h);
}

SEC("struct_ops") void hybla_init(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	begin(tp);
	want_pacing(tp);
}

// For kernels that refuse to let BPF turn pacing on.
SEC("struct_ops") void hybla_init_unpaced(u64 *ctx)
{
	begin(tcp_arg(ctx));
}

SEC("struct_ops") void hybla_cong_avoid(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	u32 ack = ctx[1], acked = ctx[2];
	struct hybla *h = ca_priv(tp);

	update_rho(tp, h);
	if (seq_after(ack, h->round_end)) {
		h->ceiling = hybla_ceiling(tp->delivered - h->round_delivered);
		start_round(tp, h);
	}
	u32 cwnd = tp->snd_cwnd, ssthresh = tp->snd_ssthresh;
	bool slow_start = cwnd < ssthresh;
	if (!window_used(slow_start, cwnd, tp->max_packets_out, READ_BITS(tp, is_cwnd_limited)))
		return;
	if (slow_start) {
		tp->snd_cwnd = hybla_slow_start(cwnd, ssthresh, h->ceiling, h->rho_q16, acked, tp->snd_cwnd_clamp);
		return;
	}
	u64 credit_q16 = h->credit_q16;
	tp->snd_cwnd = window_increase(cwnd, &credit_q16, hybla_avoidance_gain_q16(h->rho_q16), acked,
				       tp->snd_cwnd_clamp);
	h->credit_q16 = credit_q16;
}

SEC("struct_ops") u32 hybla_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct hybla *h = ca_priv(tp);
	h->credit_q16 = 0;
	return hybla_ssthresh_of(tp->snd_cwnd);
}

SEC("struct_ops") u32 hybla_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	return window_undo(tp->snd_cwnd, tp->prior_cwnd);
}

SEC(".struct_ops.link") struct tcp_congestion_ops hybla = {
	.name = "hybla",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)hybla_init,
	.cong_avoid = (void *)hybla_cong_avoid,
	.ssthresh = (void *)hybla_ssthresh,
	.undo_cwnd = (void *)hybla_undo_cwnd,
};
