// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// TCP Illinois.
//
// Source: S. Liu, T. Basar and R. Srikant, "TCP-Illinois: a loss and
// delay-based congestion control algorithm for high-speed networks",
// VALUETOOLS 2006; Performance Evaluation 65(6-7), 2008.
//
// Loss decides whether the window W grows or falls, and delay decides the amount:
// a round trip adds alpha segments, a loss takes beta W. With da the mean
// queueing delay of a round and dm the largest one seen,
//
//	alpha = 10              da <= d1 = dm/100
//	        k1 / (k2 + da)  beyond; 0.3 at dm
//	beta  = 1/8             da <= dm/10
//	        linear          between
//	        1/2             da >= 8 dm/10
//
// After delay has been seen, alpha goes back to 10 only after theta = 5 rounds
// without. Below 15 segments it is Reno: alpha = 1, beta = 1/2.
//
// Where this departs from the paper:
//   - A round ends when the last segment sent at its beginning is acknowledged.
//   - At first, and after a timeout, alpha = 1 and beta = 1/2 until a round
//     has been measured.
//   - Round trips beyond a minute count as a minute.

#include "tcp.h"
#include "illinois.h"

LICENSE;

CHECK_CA_PRIV(struct illinois);

SEC("struct_ops") void illinois_init(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct illinois *s = ca_priv(tp);
	s->credit_q16 = 0;
	s->rtt_sum_us = 0;
	s->rtt_count = 0;
	s->rtt_min_us = 0;
	s->rtt_max_us = 0;
	s->round_end = tp->snd_nxt;
	illinois_reset(s);
}

SEC("struct_ops") void illinois_pkts_acked(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	const struct ack_sample *sample = (const void *)ctx[1];
	s32 rtt_us = sample->rtt_us;
	if (rtt_us > 0)
		illinois_sample(ca_priv(tp), rtt_us);
}

SEC("struct_ops") void illinois_cong_avoid(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	u32 ack = ctx[1], acked = ctx[2];
	struct illinois *s = ca_priv(tp);
	u32 cwnd = tp->snd_cwnd, ssthresh = tp->snd_ssthresh;

	if (seq_after(ack, s->round_end)) {
		illinois_round(s, cwnd);
		s->round_end = tp->snd_nxt;
	}
	bool slow_start = cwnd < ssthresh;
	if (!window_used(slow_start, cwnd, tp->max_packets_out, READ_BITS(tp, is_cwnd_limited)))
		return;
	if (slow_start) {
		tp->snd_cwnd = window_slow_start(cwnd, ssthresh, acked, tp->snd_cwnd_clamp);
		return;
	}
	u64 credit_q16 = s->credit_q16;
	tp->snd_cwnd = window_increase(cwnd, &credit_q16, s->alpha_q16, acked, tp->snd_cwnd_clamp);
	s->credit_q16 = credit_q16;
}

SEC("struct_ops") u32 illinois_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct illinois *s = ca_priv(tp);
	s->credit_q16 = 0;
	return illinois_ssthresh_of(tp->snd_cwnd, s->beta_q16);
}

SEC("struct_ops") void illinois_set_state(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	u8 state = ctx[1];
	if (state == TCP_CA_Loss)
		illinois_reset(ca_priv(tp));
}

SEC("struct_ops") u32 illinois_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	return window_undo(tp->snd_cwnd, tp->prior_cwnd);
}

SEC(".struct_ops.link") struct tcp_congestion_ops illinois = {
	.name = "illinois",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)illinois_init,
	.pkts_acked = (void *)illinois_pkts_acked,
	.cong_avoid = (void *)illinois_cong_avoid,
	.set_state = (void *)illinois_set_state,
	.ssthresh = (void *)illinois_ssthresh,
	.undo_cwnd = (void *)illinois_undo_cwnd,
};
