package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"longhaul/internal/find/doctor"
)

// Outcome has the doctor's right and wrong verdicts.
type Outcome struct {
	Scenarios int    `json:"scenarios"`
	Tolerant  string `json:"loss_tolerant"` // congestion control of the remedies of loss
	Failed    int    `json:"failed"`        // without a verdict
	// NoSingle counts scenarios with two equal hindrances: removing one brings
	// nothing, and no verdict is right or wrong.
	NoSingle int     `json:"no_single_cause"`
	Accuracy float64 `json:"accuracy"`
	// Recall is the share of each cause's scenarios in which the doctor named it.
	Recall map[doctor.Cause]float64 `json:"recall"`
	// Confusion counts verdicts by cause.
	Confusion map[doctor.Cause]map[doctor.Cause]int `json:"confusion"`
	// GainWithinBand is the share of first remedies that bring between 0.8 and 1.25
	// of the predicted goodput.
	GainWithinBand float64 `json:"gain_within_band"`
	Gains          int     `json:"gains"` // how many those are
	// Pairs are the predictions of a relay pair, by mode and hindrance. "all" is the
	// sum of a mode.
	Pairs map[Mode]map[string]PairCount `json:"relay_pair"`
	Cases []Result                      `json:"cases"`
}

// PairCount counts predictions of a relay pair.
type PairCount struct {
	Predicted int `json:"predicted"`
	Within    int `json:"within"`  // 0.8 to 1.25 of what the pair brought
	NoFigure  int `json:"unknown"` // doctor named no figure
	Failed    int `json:"failed"`  // without a verdict
}

func (c PairCount) share() float64 { return float64(c.Within) / float64(max(c.Predicted, 1)) }

// count counts a prediction.
func (c *PairCount) count(p Pair) {
	switch {
	case p.Error != "":
		c.Failed++
	case p.PredictedBps == 0:
		c.NoFigure++
	default:
		c.Predicted++
		if p.within() {
			c.Within++
		}
	}
}

// hindrance names what limits the scenario.
func (r *Result) hindrance() string {
	switch len(r.Hindrances) {
	case 0:
		return string(doctor.Healthy)
	case 1:
		return string(r.Hindrances[0])
	}
	return "mixed"
}

// countPairs counts the predictions of a relay pair.
func countPairs(results []Result) map[Mode]map[string]PairCount {
	pairs := map[Mode]map[string]PairCount{}
	for i := range results {
		for _, p := range results[i].Pairs {
			if pairs[p.Mode] == nil {
				pairs[p.Mode] = map[string]PairCount{}
			}
			for _, name := range []string{allCauses, results[i].hindrance()} {
				c := pairs[p.Mode][name]
				c.count(p)
				pairs[p.Mode][name] = c
			}
		}
	}
	return pairs
}

// allCauses is the sum of a mode in [Outcome.Pairs].
const allCauses = "all"

// writePairs prints a table of the predictions of a relay pair.
func (o Outcome) writePairs(w io.Writer) error {
	if len(o.Pairs) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nrelay pair within 0.8 to 1.25 of what was predicted (and without a figure):")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	names := []string{allCauses, "mixed"}
	for _, cause := range doctor.Causes() {
		names = append(names, string(cause))
	}
	header := "hindrance"
	for _, mode := range Modes() {
		header += "\t" + string(mode)
	}
	fmt.Fprintln(table, header)
	for _, name := range names {
		line, seen := name, false
		for _, mode := range Modes() {
			c, ok := o.Pairs[mode][name]
			line += "\t"
			if !ok {
				continue
			}
			seen = true
			line += fmt.Sprintf("%d of %d", c.Within, c.Predicted)
			if none := c.NoFigure + c.Failed; none > 0 {
				line += fmt.Sprintf(" (%d)", none)
			}
			if name == allCauses && c.Predicted > 0 {
				line += fmt.Sprintf(", %.1f %%", 100*c.share())
			}
		}
		if seen {
			fmt.Fprintln(table, line)
		}
	}
	return table.Flush()
}

