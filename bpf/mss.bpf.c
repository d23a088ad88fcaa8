// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Rewrites the maximum segment size that TCP connections announce.
//
// Sources: RFC 9293, 3.1 and 3.7.1 (the option, and its bound), RFC 6691
// (it does not count options), RFC 1624 (updating a checksum), RFC 8200, 4 (the
// headers between IPv6's and TCP's).
//
// The MSS in a SYN or SYN-ACK bounds the segments that are sent *to* its sender.
// A rule is about data, so it matches a SYN in the opposite direction: it compares
// `toward` with the SYN's source, and `from` with its destination. One program
// serves both hooks of a device.
//
// A packet that the program cannot parse to the end passes unchanged: fragments,
// an option list that is cut short or has two MSS options, a header beyond the
// packet. So does a signed one (MD5, RFC 2385; TCP-AO, RFC 5925), and one without
// an MSS: the program never inserts an option.

#include "bpf.h"

LICENSE;

// The first header of data: Ethernet's or IP's. The loader sets it.
const volatile u32 link_header_bytes = 14;

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
};

// The argument of bpf_fib_lookup, in the kernel's layout. Addresses are in
// network order, IPv4's in the first word.
struct bpf_fib_lookup {
	u8 family;
	u8 l4_protocol;
	u16 source_port, destination_port;
	u16 mtu; // in: the packet's length; out: what fits, if it does not
	u32 ifindex;
	u32 flow;
	u32 source[4], destination[4];
	u16 vlan[2];
	u8 mac[12];
};

enum {
	AF_INET = 2,
	AF_INET6 = 10,
	BPF_FIB_LKUP_RET_FRAG_NEEDED = 8,
};

enum { MAX_RULES = 64 };

enum action {
	RAISE = 1,
	CLAMP = 2,
	CLAMP_TO_ROUTE = 3, // the MTU of the route that the data takes
	CLAMP_TO_PMTU = 4,  // and that of the way back
};

// Addresses are in network order, IPv4's in the first word. A zero mask matches
// any address.
struct rule {
	u32 id; // 0 ends the table
	u16 mss;
	u16 port;   // of either end; 0 for any
	u8 family;  // 4, 6, or 0 for both
	u8 action;
	u16 unused;
	u32 toward[4], toward_mask[4];
	u32 from[4], from_mask[4];
};

struct rules {
	MAP_INT(type, BPF_MAP_TYPE_ARRAY);
	MAP_INT(max_entries, MAX_RULES);
	MAP_INT(key_size, sizeof(u32));
	MAP_INT(value_size, sizeof(struct rule)); // the compiler leaves out an inner map's types
};

// The active table is the only entry, so that a change replaces it in one step.
// The first rule that matches decides.
struct {
	MAP_INT(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	MAP_INT(max_entries, 1);
	MAP_TYPE(key, u32);
	struct rules *values[];
} mss_tables SEC(".maps");

struct counters {
	u64 matched;
	u64 rewritten;
	u64 last_ns; // CLOCK_BOOTTIME of the last rewrite
	u32 last;    // old << 16 | new
	u32 unused;
};

// By the rule's id.
struct {
	MAP_INT(type, BPF_MAP_TYPE_HASH);
	MAP_INT(max_entries, 4 * MAX_RULES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct counters);
} mss_counters SEC(".maps");

enum {
	NEXT = -1, // the verdict: on with the packet, as if there were no program

	ETH_TYPE_AT = 12,
	ETH_IPV4 = 0x0800,
	ETH_IPV6 = 0x86dd,
	ETH_8021Q = 0x8100,
	ETH_8021AD = 0x88a8,
	VLAN_BYTES = 4,

	IP_TCP = 6,
	IPV4_OFFSET_AND_MORE = 0x3fff,
	IPV6_HEADER_BYTES = 40,
	HOP_BY_HOP = 0,
	ROUTING = 43,
	DESTINATION = 60,
	MAX_EXTENSIONS = 8,

	TCP_HEADER_BYTES = 20,
	TCP_CHECKSUM_AT = 16,
	TCP_SYN = 0x02,
	MAX_OPTION_BYTES = 40,
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_MSS = 2,
	OPTION_MD5 = 19,
	OPTION_AO = 29,

