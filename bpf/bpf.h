// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Declarations of the compiler and of the kernel's BPF interface for a program:
// integer names, sections, map definitions, helpers, and relocated reads.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;
typedef u8 bool;
enum { false, true };

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

// The verifier checks a global function once, for any arguments. A function with
// many ways through it and many callers must be one. The verifier assumes that any
// pointer argument may be null.
#define GLOBAL __attribute__((noinline))

// The licence string decides which helpers the kernel lets a program use;
// struct_ops requires one that is compatible with the GPL.
#define LICENSE char _license[] SEC("license") = "Dual BSD/GPL"

// Map definitions are types that only BTF sees: a number becomes the length of
// an array, a type what a pointer points to.
#define MAP_INT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_SK_STORAGE = 24,

	BPF_F_NO_PREALLOC = 1 << 0, // map flag
	BPF_NOEXIST = 1 << 0,	    // of map_update_elem

	BPF_SK_STORAGE_GET_F_CREATE = 1 << 0, // of sk_storage_get

	// Value of the map attribute "pinning": the loader pins the map under
	// its own name, and finds it there the next time.
	PIN_BY_NAME = 1,
};

struct bpf_spin_lock {
	u32 val;
};

// Helpers are called by number.
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(void *skb, u32 at, const void *from, u32 bytes, u64 flags) = (void *)9;
static long (*bpf_l4_csum_replace)(void *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)11;
static long (*bpf_skb_load_bytes)(const void *skb, u32 at, void *to, u32 bytes) = (void *)26;
static long (*bpf_fib_lookup)(void *skb, void *lookup, int bytes, u32 flags) = (void *)69;
static long (*bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static long (*bpf_setsockopt)(void *sk, int level, int option, void *value, int bytes) = (void *)49;
static long (*bpf_getsockopt)(void *sk, int level, int option, void *value, int bytes) = (void *)57;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125;

// Records of the kernel are declared with the used fields only. The loader fixes
// their offsets for the running kernel.
#define KERNEL_RECORDS_BEGIN \
	_Pragma("clang attribute push(__attribute__((preserve_access_index)), apply_to = record)")
#define KERNEL_RECORDS_END _Pragma("clang attribute pop")

// EXISTS is true if the running kernel has a field.
#define EXISTS(field) __builtin_preserve_field_info(field, 2)

// READ_BITS reads a bit field from a record behind a pointer of the kernel. The
// field's place and size in its bytes differ between kernels.
#define READ_BITS(p, field)                                                          \
	({                                                                           \
		const void *at_ = (const void *)(p) +                                \
				  __builtin_preserve_field_info((p)->field, 0);      \
		u64 bits_ = 0;                                                       \
		switch (__builtin_preserve_field_info((p)->field, 1)) {              \
		case 1:                                                              \
			bits_ = *(const u8 *)at_;                                    \
			break;                                                       \
		case 2:                                                              \
			bits_ = *(const u16 *)at_;                                   \
			break;                                                       \
		case 4:                                                              \
			bits_ = *(const u32 *)at_;                                   \
			break;                                                       \
		case 8:                                                              \
			bits_ = *(const u64 *)at_;                                   \
			break;                                                       \
		}                                                                    \
		bits_ <<= __builtin_preserve_field_info((p)->field, 4);              \
		bits_ >>= __builtin_preserve_field_info((p)->field, 5);              \
		bits_;                                                               \
	})
