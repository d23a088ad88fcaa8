package main

import (
	"fmt"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
	"longhaul/lab/link"
)

// The roles of trials of flows that meet. In each the flow in the subject's place comes
// first.
const (
	beside      role = "beside"       // the subject, and the others
	othersAlone role = "others alone" // the others, without anything in the subject's place
	another     role = "another"      // one of the others' kind in the subject's place
	reference   role = "reference"    // one of the others' kind beside the standard
	standardOne role = "standard alone"
)

// meeting is a mix of flows at a bottleneck.
type meeting struct {
	name, about string
	path        congestion.Path
	others      int
	ratio       float64 // of the farther side's round trip to the nearer one's
	weAreFar    bool
	quick       bool
}

// trial returns the run of one flow, if it is named, beside the others.
func (m meeting) trial(flow, others string) trial {
	near, far := group(flow, 1), group(others, m.others)
	if m.ratio > 1 && m.weAreFar {
		near.RTTRatio = m.ratio
	} else if m.ratio > 1 {
		far.RTTRatio = m.ratio
	}
	if flow == "" {
		return flows(m.path, meetingTime, far)
	}
	return flows(m.path, meetingTime, near, far)
}

// meetingTime is the duration of a run of flows that meet; its second half counts.
const meetingTime = usualTime

// meetings is the grid for a queue management: 1v1 and 1v4, queues of 0.5, 1 and 4 BDP,
// round trips in ratios up to 6.
func meetings(aqm link.AQMAlgorithm) []meeting {
	var all []meeting
	for _, ratio := range []float64{1, 3, 6} {
		for _, weAreFar := range []bool{true, false} {
			if ratio == 1 && weAreFar {
				continue
			}
			for _, queue := range []float64{0.5, 1, 4} {
				for _, others := range []int{1, 4} {
					m := meeting{path: clean(usualRate, usualRTT, queue), others: others, ratio: ratio, weAreFar: weAreFar}
					m.path.AQM.Algorithm = aqm
					m.name = fmt.Sprintf("q%g-1v%d", queue, others)
					m.about = fmt.Sprintf("%s, one flow beside %d", m.path, others)
					switch {
					case ratio == 1:
						m.quick = queue == 1 && aqm == link.NoAQM
					case weAreFar:
						m.name += fmt.Sprintf("-far%g", ratio)
						m.about += fmt.Sprintf(", its round trip %g times as long", ratio)
					default:
						m.name += fmt.Sprintf("-near%g", ratio)
						m.about += fmt.Sprintf(", theirs %g times as long", ratio)
					}
					all = append(all, m)
				}
			}
		}
	}
	return all
}

// theirGoodput returns the steady goodput of the others, each. They are the last group.
func theirGoodput(m measured) float64 {
	return stats.Mean(m.Groups[len(m.Groups)-1].SteadyBps)
}

// harmIn returns the harm to the others, by what they have alone and with the flow.
func harmIn(alone, with role) func(runs) float64 {
	return func(r runs) float64 {
		return congestion.Harm(median(alone, theirGoodput)(r), median(with, theirGoodput)(r))
	}
}

// harmSlack is the harm that two equal runs may differ by. It counts where another flow
// of the others' own kind does nearly none.
const harmSlack = 0.01

func harmBound(own float64) float64 { return max(worse*own, own+harmSlack) }

// minShare and maxShare bound the subject's goodput, of an equal share.
const (
	minShare = 0.7
	maxShare = 1.4
)

// excludes reports whether the bound of harm is below what the least share costs the
// others, even on a path that carries all that it can.
func (m meeting) excludes(bound func(runs) float64) func(runs) bool {
	left := m.path.LimitBps() * (1 - minShare/float64(m.others+1)) / float64(m.others)
	return func(r runs) bool { return congestion.Harm(median(othersAlone, theirGoodput)(r), left) > bound(r) }
}

// harmOf returns the cells in which the subject meets flows that use the standard, or
// its forerunner.
func (s subject) harmOf(others string, grid []meeting) []cell {
	var cells []cell
	for _, m := range grid {
		bound := func(r runs) float64 { return harmBound(harmIn(othersAlone, another)(r)) }
		cells = append(cells, cell{
			name: m.name, about: m.about, quick: m.quick,
			trials: map[role]trial{beside: m.trial(s.name, others), othersAlone: m.trial("", others), another: m.trial(others, others)},
			claims: []claim{
				atMost("harm", ratio, harmIn(othersAlone, beside), bound),
				atLeast("share", ratio, median(beside, ofFair), constant(minShare)),
				{title: "share of " + others, parts: []part{{unit: ratio, value: median(another, ofFair)}}},
				atMost("queue p95", ms, median(beside, queueP95), times(worse, median(another, queueP95))),
			},
			excludes: m.excludes(bound),
		})
	}
	return cells
}

