// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// BBR version 3, on a kernel that has version 1.
//
// Source: N. Cardwell, I. Swett, J. Beshay, "BBR Congestion Control",
// draft-ietf-ccwg-bbr-06, July 2026. It models a path by the largest recent delivery
// rate and the least recent round trip, paces by the first, bounds the data in flight
// by the product of both, and by what probes for more have found to lose over 2 %.
//
// Where this departs from the draft, because the kernel does not tell:
//   - The data in flight, lost and delivered when a packet was sent is the kernel's to
//     keep with each packet, and it keeps only the last. So bbr3 notes all three some
//     16 times per window, and looks up the entry of the packet's delivered count. The
//     loss of a round may be overstated by a sixteenth of it.
//   - The kernel names no lost packet, only their number. bbr3 takes all that an
//     acknowledgement finds lost for one packet of the draft, sent when the newest
//     acknowledged one was, or before that by RACK's reordering window. Whether the
//     application was the limit is read from the acknowledged packet.
//   - Of the six separate ranges that must be lost in a round to end Startup, those that
//     one acknowledgement finds lost count once.
//   - What ProbeRTT sends is to be marked as limited by the application. bbr3 keeps that
//     mark itself: Linux 6.1 does not let BPF write the kernel's.
//   - A loss found between two acknowledgements, by a timer, counts with the next.
//
// Where the draft is silent, or would not work as it is written:
//   - A mark of congestion (ECN) is as good as a loss above the threshold: the draft
//     demands a response, and leaves it open.
//   - After a timeout inflight_shortterm starts from the window before it, not from the
//     one packet that the timeout leaves.
//   - A cautious probe is over when inflight_longterm was in flight before the
//     acknowledgement. After it there is always less.
//   - Startup ends, and the filter of max_bw moves on, only with a measured bandwidth.
//   - Amounts are in segments. The send quantum is the kernel's (TSO autosizing, by the
//     same formula).

#include "tcp.h"

#include "bbr3.h"

LICENSE;

// The state does not fit into the kernel's space for an algorithm.
struct {
	MAP_INT(type, BPF_MAP_TYPE_SK_STORAGE);
	MAP_INT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct bbr3);
} flows SEC(".maps");

static ALWAYS_INLINE struct bbr3 *flow_of(struct tcp_sock *tp)
{
	return bpf_sk_storage_get(&flows, tp, 0, 0);
}

static ALWAYS_INLINE void look(struct tcp_sock *tp, struct bbr3_ack *a)
{
	u32 state = READ_BITS(&tp->inet_conn, icsk_ca_state);
	a->now_us = tp->tcp_mstamp;
	a->delivered = tp->delivered;
	a->lost = tp->lost;
	a->marked = tp->delivered_ce;
	a->in_flight = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	a->cwnd = tp->snd_cwnd;
	a->clamp = tp->snd_cwnd_clamp;
	a->mss = tp->mss_cache;
	a->fast_recovery = state == TCP_CA_Recovery;
	a->timeout = state == TCP_CA_Loss;
}

static ALWAYS_INLINE void apply(struct tcp_sock *tp, const struct bbr3 *h)
{
	struct sock *sk = sk_of(tp);
	sk->sk_pacing_rate = bbr3_min(h->pace, sk->sk_max_pacing_rate);
	tp->snd_cwnd = h->cwnd;
}

static ALWAYS_INLINE struct bbr3 *begin(struct tcp_sock *tp)
{
	struct bbr3 *h = bpf_sk_storage_get(&flows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!h)
		return 0;
	struct bbr3_ack a = {};
	look(tp, &a);
	bbr3_init(h, &a, srtt_us(tp));
	return h;
}

SEC("struct_ops") void bbr3_tcp_init(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct bbr3 *h = begin(tp);
	want_pacing(tp);
	if (h)
		apply(tp, h);
}

