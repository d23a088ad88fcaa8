// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Brutal: holds a given rate at any loss.
//
// Source: the congestion control of that name in Hysteria and the tcp-brutal
// kernel module, by their documentation (github.com/apernet). It paces at
//
//	pace = rate / ack rate
//
// where the ack rate is the share of packets of the last five seconds that
// arrived, at least 0.8. Its window is twice the data on the way at that pace.
// Nothing else slows it down, so it takes the rate from all traffic that shares the
// bottleneck. It is for a path that is yours alone, or of which you know your
// share.
//
// Sources of the rate, in this order:
//
//	socket option 23301   of a connection's own, as existing clients set it
//	budgets               one rate shared by many connections: those that user
//	                      space puts into it, and those to an address prefix
//	SO_MAX_PACING_RATE    which also bounds the rates of the others
//
// Where this departs from its source:
//   - Budgets. Connections that do not use all of their part leave the rest to
//     those that do (brutal.h).
//   - A budget's rate is that of whole IP packets, as links are sold. The
//     option's is of payload, as its clients expect.
//   - Duplicates that the receiver reports (DSACK) are not counted as lost.

#include "tcp.h"
#include "brutal.h"

LICENSE;

// A rate that several connections share. Written by user space.
struct brutal_budget {
	u64 rate;        // of IP packets, bytes per second
	u32 gain_tenths; // 0 for the usual
	u32 owner;       // of user space
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_HASH);
	MAP_INT(max_entries, 1024);
	MAP_TYPE(key, u32); // a number that user space chooses, not 0
	MAP_TYPE(value, struct brutal_budget);
	MAP_INT(pinning, PIN_BY_NAME);
} budgets SEC(".maps");

// The budget of each destination prefix. Written by user space.
struct brutal_prefix {
	u32 length; // in bits, 64 for the namespace included
	struct destination to;
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_LPM_TRIE);
	MAP_INT(max_entries, 1024);
	MAP_INT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, struct brutal_prefix);
	MAP_TYPE(value, u32); // budget
	MAP_INT(pinning, PIN_BY_NAME);
} prefixes SEC(".maps");

// The settings of one connection. Written by user space and by socket option.
struct brutal_told {
	u64 rate; // of its own, payload bytes per second; 0 if none
	u32 gain_tenths;
	u32 budget; // 0 if none
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_SK_STORAGE);
	MAP_INT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct brutal_told);
	MAP_INT(pinning, PIN_BY_NAME);
} sockets SEC(".maps");

// The reports of a budget's connections to each other.
struct brutal_account {
	struct bpf_spin_lock lock;
	struct brutal_tallies tallies;
};

struct {
	MAP_INT(type, BPF_MAP_TYPE_HASH);
	MAP_INT(max_entries, 1024);
	MAP_TYPE(key, u32); // that of the budget
	MAP_TYPE(value, struct brutal_account);
	MAP_INT(pinning, PIN_BY_NAME);
} accounts SEC(".maps");

struct brutal {
	struct brutal_history history;
	u32 delivered, lost, dsack_dups; // tp's, as of the last ACK
	u32 tick;                        // of 2^14 us; 16 of them are a period
	u8 gain_tenths;
	u64 rate;                        // of payload, bytes per second
	u64 share;                       // of the budget, bytes per second of IP packets
	u32 period_start_us, period_sent;
	struct brutal_need now, before;
};

CHECK_CA_PRIV(struct brutal);

static ALWAYS_INLINE u32 header_bytes(struct tcp_sock *tp)
{
	u32 ip = sk_of(tp)->__sk_common.skc_family == AF_INET6 ? 40 : 20;
	return tp->tcp_header_len + ip;
}

// The budget of the connection's destination, 0 if it has none.
static ALWAYS_INLINE u32 budget_of_destination(struct tcp_sock *tp)
{
	struct brutal_prefix key = {.length = 8 * sizeof(key.to)};
	destination_of(tp, &key.to);
	u32 *id = bpf_map_lookup_elem(&prefixes, &key);
	return id ? *id : 0;
}

