// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Haul's rules, each with a switch: the simulator shows what each is good for. In the
// BPF program all are on. Include this before haul.h.
#pragma once

#define HAUL_RULES(X)                                                                  \
	X(mean, "a flow with less than the host's others keeps a longer queue")       \
	X(noise, "jitter is no queue")                                                 \
	X(room, "half of a queue that overflowed bounds the target")                   \
	X(pace, "no more arrives than was sent")                                       \
	X(busy, "while a queue stands, what arrives is the capacity")                  \
	X(quarter, "a longer queue slows the pace within a round trip")                \
	X(long_epoch, "an epoch has at least 48 packets")                              \
	X(steps, "growth is faster the longer no queue shows")                         \
	X(mean_grow, "a flow with less than the host's others grows faster")          \
	X(overflow, "up to half of a queue carried no loss is an overflow")            \
	X(triple, "start-up triples on long paths")                                    \
	X(start_proof, "loss in a growing start-up is the path's own")                 \
	X(start_before, "start-up's proof needs losses before its last round")         \
	X(start_loss, "a lossy start-up ends at what arrives")                         \
	X(resume, "it begins with what the path carried")                              \
	X(test, "a queue that does not yield is tested")                               \
	X(join, "the host's other flows join a test")                                  \
	X(strict, "beside a rival any queue that comes back is a rival's")             \
	X(first, "the first queue beside CUBIC's window is tested at once")            \
	X(narrower, "a test restores less if less than half arrives")                  \
	X(start_drain, "after start-up the queue's output is the capacity")            \
	X(drain_longer, "a test begins anew if the path becomes longer")               \
	X(drain_slow, "a test restores less if its queue does not empty")              \
	X(rival_floor, "a rival clears the floor")                                     \
	X(rival_twice, "cruise keeps a small floor of a raise at a first rival")        \
	X(pool, "the floor is at most the recent loss")                                \
	X(probe, "a probe sends less, to see the path's own loss and delay")           \
	X(raise, "a raise sends twice as much, to prove the floor")                    \
	X(raise_interval, "raises come at ever longer intervals")                      \
	X(raise_low, "a raise begins at half of what arrived before, or less")            \
	X(raise_few, "a floor above a quarter needs many packets")                     \
	X(passed, "it leaves CUBIC's window when as much arrives as before")           \
	X(wider, "it leaves CUBIC's window when that grows without a loss")            \
	X(spare, "few losses from a short queue are no congestion")                    \
	X(marks, "a mark shortens the queue first")                                    \
	X(vain, "if most is lost, it sends what arrives")                              \
	X(late, "a pace that the host keeps late is raised")

enum haul_rule {
#define HAUL_RULE_NUMBER(name, says) HAUL_RULE_##name,
	HAUL_RULES(HAUL_RULE_NUMBER)
#undef HAUL_RULE_NUMBER
	HAUL_RULE_COUNT,
};

static const struct {
	const char *name, *says;
} haul_rules[] = {
#define HAUL_RULE_NAME(name, says) {#name, says},
	HAUL_RULES(HAUL_RULE_NAME)
#undef HAUL_RULE_NAME
};

static u64 haul_rules_off; // a bit for each

#define HAUL_RULE(name) (!(haul_rules_off >> HAUL_RULE_##name & 1))
