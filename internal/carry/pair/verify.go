package pair

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Lanes that share a queue take more from other flows there than one lane would. So several
// lanes stay only if each goes as fast as if it were alone: then a limit of each connection
// is what they have in common, and no queue. A verification pauses all lanes but the main
// one, again and again. In a shared queue that one speeds up meanwhile.
const (
	// verifyShare is the share of its rate alone that the main lane must have beside the
	// others.
	verifyShare = 0.85
	// verifyContends is the share below which they certainly slow it down. One pause shows
	// that by a share below verifyClearly.
	verifyContends = 0.95
	verifyClearly  = 0.7
	// verifyUneven is by how much the mean of the lanes' shares exceeds that of the main one
	// where this one has to share with some of them, and others have a link of their own.
	verifyUneven = 0.15
	// verifyApart is by how much the logarithms of two shares differ that are not one's.
	verifyApart = 0.25
	// verifyQueued is the number of pauses with a standing queue that show neighbours.
	verifyQueued = 2
	// verifyPauses bounds the pauses. If the result is still uncertain after them, the lanes
	// count as having no limits of their own.
	verifyPauses = 6
	// verifyFills is the number of pauses before lanes that fill a queue by themselves are
	// too many for the main lane's share: a loss that they cause may fall on it by chance.
	verifyFills = 3
	// verifyGrows bounds the measurements before the first pause. A pause would hold up lanes
	// that still grow, since others are gone that shared their links.
	verifyGrows  = 4
	verifyGrowth = 1.05
	// verifySigmas is how certain it must be, in standard errors.
	verifySigmas = 1.8
	// verifyObserved is how many observations of the differences below lanes need to stay.
	verifyObserved = 7
	// What the rates of one lane at two moments are expected to differ by (a standard
	// deviation, as a share), and how many observations this guess is worth.
	verifyGuess       = 0.1
	verifyGuessWeight = 2
	// medianToDeviation makes a standard deviation of a normal distribution's median
	// absolute deviation.
	medianToDeviation = 1.48
)

// laneBytes is what one lane has carried in a direction.
type laneBytes struct {
	of    *lane
	bytes uint64
}

// laneRate is bytes a second of one lane over one measurement.
type laneRate struct {
	of   *lane
	rate float64
}

// laneRates are those of all lanes of a flow, the main one first.
type laneRates []laneRate

// sum is the rate of all lanes.
func (r laneRates) sum() (sum float64) {
	for _, lane := range r {
		sum += lane.rate
	}
	return sum
}

// reach reports whether a lane has a rate.
func (r laneRates) reach(rate float64) bool {
	return slices.ContainsFunc(r, func(l laneRate) bool { return l.rate >= rate })
}

// even reports whether all lanes are about as fast.
func (r laneRates) even() bool {
	middle := r.middle()
	return !slices.ContainsFunc(r, func(l laneRate) bool { return l.rate < tuneShare*middle || middle < tuneShare*l.rate })
}

// before are the rates with the first n lanes as the fastest ones.
func (r laneRates) before(n int) laneRates {
	r = slices.Clone(r)
	for i := range min(n, len(r)) {
		r[i].rate = math.Inf(1)
	}
	return r
}

// fastest is the highest rate that is known.
func (r laneRates) fastest() (rate float64) {
	for _, lane := range r {
		if !math.IsInf(lane.rate, 1) {
			rate = max(rate, lane.rate)
		}
	}
	return rate
}

// of is the rate of one lane; 0: it is not known.
func (r laneRates) of(l *lane) float64 {
	for _, lane := range r {
		if lane.of == l {
			return lane.rate
		}
	}
	return 0
}

// middle is the rate that half of the lanes have at least.
func (r laneRates) middle() float64 {
	sorted := slices.Clone(r)
	slices.SortFunc(sorted, func(a, b laneRate) int { return cmp.Compare(b.rate, a.rate) })
	return sorted[len(sorted)/2].rate
}

// verification compares the main lane's rate alone with that beside the others.
type verification struct {
	lanes  int
	sought bool      // others are gone that may have shared their links
	fills  bool      // a queue stood with the further lanes, and none without
	alone  bool      // the others pause
	before laneRates // of the latest measurement of all lanes; nil: none yet
	queued int       // pauses in which a queue stood
	single float64   // the main lane's rate in the latest pause
	worth  float64   // the lanes' rate beside each other, in rates of the main lane alone: a sum over shares
	shares []float64 // logarithms: the main lane's rate beside the others by that alone
	middle []float64 // the same of the lanes' median beside each other, by the main lane's alone

	expected float64 // the lanes' rate beside each other if none slows another down; 0: not known
	grown    int     // measurements before the first pause

	differences []float64 // between the rates of a lane at two moments, as shares of it; absolute
}

// verdict is what a verification has found so far.
type verdict int

const (
	undecided  verdict = iota
	separate           // each lane goes as fast as alone
	contending         // the lanes slow each other down
	uncertain          // they may
	crowded            // others fill a queue that the flow shares, or it cannot be told
)

