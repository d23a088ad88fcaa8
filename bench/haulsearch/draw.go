package main

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// random is the source of the path of that number of a kind. It depends on
// nothing else: neither on the other kinds nor on the number of workers.
func random(seed uint64, kind string, n int) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(kind))
	return rand.New(rand.NewPCG(seed, h.Sum64()+uint64(n)))
}

// logUniform draws with equal chances in each decade, with three digits.
func logUniform(r *rand.Rand, least, most float64) float64 {
	v := significant(least*math.Exp(r.Float64()*math.Log(most/least)), 3)
	return min(max(v, least), most)
}

// uniform draws with equal chances everywhere, with three digits.
func uniform(r *rand.Rand, least, most float64) float64 {
	return min(max(significant(least+r.Float64()*(most-least), 3), least), most)
}

// drawRate draws a rate in Mb/s. Fast paths take long to simulate and are rarer.
func drawRate(r *rand.Rand, least, usual, most float64) float64 {
	if r.IntN(50) == 0 {
		return logUniform(r, usual, most)
	}
	return logUniform(r, least, usual)
}

// drawQueue draws a queue in BDP that holds at least some packets.
func drawQueue(r *rand.Rand, p path, least, most, leastPackets float64) float64 {
	least = max(least, roundUp(leastPackets/p.bdpPackets()))
	return logUniform(r, least, max(least, most))
}

// roundUp rounds up to three significant digits.
func roundUp(v float64) float64 {
	rounded := significant(v, 3)
	if rounded < v {
		rounded = significant(v*1.005, 3)
	}
	return rounded
}

// simulatedTime is a time in s, at least leastS, that takes about so many
// packets of the path if that is less than mostS.
func simulatedTime(p path, leastS, mostS, packets float64) float64 {
	leastS = math.Ceil(leastS)
	return max(leastS, math.Floor(min(mostS, packets*packetBytes*8/1e6/p.rateMbps())))
}

// withSeed adds the seed of the simulation's own random numbers.
func (p *path) withSeed(r *rand.Rand) { p.settings.set("seed", float64(1+r.IntN(9999))) }
