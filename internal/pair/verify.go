package pair

import (
	"fmt"
	"math"
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
	// verifyContends is the share below which they certainly slow it down.
	verifyContends = 0.95
	// verifyQueued is the number of pauses with a standing queue that show neighbours.
	verifyQueued = 2
	// verifyPauses bounds the pauses. If the result is still uncertain after them, the lanes
	// count as having no limits of their own.
	verifyPauses = 6
	// verifyFills is the number of pauses before lanes that fill a queue by themselves are
	// too many for the main lane's share: a loss that they cause may fall on it by chance.
	verifyFills = 3
	// verifySigmas is how certain it must be, in standard errors.
	verifySigmas = 1.5
	// verifyObserved is how many observations of the differences below lanes need to stay.
	verifyObserved = 8
	// What the rates of one lane at two moments are expected to differ by (a standard
	// deviation, as a share), and how many observations this guess is worth.
	verifyGuess       = 0.1
	verifyGuessWeight = 2
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

// verification compares the main lane's rate alone with that beside the others.
type verification struct {
	lanes  int
	fills  bool      // a queue stood with the further lanes, and none without
	alone  bool      // the others pause
	before laneRates // of the latest measurement of all lanes; nil: none yet
	queued int       // pauses in which a queue stood
	single float64   // the main lane's rate in the latest pause
	worth  float64   // the lanes' rate beside each other, in rates of the main lane alone: a sum over shares
	shares []float64 // logarithms: the main lane's rate beside the others by that alone

	squares  float64 // of differences between the rates of a lane at two moments, as shares
	observed float64 // differences
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
	v.before, v.alone = rates, true
	if before == nil || before[0].of != rates[0].of || v.single == 0 {
		v.single = 0
		return undecided, ""
	}
	for _, now := range rates {
		for _, then := range before {
			if now.of == then.of && now.rate > 0 && then.rate > 0 {
				v.observe(math.Log(now.rate/then.rate) / math.Sqrt2)
			}
		}
	}
	for _, now := range rates {
		v.worth += now.rate / v.single
	}
	v.shares = append(v.shares, math.Log(max((before[0].rate+rates[0].rate)/2/v.single, 1e-3)))
	return v.judge()
}

func (v *verification) observe(difference float64) {
	v.squares += difference * difference
	v.observed++
}

// mean is the mean of the shares' logarithms.
func (v *verification) mean() (mean float64) {
	for _, share := range v.shares {
		mean += share / float64(len(v.shares))
	}
	return mean
}

// remain is the number of lanes that a verdict leaves. They fill a queue that nobody else
// fills: then fewer may not.
func (v *verification) remain(found verdict) int {
	switch {
	case found == separate:
		return v.lanes
	case found == contending && v.fills && v.queued == 0:
		fit := min(math.Exp(v.mean())*float64(v.lanes), v.worth/float64(len(v.shares)))
		return min(int(fit), v.lanes-1)
	case found == uncertain && v.fills && v.queued == 0:
		return v.lanes / 2
	}
	return 0
}

// judge decides if the shares leave no doubt.
func (v *verification) judge() (verdict, string) {
	n, mean := float64(len(v.shares)), v.mean()
	squares, observed := v.squares+verifyGuessWeight*verifyGuess*verifyGuess, v.observed+n-1
	for _, share := range v.shares {
		squares += (share - mean) * (share - mean)
	}
	// A share has the error of one rate alone and of the mean of two beside the others.
	doubt := verifySigmas * math.Sqrt(squares/(observed+verifyGuessWeight)*1.5/n)
	why := fmt.Sprintf("beside the others a lane has %.0f %% of its rate alone", 100*math.Exp(mean))
	switch {
	case len(v.shares) > 1 && v.fills && v.queued == 0 && v.worth/n < tuneShare*float64(v.lanes):
		return contending, fmt.Sprintf("%d lanes fill a queue, and bring as much as %.1f", v.lanes, v.worth/n)
	case observed >= verifyObserved && mean-doubt >= math.Log(verifyShare):
		return separate, why
	case mean+doubt <= math.Log(verifyContends) && (!v.fills || len(v.shares) >= verifyFills):
		return contending, why
	case len(v.shares) >= verifyPauses:
		return uncertain, why + ", give or take " + fmt.Sprintf("%.0f %%", 100*doubt)
	}
	return undecided, ""
}