// judge determines the causes, and whether the verdict is right. If no hindrance is the
// cause, the doctor's cause may be right.
func (r *Result) judge() {
	r.Causes = []doctor.Cause{}
	lifts := func(cause doctor.Cause) bool {
		bps := r.Without[cause]
		return bps >= doctor.Worthwhile*r.GoodputBps && bps > 0
	}
	for _, cause := range r.Hindrances {
		if lifts(cause) {
			r.Causes = append(r.Causes, cause)
		}
	}
	if len(r.Causes) == 0 && lifts(r.Verdict) {
		r.Causes = append(r.Causes, r.Verdict)
	}
	slices.SortFunc(r.Causes, func(a, b doctor.Cause) int {
		return cmp.Or(cmp.Compare(r.Without[b], r.Without[a]), cmp.Compare(a, b))
	})
	r.AchievedBps = r.Without[r.Verdict]
	truth := r.truth()
	// Of two hindrances whose removal brings nearly the same, either is right.
	r.Right = r.Verdict == truth || slices.Contains(r.Causes, r.Verdict) && r.Without[r.Verdict] >= 0.9*r.Without[truth]
}

// truth returns the cause.
func (r *Result) truth() doctor.Cause {
	switch {
	case len(r.Causes) > 0:
		return r.Causes[0]
	case slices.Contains(r.Hindrances, doctor.Congestion):
		return doctor.Congestion
	}
	return doctor.Healthy
}

func summarize(results []Result) Outcome {
	o := Outcome{Scenarios: len(results), Recall: map[doctor.Cause]float64{}, Confusion: map[doctor.Cause]map[doctor.Cause]int{}, Cases: results}
	right, within := 0, 0
	total, found := map[doctor.Cause]int{}, map[doctor.Cause]int{}
	for i := range results {
		r := &results[i]
		if r.Error != "" {
			o.Failed++
			continue
		}
		if len(r.Hindrances) > 1 && len(r.Causes) == 0 {
			o.NoSingle++
			continue
		}
		truth := r.truth()
		total[truth]++
		verdict := r.Verdict
		if r.Right {
			right++
			found[truth]++
			verdict = truth
		}
		if o.Confusion[truth] == nil {
			o.Confusion[truth] = map[doctor.Cause]int{}
		}
		o.Confusion[truth][verdict]++
		if r.PredictedBps > 0 && r.AchievedBps > 0 {
			o.Gains++
			if ratio := r.PredictedBps / r.AchievedBps; ratio >= 0.8 && ratio <= 1.25 {
				within++
			}
		}
	}
	o.Pairs = countPairs(results)
	o.Accuracy = float64(right) / float64(max(len(results)-o.NoSingle, 1))
	o.GainWithinBand = float64(within) / float64(max(o.Gains, 1))
	for cause, n := range total {
		o.Recall[cause] = float64(found[cause]) / float64(n)
	}
	return o
}

// WriteText prints the confusion matrix and the wrong verdicts.
func (o Outcome) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d scenarios: %.1f %% named right, %d without a verdict, %d without a single cause\n", o.Scenarios, 100*o.Accuracy, o.Failed, o.NoSingle)
	fmt.Fprintf(w, "first remedies within 0.8 to 1.25 of what was predicted: %.1f %% of %d\n\n", 100*o.GainWithinBand, o.Gains)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "cause\tscenarios\tnamed\ttaken for")
	for _, cause := range doctor.Causes() {
		verdicts := o.Confusion[cause]
		if len(verdicts) == 0 {
			continue
		}
		n, wrong := 0, ""
		for _, verdict := range doctor.Causes() {
			n += verdicts[verdict]
			if verdict != cause && verdicts[verdict] > 0 {
				wrong += fmt.Sprintf("%s %d  ", verdict, verdicts[verdict])
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%.0f %%\t%s\n", cause, n, 100*o.Recall[cause], wrong)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return o.writePairs(w)
}