// This connection's share of a budget, and its report to the others in it.
static ALWAYS_INLINE u64 share_of(struct tcp_sock *tp, struct brutal *b, u32 id, u64 rate, u32 now_us, u32 tick)
{
	u32 period = tick >> 4, passed = period - (b->tick >> 4);
	struct brutal_account *account = bpf_map_lookup_elem(&accounts, &id);
	if (!account) {
		struct brutal_account fresh = {};
		bpf_map_update_elem(&accounts, &id, &fresh, 0);
		account = bpf_map_lookup_elem(&accounts, &id);
		if (!account)
			return rate;
	}
	struct brutal_need need = b->now, before = b->before;
	if (passed) {
		// A new or returning connection needs all that is free.
		need.told = BRUTAL_GREEDY;
		need.modest_need_256 = 0;
		before.told = BRUTAL_NOTHING;
		before.modest_need_256 = 0;
		if (passed == 1) {
			u64 used = brutal_used(tp->data_segs_out - b->period_sent, tp->mss_cache + header_bytes(tp),
					       now_us - b->period_start_us, brutal_ack_rate_q16(&b->history));
			need = brutal_need_of(used, b->share);
			before = b->now;
		}
		b->period_start_us = now_us;
		b->period_sent = tp->data_segs_out;
		b->now = need;
		b->before = before;
	}
	struct brutal_tallies tallies;
	bpf_spin_lock(&account->lock);
	brutal_roll(&account->tallies, period);
	if (passed)
		brutal_tell(&account->tallies.now, &need);
	tallies = account->tallies;
	bpf_spin_unlock(&account->lock);
	return brutal_share(&tallies, &need, &before, rate);
}

// Finds the rate of this connection.
static ALWAYS_INLINE void find_rate(struct tcp_sock *tp, struct brutal *b, u32 now_us, u32 tick)
{
	struct brutal_told *told = bpf_sk_storage_get(&sockets, tp, 0, 0);
	if (told && told->rate) {
		b->rate = told->rate;
		b->gain_tenths = brutal_gain(told->gain_tenths);
		return;
	}
	u32 id = told ? told->budget : 0;
	if (!id)
		id = budget_of_destination(tp);
	struct brutal_budget *budget = id ? bpf_map_lookup_elem(&budgets, &id) : 0;
	if (budget) {
		u64 rate = budget->rate;
		if (rate > BRUTAL_RATE_MAX)
			rate = BRUTAL_RATE_MAX;
		b->gain_tenths = brutal_gain(budget->gain_tenths);
		b->share = share_of(tp, b, id, rate, now_us, tick);
		b->rate = brutal_payload_rate(b->share, tp->mss_cache, header_bytes(tp));
		return;
	}
	b->gain_tenths = BRUTAL_GAIN_DEFAULT;
	u64 limit = sk_of(tp)->sk_max_pacing_rate;
	b->rate = limit != ~0ull ? limit : BRUTAL_RATE_UNTOLD;
}

// Sets pace and window from the present state.
static ALWAYS_INLINE void apply(struct tcp_sock *tp, struct brutal *b)
{
	struct sock *sk = sk_of(tp);
	u64 pace = brutal_pace(b->rate, brutal_ack_rate_q16(&b->history));
	if (pace > sk->sk_max_pacing_rate)
		pace = sk->sk_max_pacing_rate;
	if (pace < tp->mss_cache) // a segment per second
		pace = tp->mss_cache;
	sk->sk_pacing_rate = pace;
	u32 rtt_us = srtt_us(tp);
	if (rtt_us)
		tp->snd_cwnd = brutal_window(pace, rtt_us, tp->mss_cache, b->gain_tenths, tp->snd_cwnd_clamp);
}

static ALWAYS_INLINE u32 tick_of(u64 us)
{
	return us >> 14;
}

SEC("struct_ops") void brutal_init(u64 *ctx)
{
	struct tcp_sock *tp = tcp_arg(ctx);
	struct brutal *b = ca_priv(tp);
	struct brutal fresh = {
		.delivered = tp->delivered,
		.lost = tp->lost,
		.dsack_dups = tp->dsack_dups,
	};
	u64 now_us = tp->tcp_mstamp;
	fresh.history.now = now_us >> 20;
	fresh.tick = tick_of(now_us) - 64; // in no period that counts
	*b = fresh;
	find_rate(tp, b, now_us, tick_of(now_us));
	b->tick = tick_of(now_us);
	want_pacing(tp);
	apply(tp, b);
}