// take takes a measurement, and the queue that stood meanwhile. A queue that stands without
// the further lanes is the neighbours'.
func (v *verification) take(rates laneRates, queue time.Duration) (verdict, string) {
	if len(rates) == 0 {
		return undecided, ""
	}
	if v.alone {
		v.single, v.alone = rates[0].rate, false
		for _, other := range rates[1:] {
			if other.rate > v.single/4 {
				return crowded, "the other relay cannot pause lanes"
			}
		}
		if queue > 0 {
			v.queued++
		}
		if v.queued == verifyQueued {
			return crowded, fmt.Sprintf("a queue of %v stands without the further lanes", queue.Round(time.Millisecond))
		}
		return undecided, ""
	}
	v.fills = v.fills || queue > 0
	before := v.before
	if v.grown++; len(v.shares) == 0 && v.grown < verifyGrows && v.single == 0 && v.grows(rates) {
		v.before = rates
		return undecided, ""
	}
	v.before, v.alone = rates, true
	if before == nil || before[0].of != rates[0].of || v.single == 0 {
		v.single = 0
		return undecided, ""
	}
	for _, now := range rates {
		for _, then := range before {
			if now.of == then.of && now.rate > 0 && then.rate > 0 {
				v.differences = append(v.differences, math.Abs(math.Log(now.rate/then.rate))/math.Sqrt2)
			}
		}
	}
	for _, now := range rates {
		v.worth += now.rate / v.single
	}
	if v.sought && len(v.shares) == 0 && rates.sum() > tuneGrowth*before.sum() {
		before = rates // they still grew
	}
	v.shares = append(v.shares, math.Log(max((before[0].rate+rates[0].rate)/2/v.single, 1e-3)))
	v.middle = append(v.middle, math.Log(max((before.middle()+rates.middle())/2/v.single, 1e-3)))
	return v.judge()
}

// evidence are the shares that decide: those of the lanes' median, which no loss on one lane
// changes, or those of the main one where it has far more: it may have a link of its own.
func (v *verification) evidence() (shares []float64, mean float64) {
	main, middle := meanOf(v.shares), meanOf(v.middle)
	if main > middle+verifyApart {
		return v.shares, main
	}
	return v.middle, middle
}

// grows reports whether the lanes may still grow.
func (v *verification) grows(rates laneRates) bool {
	if rates.sum() >= verifyShare*v.expected {
		return false
	}
	return v.before == nil || rates.sum() > verifyGrowth*v.before.sum()
}

func meanOf(values []float64) (mean float64) {
	for _, value := range values {
		mean += value / float64(len(values))
	}
	return mean
}

// meanWorth is the lanes' rate beside each other, in rates of the main lane alone.
func (v *verification) meanWorth() float64 { return v.worth / float64(len(v.shares)) }

// remain is the number of lanes that a verdict leaves. They fill a queue that nobody else
// fills, or some of them have a link of their own: then fewer may not contend.
func (v *verification) remain(found verdict) int {
	_, mean := v.evidence()
	share, worth := math.Exp(mean), v.meanWorth()
	switch {
	case found == separate:
		return v.lanes
	case v.queued > 0:
	case found == contending && worth > (share+verifyUneven)*float64(v.lanes):
		return min(int(worth+0.5), v.lanes-1)
	case found == contending && v.fills:
		return min(int(min(share*float64(v.lanes), worth)+0.3), v.lanes-1)
	case found == uncertain && v.fills:
		return v.lanes / 2
	}
	return 0
}

// judge decides if the shares leave no doubt.
func (v *verification) judge() (verdict, string) {
	shares, mean := v.evidence()
	n := float64(len(shares))
	// A share has the error of one rate alone and of the mean of two beside the others.
	doubt := verifySigmas * v.deviation(shares) * math.Sqrt(1.5/n)
	why := fmt.Sprintf("beside the others a lane has %.0f %% of its rate alone", 100*math.Exp(mean))
	switch {
	case n > 1 && v.fills && v.queued == 0 && v.meanWorth() < tuneShare*float64(v.lanes):
		return contending, fmt.Sprintf("%d lanes fill a queue, and bring as much as %.1f", v.lanes, v.meanWorth())
	case len(v.differences)+len(shares) > verifyObserved && mean-doubt >= math.Log(verifyShare):
		return separate, why
	case mean+doubt > math.Log(verifyContends) || v.fills && n < verifyFills:
	case n > 1 || mean < math.Log(verifyClearly):
		return contending, why
	}
	if n >= verifyPauses {
		return uncertain, why + ", give or take " + fmt.Sprintf("%.0f %%", 100*doubt)
	}
	return undecided, ""
}

// deviation is the standard deviation of a lane's rate from one moment to the next, as a share
// of it. It comes from the median of the differences, since a lane that loses a whole window
// now and then makes all others no less certain.
func (v *verification) deviation(shares []float64) float64 {
	all := slices.Clone(v.differences)
	for i := range shares[1:] {
		all = append(all, math.Abs(shares[i+1]-shares[i])/math.Sqrt(2*1.5))
	}
	slices.Sort(all)
	n, median := float64(len(all)), 0.0
	if len(all) > 0 {
		median = medianToDeviation * all[len(all)/2]
	}
	return math.Sqrt((n*median*median + verifyGuessWeight*verifyGuess*verifyGuess) / (n + verifyGuessWeight))
}