static ALWAYS_INLINE void control(struct tcp_sock *tp, const struct rate_sample *rs)
{
	struct bbr3 *h = flow_of(tp);
	if (!h && !(h = begin(tp))) // no memory: the window stays as it is
		return;
	struct bbr3_ack a = {};
	look(tp, &a);
	long interval_us = rs->interval_us, rtt_us = rs->rtt_us;
	s32 delivered = rs->delivered;
	if (delivered > 0) {
		a.sample_delivered = delivered;
		a.prior_delivered = rs->prior_delivered;
		if (interval_us > 0)
			a.sample_us = interval_us;
	}
	if (rtt_us > 0)
		a.rtt_us = rtt_us;
	a.acked = rs->acked_sacked;
	a.prior_in_flight = rs->prior_in_flight;
	a.app_limited = rs->is_app_limited;
	a.cwnd_limited = READ_BITS(tp, is_cwnd_limited);
	a.sack = READ_BITS(tp, rx_opt.sack_ok);
	if (tp->reord_seen)
		a.reorder_us = bbr3_min((u64)h->min_rtt_us / 4 * tp->rack.reo_wnd_steps, srtt_us(tp));
	a.random = bpf_get_prandom_u32();
	bbr3_update(h, &a);
	apply(tp, h);
}

SEC("struct_ops") void bbr3_cong_control(u64 *ctx)
{
	control(tcp_arg(ctx), (const struct rate_sample *)ctx[3]);
}

SEC("struct_ops") void bbr3_cong_control_before_6_10(u64 *ctx)
{
	control(tcp_arg(ctx), (const struct rate_sample *)ctx[1]);
}

// The kernel calls it when nothing is in flight.
static ALWAYS_INLINE void restart(struct tcp_sock *tp)
{
	struct bbr3 *h = flow_of(tp);
	if (!h || !tp->app_limited)
		return;
	struct bbr3_ack a = {};
	look(tp, &a);
	a.random = bpf_get_prandom_u32();
	h->cwnd = a.cwnd;
	bbr3_restart(h, &a);
	apply(tp, h);
}

SEC("struct_ops") void bbr3_cwnd_event(u64 *ctx)
{
	if (ctx[1] == CA_EVENT_TX_START)
		restart(tcp_arg(ctx));
}

SEC("struct_ops") void bbr3_cwnd_event_tx_start(u64 *ctx)
{
	restart(tcp_arg(ctx));
}

// The kernel calls it when a recovery begins, before it changes the window.
SEC("struct_ops") u32 bbr3_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct bbr3 *h = flow_of(tp);
	if (h)
		bbr3_enter_recovery(h, tp->snd_cwnd, READ_BITS(&tp->inet_conn, icsk_ca_state) >= TCP_CA_Recovery);
	return tp->snd_ssthresh;
}

// The kernel calls it when it finds that a recovery was for nothing.
SEC("struct_ops") u32 bbr3_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct bbr3 *h = flow_of(tp);
	if (!h)
		return tp->snd_cwnd;
	bbr3_undo(h, tp->snd_cwnd, tp->delivered);
	return h->cwnd;
}

// As the kernel's own BBR: the window is up to two and a quarter times the data that
// the path holds.
SEC("struct_ops") u32 bbr3_sndbuf_expand(u64 *ctx)
{
	(void)ctx;
	return 3;
}

SEC(".struct_ops.link") struct tcp_congestion_ops bbr3 = {
	.name = "bbr3",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)bbr3_tcp_init,
	.cong_control = (void *)bbr3_cong_control,
	.cwnd_event = (void *)bbr3_cwnd_event,
	.cwnd_event_tx_start = (void *)bbr3_cwnd_event_tx_start,
	.ssthresh = (void *)bbr3_ssthresh,
	.undo_cwnd = (void *)bbr3_undo_cwnd,
	.sndbuf_expand = (void *)bbr3_sndbuf_expand,
};