const harmAbout = "Harm is (alone - shared) / alone of the others' goodput (R. Ware et al., HotNets 2019), by medians of the runs' second " +
	"halves. It is at most 1.1 times what one more of the others' own kind does in the same place, or 0.01 more than that. " +
	"The flow itself has at least 0.7 of an equal share of what all get; beside it stands what one of the others' kind " +
	"gets in its place. Harm by delay counts too: the queue's p95 is at most 1.1 times that with one more of their kind."

// queueName is the suffix of the names of families under a queue management, the words
// for it, and the section of RFC 9743 that it belongs to.
func queueName(aqm link.AQMAlgorithm) (suffix, words, section string) {
	switch aqm {
	case link.CoDel:
		return "-codel", "CoDel", "7.1"
	case link.FQCoDel:
		return "-fq-codel", "FQ-CoDel", "7.1"
	case link.PIE:
		return "-pie", "PIE", "7.1"
	}
	return "", "drop-tail queues", "6.1"
}

// harm: RFC 9743, sections 5.2.1, 6.1 and 7.1.
func (s subject) harm(aqm link.AQMAlgorithm) family {
	suffix, words, section := queueName(aqm)
	return family{name: "harm-cubic" + suffix, title: "Beside CUBIC, " + words, about: harmAbout, items: []string{section, "5.2.1"},
		cells: s.harmOf(standard, meetings(aqm))}
}

// harmReno: RFC 9743, section 5.2.1.
func (s subject) harmReno() family {
	var equal []meeting
	for _, m := range meetings(link.NoAQM) {
		if m.quick = false; m.ratio == 1 {
			equal = append(equal, m)
		}
	}
	return family{name: "harm-reno", title: "Beside Reno, drop-tail queues", about: "As beside CUBIC, with equal round trips.",
		items: []string{"5.2.1"}, cells: s.harmOf("reno", equal)}
}

// beside: RFC 9743, section 5.2.1: widely deployed algorithms that are no standard.
func (s subject) beside(rival string, aqm link.AQMAlgorithm) family {
	suffix, words, section := queueName(aqm)
	f := family{
		name: "beside-" + rival + suffix, title: "Beside " + rival + ", " + words, items: []string{section, "5.2.1"},
		about: fmt.Sprintf("Harm to %s is at most the harm that %[1]s does to CUBIC in the same place, or %g more. The flow has %g to %g of an equal share.",
			rival, harmSlack, minShare, maxShare),
	}
	for _, m := range meetings(aqm) {
		bound := func(r runs) float64 { return harmIn(standardOne, reference)(r) + harmSlack }
		f.cells = append(f.cells, cell{
			name: m.name, about: m.about, quick: m.quick && m.others == 1,
			trials: map[role]trial{beside: m.trial(s.name, rival), othersAlone: m.trial("", rival),
				reference: m.trial(rival, standard), standardOne: m.trial("", standard)},
			claims: []claim{
				atMost("harm", ratio, harmIn(othersAlone, beside), bound),
				{title: "share", parts: []part{{unit: ratio, value: median(beside, ofFair), least: constant(minShare), most: constant(maxShare)}}},
			},
			excludes: m.excludes(bound),
		})
	}
	return f
}

// bottlenecks: RFC 5166, section 2.3: flows through several bottlenecks.
func (s subject) bottlenecks() family {
	f := family{
		name: "bottlenecks", title: "Two bottlenecks in a row", items: []string{"5.2.1", "6.1"},
		about: "One flow crosses two links of the same rate and delay; a CUBIC crosses each of them alone. The flow harms each CUBIC at most " +
			"1.1 times as much as a CUBIC in its place, or 0.01 more, and gets at least 0.7 of that one's goodput.",
	}
	for _, queue := range []float64{1, 4} {
		p := clean(usualRate, usualRTT/2, queue)
		run := func(long string) trial {
			first, second := group(standard, 1), group(standard, 1)
			second.Leg = congestion.SecondLink
			t := flows(p, 60*time.Second, first, second)
			if long != "" {
				both := group(long, 1)
				both.Leg = congestion.BothLinks
				t.Groups = append(t.Groups, both)
			}
			t.SecondLink = true
			return t
		}
		harmTo := func(group int, with role) func(runs) float64 {
			return func(r runs) float64 {
				return congestion.Harm(median(othersAlone, steady(group))(r), median(with, steady(group))(r))
			}
		}
		c := cell{
			name: fmt.Sprintf("q%g", queue), about: p.String() + ", each of two links",
			trials: map[role]trial{beside: run(s.name), othersAlone: run(""), another: run(standard)},
		}
		for i, title := range []string{"harm on the first", "harm on the second"} {
			c.claims = append(c.claims, atMost(title, ratio, harmTo(i, beside), func(r runs) float64 { return harmBound(harmTo(i, another)(r)) }))
		}
		c.claims = append(c.claims, atLeast("long flow", mbps, median(beside, steady(2)), times(minShare, median(another, steady(2)))))
		f.cells = append(f.cells, c)
	}
	return f
}