static ALWAYS_INLINE void control(struct tcp_sock *tp)
{
	struct brutal *b = ca_priv(tp);
	u64 now_us = tp->tcp_mstamp;
	u32 delivered = tp->delivered - b->delivered, lost = tp->lost - b->lost;
	u32 duplicates = tp->dsack_dups - b->dsack_dups;
	b->delivered = tp->delivered;
	b->lost = tp->lost;
	b->dsack_dups = tp->dsack_dups;
	brutal_count(&b->history, now_us >> 20, delivered, lost > duplicates ? lost - duplicates : 0);

	u32 tick = tick_of(now_us);
	if (tick != b->tick) {
		find_rate(tp, b, now_us, tick);
		b->tick = tick;
	}
	apply(tp, b);
}

SEC("struct_ops") void brutal_cong_control(u64 *ctx)
{
	control(tcp_arg(ctx));
}

SEC("struct_ops") void brutal_cong_control_before_6_10(u64 *ctx)
{
	control(tcp_arg(ctx));
}

// The connection's settings may have changed while it was idle.
static ALWAYS_INLINE void after_idle(struct tcp_sock *tp)
{
	struct brutal *b = ca_priv(tp);
	u64 now_us = tp->tcp_mstamp;
	u32 tick = tick_of(now_us);
	if (tick == b->tick)
		return;
	find_rate(tp, b, now_us, tick);
	b->tick = tick;
	apply(tp, b);
}

SEC("struct_ops") void brutal_cwnd_event(u64 *ctx)
{
	if (ctx[1] == CA_EVENT_TX_START)
		after_idle(tcp_arg(ctx));
}

SEC("struct_ops") void brutal_cwnd_event_tx_start(u64 *ctx)
{
	after_idle(tcp_arg(ctx));
}

SEC("struct_ops") u32 brutal_ssthresh(u64 *ctx)
{
	return tcp_arg(ctx)->snd_ssthresh; // losses do not matter
}

SEC("struct_ops") u32 brutal_undo_cwnd(u64 *ctx)
{
	return tcp_arg(ctx)->snd_cwnd;
}

// The window holds two round trips. Data that was lost twice holds it back for two
// or three more: 5 to 6 in all, of which autotuning counts half as overhead.
SEC("struct_ops") u32 brutal_sndbuf_expand(u64 *ctx)
{
	(void)ctx;
	return 6;
}

SEC(".struct_ops.link") struct tcp_congestion_ops brutal = {
	.name = "brutal",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)brutal_init,
	.cong_control = (void *)brutal_cong_control,
	.cwnd_event = (void *)brutal_cwnd_event,
	.cwnd_event_tx_start = (void *)brutal_cwnd_event_tx_start,
	.ssthresh = (void *)brutal_ssthresh,
	.undo_cwnd = (void *)brutal_undo_cwnd,
	.sndbuf_expand = (void *)brutal_sndbuf_expand,
};

// The socket option of existing clients: setsockopt(fd, IPPROTO_TCP, 23301, ...)
// with a rate in payload bytes per second, 64 bits, and right behind it the
// window's gain in tenths, 32 bits.
#define OPTION_BRUTAL 23301
#define IPPROTO_TCP 6
#define EINVAL 22

struct bpf_sockopt {
	void *sk;
	const u8 *optval;
	const u8 *optval_end;
	s32 level;
	s32 optname;
	s32 optlen;
	s32 retval;
};

static long (*bpf_set_retval)(int retval) = (void *)187;

SEC("cgroup/setsockopt") int brutal_option(struct bpf_sockopt *ctx)
{
	if (ctx->level != IPPROTO_TCP || ctx->optname != OPTION_BRUTAL)
		return 1; // the kernel goes on
	const u8 *value = ctx->optval;
	struct brutal_told told = {};
	if (value + 12 <= ctx->optval_end) {
		told.rate = *(const u64 *)value;
		told.gain_tenths = *(const u32 *)(value + 8);
	}
	if (!told.rate || told.gain_tenths < BRUTAL_GAIN_MIN || told.gain_tenths > BRUTAL_GAIN_MAX) {
		bpf_set_retval(-EINVAL);
		return 0;
	}
	struct brutal_told *kept = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return 0;
	kept->rate = told.rate;
	kept->gain_tenths = told.gain_tenths;
	ctx->optlen = -1; // done: the kernel does not know the option
	return 1;
}
