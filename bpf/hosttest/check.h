// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Parts of a test of the arithmetic on the host: the algorithms' integer types,
// wide reference arithmetic, and checks that count.
#pragma once

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define GLOBAL static

static int checks, failures;

// CHECK tests a condition, and prints the values if it is false.
#define CHECK(condition, ...)                                      \
	do {                                                       \
		checks++;                                          \
		if (!(condition) && failures++ < 20) {             \
			printf("%s:%d: ", __FILE__, __LINE__);     \
			printf(__VA_ARGS__);                       \
			printf("\n");                              \
		}                                                  \
	} while (0)

// near says whether a and b differ by at most rel of b, or by slack.
static inline bool near(double a, double b, double rel, double slack)
{
	return fabs(a - b) <= fabs(b) * rel || fabs(a - b) <= slack;
}

// Pseudo-random numbers, the same in every run (xorshift64*).
static u64 seed = 88172645463325252ull;

static inline u64 any_of(u64 *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 2685821657736338717ull;
}

static inline u64 any(void)
{
	return any_of(&seed);
}

// anyUpTo spreads over all magnitudes up to max.
static inline u64 any_up_to(u64 max)
{
	u64 n = any() >> (any() % 64);
	return max == ~0ull ? n : n % (max + 1);
}

// The end of every test program.
static inline int result(void)
{
	printf("%d checks, %d failures\n", checks, failures);
	return failures || !checks;
}

// The extremes for the arithmetic: 100 Gb/s over 2 s, in segments of 536 bytes.
#define FAST_WINDOW ((u32)(100e9 / 8 * 2 / 536)) // 4.7e7 segments
#define FAST_RATE 12500000000ull                 // bytes per second
#define LONG_RTT_US 2000000u
