// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The parts of the kernel's TCP that longhaul's algorithms read and write. Names
// are the kernel's, since the loader finds fields by them. The order differs, and
// does not matter.
#pragma once

#include "bpf.h"

KERNEL_RECORDS_BEGIN

struct in6_addr {
	union {
		u8 u6_addr8[16];
	} in6_u;
};

struct netns_ipv4 {
	u8 sysctl_tcp_retries2;
};

struct net {
	u64 net_cookie;
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
	s32 skc_bound_dev_if;
	u32 skc_daddr; // network byte order
	u16 skc_family;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
	u64 sk_pacing_rate;     // bytes of payload per second
	u64 sk_max_pacing_rate; // SO_MAX_PACING_RATE, ~0 if unset
	u32 sk_pacing_status;
	u32 sk_mark;
	s32 sk_sndbuf;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u8 icsk_ca_state : 5;
	u8 icsk_retransmits;
	u64 icsk_ca_priv[13];
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	u16 sack_ok : 3;
};

struct tcp_rack {
	u8 reo_wnd_steps; // a quarter of the least round trip each: RFC 8985, 6.2
};

// Counts of packets are in segments of at most mss_cache bytes of payload.
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 mss_cache;
	u16 tcp_header_len;
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq;
	u32 snd_wnd;
	u32 snd_cwnd;
	u32 snd_cwnd_cnt;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 max_packets_out;
	u32 data_segs_out;
	u32 delivered;    // packets, ever; wraps
	u32 delivered_ce; // of these, acknowledged with a CE mark
	u32 lost;         // packets marked lost, ever; wraps; false alarms stay in
	u32 app_limited;
	u32 dsack_dups;
	u32 srtt_us; // eight times the smoothed round trip
	u32 mdev_us;
	u32 reordering;
	u32 reord_seen;
	struct tcp_options_received rx_opt;
	struct tcp_rack rack;
	u64 tcp_mstamp; // microseconds
	struct minmax rtt_min;
	u8 is_cwnd_limited : 1;
	u8 chrono_type;
};

// The path's sample from the ACK that is being processed.
struct rate_sample {
	u64 prior_mstamp;
	u32 prior_delivered;
	s32 delivered;    // packets over interval_us; negative if there is no sample
	s32 delivered_ce;
	long interval_us; // as wide as the kernel's long
	long rtt_us;      // negative if there is no sample
	s32 losses;
	u32 acked_sacked;
	u32 prior_in_flight;
	bool is_app_limited;
	bool is_retrans;
	bool is_ack_delayed;
};

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us; // negative if there is no sample
	u32 in_flight;
};

KERNEL_RECORDS_END

enum {
	AF_INET = 2,
	AF_INET6 = 10,
};

enum tcp_ca_state {
	TCP_CA_Open,
	TCP_CA_Disorder,
	TCP_CA_CWR,
	TCP_CA_Recovery,
	TCP_CA_Loss,
};

enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};

enum sk_pacing {
	SK_PACING_NONE,
	SK_PACING_NEEDED, // TCP's own timer
	SK_PACING_FQ,     // the qdisc paces
};

// Any process may use an algorithm with this flag, and any namespace may make
// it its default.
#define TCP_CONG_NON_RESTRICTED 1

// The table of an algorithm, with the members that a BPF program can fill. The
// loader matches members by name; they hold programs of section "struct_ops".
struct tcp_congestion_ops {
	void *ssthresh;     // u32 (sk): what to set snd_ssthresh to at a loss
	void *cong_avoid;   // void (sk, u32 ack, u32 acked): raise the window
	void *set_state;    // void (sk, u8 tcp_ca_state), before it is entered
	void *cwnd_event;   // void (sk, tcp_ca_event)
	void *cwnd_event_tx_start; // void (sk): since 7.1, in place of CA_EVENT_TX_START
	void *in_ack_event; // void (sk, u32 flags)
	void *pkts_acked;   // void (sk, const struct ack_sample *)
	void *min_tso_segs; // u32 (sk)
	void *cong_control; // void (sk, u32 ack, int flag, rs); before 6.10 (sk, rs)
	void *undo_cwnd;    // u32 (sk): the window to return to after a false alarm
	void *sndbuf_expand; // u32 (sk): send buffer, in windows
	char name[16];
	u32 flags;
	void *init;
	void *release;
};

// The sock that the kernel passes to every function of the table; the
// verifier knows that it is a tcp_sock.
static ALWAYS_INLINE struct tcp_sock *tcp_arg(const u64 *ctx)
{
	return (struct tcp_sock *)ctx[0];
}

static ALWAYS_INLINE struct sock *sk_of(struct tcp_sock *tp)
{
	return &tp->inet_conn.icsk_inet.sk;
}

// The destination of a connection. IPv4 addresses are mapped into IPv6.
struct destination {
	u32 netns[2]; // its cookie, upper half first
	u8 address[16];
};

static ALWAYS_INLINE void destination_of(struct tcp_sock *tp, struct destination *d)
{
	struct sock_common *common = &sk_of(tp)->__sk_common;
	u64 cookie = common->skc_net.net->net_cookie;

	__builtin_memset(d, 0, sizeof(*d));
	d->netns[0] = cookie >> 32;
	d->netns[1] = cookie;
	if (common->skc_family == AF_INET) {
		u32 address = common->skc_daddr;
		d->address[10] = d->address[11] = 0xff;
		__builtin_memcpy(d->address + 12, &address, 4);
	} else if (EXISTS(common->skc_v6_daddr)) {
#pragma clang loop unroll(full)
		for (int i = 0; i < 16; i++)
			d->address[i] = common->skc_v6_daddr.in6_u.u6_addr8[i];
	}
}

// The algorithm's own state of a connection, zero before init: TCP_CA_PRIV
// bytes, eight-byte aligned.
#define TCP_CA_PRIV 104

static ALWAYS_INLINE void *ca_priv(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_priv;
}

#define CHECK_CA_PRIV(type) _Static_assert(sizeof(type) <= TCP_CA_PRIV, "the state must fit icsk_ca_priv")

// Turns pacing by TCP's own timer on, unless a qdisc paces.
static ALWAYS_INLINE void want_pacing(struct tcp_sock *tp)
{
	struct sock *sk = sk_of(tp);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
}

// Smoothed round trip in microseconds, 0 if there is no sample yet.
static ALWAYS_INLINE u32 srtt_us(const struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

// Whether sequence number a comes after b.
static ALWAYS_INLINE bool seq_after(u32 a, u32 b)
{
	return (s32)(b - a) < 0;
}
