// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul: congestion control for long paths that lose packets.
//
// longhaul's own algorithm; docs/design/haul.md has its reasons and figures. It
// finds the bandwidth by itself, takes loss for congestion only if it depends on
// the sending rate, and keeps a short queue.
//
// Its sources:
//   - the model of a path by its delivery rate and least round trip, and pacing
//     by it: N. Cardwell et al., "BBR: Congestion-Based Congestion Control",
//     ACM Queue 14(5), 2016. Unlike BBR, the rate follows the length of the
//     queue at every round trip instead of a cycle of gains, and loss that is
//     the path's own is compensated.
//   - a queue to keep that is shorter for faster flows, so that flows that see
//     the same queue come to the same rate: V. Arun and H. Balakrishnan, "Copa",
//     NSDI 2018. Its mode for paths with buffer-filling rivals is also the model of
//     haul's.
//   - connections to one destination share knowledge: M. Welzl et al., "TCP
//     Control Block Interdependence", RFC 9040.
//   - a connection begins with what the path carried for earlier ones: N. Kuhn et al.,
//     "Careful Resume: Convergence of Congestion Control from Retained State", RFC 9959.
//   - beside such a rival, CUBIC's window: RFC 9438.
//   - leaving start-up when the delay rises: HyStart++, RFC 9406.

#include "tcp.h"

#include "haul.h"

LICENSE;

// The state does not fit into the kernel's space for an algorithm.
struct {
	MAP_INT(type, BPF_MAP_TYPE_SK_STORAGE);
	MAP_INT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct haul);
} flows SEC(".maps");

// The shared state of connections to one destination. A mark or a device may lead
// them over another path.
struct path_key {
	struct destination to;
	u32 mark;
	s32 device;
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_INT(max_entries, 4096);
	MAP_INT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct path_key);
	MAP_TYPE(value, struct haul_path);
} paths SEC(".maps");

// Settings by user space, all 0 at first.
struct settings {
	u32 cold; // connections do not begin with what the path carried
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_ARRAY);
	MAP_INT(max_entries, 1);
	MAP_INT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct settings);
} settings SEC(".maps");

// It has a frame of its own: those of a chain of calls may have 512 bytes in all, each
// rounded up to 32 on older kernels.
static NOINLINE struct haul_path *path_of(struct tcp_sock *tp, bool create)
{
	struct path_key key;
	destination_of(tp, &key.to);
	key.mark = sk_of(tp)->sk_mark;
	key.device = sk_of(tp)->__sk_common.skc_bound_dev_if;
	struct haul_path *p = bpf_map_lookup_elem(&paths, &key);
	if (p || !create)
		return p;
	struct haul_path none = {};
	bpf_map_update_elem(&paths, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&paths, &key);
}

// chrono_type while the receiver's window or the send buffer limits the sender.
enum {
	CHRONO_RWND_LIMITED = 2,
	CHRONO_SNDBUF_LIMITED = 3,
};

static ALWAYS_INLINE void look(struct tcp_sock *tp, struct haul_ack *a)
{
	u32 chrono = READ_BITS(tp, chrono_type);
	a->now_us = tp->tcp_mstamp;
	a->delivered = tp->delivered;
	a->lost = tp->lost;
	a->spurious = tp->dsack_dups;
	a->marked = tp->delivered_ce;
	a->sent = tp->data_segs_out;
	a->srtt_us = srtt_us(tp);
	a->in_flight = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	a->mss = tp->mss_cache;
	a->clamp = tp->snd_cwnd_clamp;
	a->limited = tp->app_limited || chrono == CHRONO_RWND_LIMITED || chrono == CHRONO_SNDBUF_LIMITED;
}

static ALWAYS_INLINE void apply(struct tcp_sock *tp, const struct haul *h)
{
	struct sock *sk = sk_of(tp);
	sk->sk_pacing_rate = haul_min(h->pace, sk->sk_max_pacing_rate);
	tp->snd_cwnd = h->cwnd;
}

static ALWAYS_INLINE struct haul *begin(struct tcp_sock *tp)
{
	struct haul *h = bpf_sk_storage_get(&flows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!h)
		return 0;
	struct haul_ack a = {};
	look(tp, &a);
	haul_init(h, &a, tp->snd_cwnd);
	u32 only = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &only);
	if (s && s->cold)
		h->resume = HAUL_NORMAL;
	return h;
}

// State beside the flow's: see haul_set_state.
struct timer {
	bool bounded;
};

CHECK_CA_PRIV(struct timer);

SEC("struct_ops") void haul_tcp_init(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct haul *h = begin(tp);
	struct timer *t = ca_priv(tp);
	t->bounded = false;
	want_pacing(tp);
	if (h)
		sk_of(tp)->sk_pacing_rate = haul_min(h->pace, sk_of(tp)->sk_max_pacing_rate);
}