	LEAST_MSS = 88, // Linux uses no less
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK16(x) __builtin_bswap16(x)
#else
#define NETWORK16(x) ((u16)(x))
#endif

struct ipv4_header {
	u8 version_and_words;
	u8 tos;
	u16 bytes;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 source;
	u32 destination;
};

struct ipv6_header {
	u8 version_and_class;
	u8 class_and_flow[3];
	u16 payload_bytes;
	u8 next;
	u8 hops;
	u32 source[4];
	u32 destination[4];
};

struct tcp_header {
	u16 source;
	u16 destination;
	u32 seq;
	u32 ack;
	u8 words; // in the upper half
	u8 flags;
	u16 window;
	u16 checksum;
	u16 urgent;
};

struct syn {
	u32 family; // 4 or 6
	u32 tcp;    // where its header begins
	u32 end;    // and where the IP packet ends
	u32 source[4];
	u32 destination[4];
	struct tcp_header header;
};

// load copies bytes of the packet, linear or not; false if there are fewer.
static ALWAYS_INLINE bool load(struct __sk_buff *skb, u32 at, void *to, u32 bytes)
{
	return bpf_skb_load_bytes(skb, at, to, bytes) == 0;
}

// network finds the IP header behind the link's, with up to two VLAN tags in the
// packet. A tag that the device has removed is not in the packet. It returns the
// version of IP, or zero.
static ALWAYS_INLINE u32 network(struct __sk_buff *skb, u32 *at)
{
	if (link_header_bytes == 0) {
		u8 first;
		*at = 0;
		return load(skb, 0, &first, sizeof(first)) ? first >> 4 : 0;
	}
	u16 type = 0;
	u32 type_at = ETH_TYPE_AT;
	for (int tags = 0; tags < 3; tags++) {
		if (!load(skb, type_at, &type, sizeof(type)))
			return 0;
		type = NETWORK16(type);
		type_at += VLAN_BYTES;
		if (type != ETH_8021Q && type != ETH_8021AD)
			break;
	}
	*at = type_at - VLAN_BYTES + sizeof(type);
	return type == ETH_IPV4 ? 4 : type == ETH_IPV6 ? 6 : 0;
}

static ALWAYS_INLINE bool find_tcp_in_ipv4(struct __sk_buff *skb, u32 at, struct syn *s)
{
	struct ipv4_header ip;
	if (!load(skb, at, &ip, sizeof(ip)))
		return false;
	u32 header_bytes = (ip.version_and_words & 15) * 4;
	if (ip.version_and_words >> 4 != 4 || ip.protocol != IP_TCP || header_bytes < sizeof(ip) || ip.fragment & NETWORK16(IPV4_OFFSET_AND_MORE))
		return false;
	s->family = 4;
	s->tcp = at + header_bytes;
	s->end = at + NETWORK16(ip.bytes);
	s->source[0] = ip.source;
	s->destination[0] = ip.destination;
	return true;
}

static ALWAYS_INLINE bool find_tcp_in_ipv6(struct __sk_buff *skb, u32 at, struct syn *s)
{
	struct ipv6_header ip;
	if (!load(skb, at, &ip, sizeof(ip)) || ip.version_and_class >> 4 != 6)
		return false;
	s->family = 6;
	s->tcp = at + sizeof(ip);
	s->end = s->tcp + NETWORK16(ip.payload_bytes);
	u8 next = ip.next;
	for (int i = 0; i < MAX_EXTENSIONS && next != IP_TCP; i++) {
		if (next != HOP_BY_HOP && next != ROUTING && next != DESTINATION)
			return false;
		struct {
			u8 next;
			u8 eights; // of bytes, after the first
		} extension;
		if (!load(skb, s->tcp, &extension, sizeof(extension)))
			return false;
		next = extension.next;
		s->tcp += (extension.eights + 1) * 8;
	}
	for (int i = 0; i < 4; i++) {
		s->source[i] = ip.source[i];
		s->destination[i] = ip.destination[i];
	}
	return next == IP_TCP;
}

// parse finds the packet's TCP header. False if it is not a SYN.
static ALWAYS_INLINE bool parse(struct __sk_buff *skb, struct syn *s)
{
	u32 at = 0;
	switch (network(skb, &at)) {
	case 4:
		if (!find_tcp_in_ipv4(skb, at, s))
			return false;
		break;
	case 6:
		if (!find_tcp_in_ipv6(skb, at, s))
			return false;
		break;
	default:
		return false;
	}
	return load(skb, s->tcp, &s->header, sizeof(s->header)) && s->header.flags & TCP_SYN;
}

// forget makes the verifier discard its knowledge of a number. Otherwise it tracks
// that knowledge through every way of a loop, a million instructions for a list of
// options.
GLOBAL u32 forget(u32 x)
{
	asm volatile("" : "+r"(x));
	return x;
}

// find_mss finds the MSS option of a TCP header of a length. It returns the option's
// value, and above its 16 bits the place of the value, counted from the header. It
// returns zero without an option that may change.
//
// It is no global function: a verifier knows the packet as the argument of one by BTF
// only, and some kernels are built without (Debian's 6.1 for s390x).
static NOINLINE u32 find_mss(struct __sk_buff *skb, u32 tcp, u32 header_bytes)
{
	// Older verifiers (Linux 6.1) learn no minimum from a comparison with zero. So the
	// bound is on the index of the last byte, which the compiler must not trace back.
	u32 last = header_bytes - TCP_HEADER_BYTES - 1;
	asm volatile("" : "+r"(last));
	if (last >= MAX_OPTION_BYTES)
		return 0;
	u32 bytes = last + 1;
	// More than there can be, so that a mask bounds an index. Older verifiers
	// (Linux 5.10) refuse a buffer that nobody has written.
	u8 options[64] = {};
	if (!load(skb, tcp + TCP_HEADER_BYTES, options, bytes))
		return 0;

	u32 i = 0, mss = 0, at = 0;
	for (u32 steps = 0; steps < MAX_OPTION_BYTES && i < bytes; steps++) {
		u8 kind = options[i & 63];
		if (kind == OPTION_END)
			break;
		if (kind == OPTION_NOP) {
			i = forget(i + 1);
			continue;
		}
		if (i + 1 >= bytes)
			return 0;
		u8 length = options[(i + 1) & 63];
		if (length < 2 || i + length > bytes || kind == OPTION_MD5 || kind == OPTION_AO)
			return 0;
		if (kind == OPTION_MSS) {
			if (length != 4 || mss)
				return 0;
			mss = options[(i + 2) & 63] << 8 | options[(i + 3) & 63];
			if (!mss)
				return 0;
			at = TCP_HEADER_BYTES + i + 2;
		}
		i = forget(i + length);
	}
	return at << 16 | mss;
}

static ALWAYS_INLINE bool covers(const u32 prefix[4], const u32 mask[4], const u32 address[4])
{
	u32 differs = 0;
	for (int i = 0; i < 4; i++)
		differs |= (address[i] & mask[i]) ^ prefix[i];
	return !differs;
}

static ALWAYS_INLINE bool matches(const struct rule *r, const struct syn *s)
{
	if (r->family && r->family != s->family)
		return false;
	u16 port = NETWORK16(r->port);
	if (port && port != s->header.source && port != s->header.destination)
		return false;
	return covers(r->toward, r->toward_mask, s->source) && covers(r->from, r->from_mask, s->destination);
}

// route_mtu is the MTU of packets that this host forwards from one address to
// another. It is the route's metric if that is locked, or the learned path MTU, or
// the device's. Zero if the host would not forward that way.
static ALWAYS_INLINE u32 route_mtu(struct __sk_buff *skb, const struct syn *s, const u32 from[4], const u32 to[4])
{
	struct bpf_fib_lookup lookup = {
		.family = s->family == 4 ? AF_INET : AF_INET6,
		.l4_protocol = IP_TCP,
		.mtu = 0xffff, // a packet so long that the answer is the MTU
		.ifindex = skb->ifindex,
	};
	for (int i = 0; i < 4; i++) {
		lookup.source[i] = from[i];
		lookup.destination[i] = to[i];
	}
	if (bpf_fib_lookup(skb, &lookup, sizeof(lookup), 0) != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return 0;
	return lookup.mtu;
}

// wanted is a rule's MSS for the MSS in the SYN.
static ALWAYS_INLINE u32 wanted(struct __sk_buff *skb, const struct syn *s, const struct rule *r, u32 mss)
{
	switch (r->action) {
	case RAISE:
		return mss < r->mss ? r->mss : mss;
	case CLAMP:
		return mss > r->mss ? r->mss : mss;
	case CLAMP_TO_ROUTE:
	case CLAMP_TO_PMTU:
		break;
	default:
		return mss;
	}
	u32 mtu = route_mtu(skb, s, s->destination, s->source);
	if (r->action == CLAMP_TO_PMTU) {
		u32 back = route_mtu(skb, s, s->source, s->destination);
		if (back && (!mtu || back < mtu))
			mtu = back;
	}
	if (!mtu)
		return mss;
	u32 headers = (s->family == 4 ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header)) + TCP_HEADER_BYTES;
	u32 fits = mtu > headers + LEAST_MSS ? mtu - headers : LEAST_MSS;
	return mss > fits ? fits : mss;
}

// rewrite stores another MSS and keeps a right checksum right, and a wrong one
// wrong. The checksum adds words of two bytes from the header's beginning, so
// a value at an odd place counts with its bytes swapped.
static ALWAYS_INLINE bool rewrite(struct __sk_buff *skb, const struct syn *s, u32 at, u16 old, u16 new)
{
	u16 old_word = NETWORK16(old), new_word = NETWORK16(new), stored = new_word;
	if ((at - s->tcp) & 1) {
		old_word = __builtin_bswap16(old_word);
		new_word = __builtin_bswap16(new_word);
	}
	return bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM_AT, old_word, new_word, sizeof(new_word)) == 0 &&
	       bpf_skb_store_bytes(skb, at, &stored, sizeof(stored), 0) == 0;
}

// is_data is a fast test that a packet is no SYN: most are plain TCP with headers
// that can be read directly. It is false for any other packet, and parse decides
// on those.
static ALWAYS_INLINE bool is_data(struct __sk_buff *skb)
{
	u8 *ip = (u8 *)(long)skb->data + link_header_bytes, *end = (u8 *)(long)skb->data_end;
	u16 type = 0;
	if (link_header_bytes) {
		if (ip > end)
			return false;
		type = *(u16 *)(ip - sizeof(type));
		if (type == NETWORK16(ETH_8021Q)) {
			ip += VLAN_BYTES;
			if (ip > end)
				return false;
			type = *(u16 *)(ip - sizeof(type));
		}
		type = NETWORK16(type);
	}
	u8 *tcp = ip + sizeof(struct ipv4_header);
	if (tcp + sizeof(struct tcp_header) > end)
		return false;
	if (ip[0] == 0x45 && (!link_header_bytes || type == ETH_IPV4)) {
		if (((struct ipv4_header *)ip)->protocol != IP_TCP)
			return true;
	} else if (ip[0] >> 4 == 6 && (!link_header_bytes || type == ETH_IPV6)) {
		tcp = ip + sizeof(struct ipv6_header);
		if (((struct ipv6_header *)ip)->next != IP_TCP || tcp + sizeof(struct tcp_header) > end)
			return false;
	} else {
		return false;
	}
	return !(((struct tcp_header *)tcp)->flags & TCP_SYN);
}

SEC("tc") int mss(struct __sk_buff *skb)
{
	struct syn s = {};
	if (is_data(skb) || !parse(skb, &s))
		return NEXT;

	u32 zero = 0;
	void *rules = bpf_map_lookup_elem(&mss_tables, &zero);
	if (!rules)
		return NEXT;
	struct rule *r = 0;
	for (u32 i = 0; i < MAX_RULES; i++) {
		u32 key = i;
		r = bpf_map_lookup_elem(rules, &key);
		if (!r || !r->id)
			return NEXT;
		if (matches(r, &s))
			break;
		r = 0;
	}
	if (!r)
		return NEXT;

	u32 id = r->id;
	struct counters *c = bpf_map_lookup_elem(&mss_counters, &id);
	if (c)
		__sync_fetch_and_add(&c->matched, 1);
	u32 header_bytes = (s.header.words >> 4) * 4;
	if (s.tcp + header_bytes > s.end || s.end > skb->len)
		return NEXT;
	u32 found = find_mss(skb, s.tcp, header_bytes);
	if (!found)
		return NEXT;
	u32 at = s.tcp + (found >> 16), old = found & 0xffff;
	u32 new = wanted(skb, &s, r, old);
	if (new == old || !rewrite(skb, &s, at, old, new))
		return NEXT;
	if (c) {
		__sync_fetch_and_add(&c->rewritten, 1);
		c->last_ns = bpf_ktime_get_boot_ns();
		c->last = old << 16 | new;
	}
	return NEXT;
}