static ALWAYS_INLINE void control(struct tcp_sock *tp, const struct rate_sample *rs)
{
	struct haul *h = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (!h && !(h = begin(tp))) // no memory: the window stays as it is
		return;
	struct haul_ack a = {};
	look(tp, &a);
	long interval_us = rs->interval_us, rtt_us = rs->rtt_us;
	s32 delivered = rs->delivered;
	if (interval_us > 0 && delivered > 0) {
		a.sample_us = interval_us;
		a.sample_delivered = delivered;
		a.prior_delivered = rs->prior_delivered;
	}
	if (rtt_us > 0)
		a.rtt_us = rtt_us;
	a.limited |= rs->is_app_limited;
	a.acked = rs->acked_sacked;
	if (haul_update(h, &a))
		haul_update_epoch(h, &a, path_of(tp, true));
	haul_apply(h, &a);
	apply(tp, h);
}

SEC("struct_ops") void haul_cong_control(u64 *ctx)
{
	control(tcp_arg(ctx), (const struct rate_sample *)ctx[3]);
}

SEC("struct_ops") void haul_cong_control_before_6_10(u64 *ctx)
{
	control(tcp_arg(ctx), (const struct rate_sample *)ctx[1]);
}

SEC("struct_ops") void haul_release(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct haul *h = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (h)
		haul_forget(h, path_of(tp, false));
}

SEC("struct_ops") u32 haul_ssthresh(u64 *ctx)
{
	return tcp_arg(ctx)->snd_ssthresh; // the window does not follow from losses
}

SEC("struct_ops") u32 haul_undo_cwnd(u64 *ctx)
{
	return tcp_arg(ctx)->snd_cwnd;
}

// Data on the way is up to one and a half round trips' worth. Data that was lost
// two or three times holds the window back for as many more.
SEC("struct_ops") u32 haul_sndbuf_expand(u64 *ctx)
{
	(void)ctx;
	return 7;
}

// The timer that ends an outage. The kernel notices a restored path when it sends
// the first lost segment again. It waits twice as long each time, up to two minutes.
// haul bounds that wait (below RFC 6298, 2.5), so that no path stays unused for longer.
// The kernel would shorten the time until it gives the connection up in proportion.
// So haul keeps that time as it was (RFC 9293, 3.8.3; in Linux by tcp_retries2). A
// socket that has settings of its own keeps them.
enum {
	IPPROTO_TCP = 6,
	TCP_USER_TIMEOUT = 18,
	TCP_RTO_MAX_MS = 44,

	RTO_MIN_MS = 200,
	RTO_MAX_MS = 120000,
};

// give_up_ms is the time that the kernel continues without an answer: its number
// of timeouts, from the least one, each twice the one before up to the largest.
static ALWAYS_INLINE u32 give_up_ms(u32 retries)
{
	const u32 doublings = 9; // from RTO_MIN_MS to what is just below RTO_MAX_MS
	if (retries <= doublings)
		return ((2u << retries) - 1) * RTO_MIN_MS;
	return ((2u << doublings) - 1) * RTO_MIN_MS + (retries - doublings) * RTO_MAX_MS;
}

static ALWAYS_INLINE bool set_timer(struct tcp_sock *tp, int rto_max_ms, int user_timeout_ms)
{
	return bpf_setsockopt(tp, IPPROTO_TCP, TCP_RTO_MAX_MS, &rto_max_ms, sizeof(rto_max_ms)) == 0 &&
	       bpf_setsockopt(tp, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms)) == 0;
}

SEC("struct_ops") void haul_set_state(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	u8 state = ctx[1];
	struct timer *t = ca_priv(tp);
	if ((state == TCP_CA_Loss) == t->bounded)
		return;
	if (t->bounded) {
		t->bounded = false;
		set_timer(tp, RTO_MAX_MS, 0);
		return;
	}
	int rto_max_ms = 0, user_timeout_ms = 1;
	if (bpf_getsockopt(tp, IPPROTO_TCP, TCP_RTO_MAX_MS, &rto_max_ms, sizeof(rto_max_ms)) || rto_max_ms != RTO_MAX_MS ||
	    bpf_getsockopt(tp, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms)) || user_timeout_ms)
		return;
	u32 retries = sk_of(tp)->__sk_common.skc_net.net->ipv4.sysctl_tcp_retries2;
	struct haul *h = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (h)
		t->bounded = set_timer(tp, haul_rto_max_ms(h, srtt_us(tp), tp->tcp_mstamp), give_up_ms(retries));
}

SEC(".struct_ops.link") struct tcp_congestion_ops haul = {
	.name = "haul",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)haul_tcp_init,
	.release = (void *)haul_release,
	.set_state = (void *)haul_set_state,
	.cong_control = (void *)haul_cong_control,
	.ssthresh = (void *)haul_ssthresh,
	.undo_cwnd = (void *)haul_undo_cwnd,
	.sndbuf_expand = (void *)haul_sndbuf_expand,
};
