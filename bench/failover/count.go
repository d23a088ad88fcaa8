package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"longhaul/bench/kit"
)

// none is a figure that must be 0 in every run.
func none(name string, n int, example string) kit.Measured {
	return kit.Measured{Name: name, Value: float64(n), Bound: kit.AtMost(0), Exact: true, Example: example}
}

// countNew notes the new connections by their begin: before the failure, in the second after it,
// and later. Those that began before may end with their relay.
func countNew(all []attempt, way string, paired bool, at, back time.Time, reason func(client string) string, note func(kit.Measured)) {
	var began, failed [3]int
	var slowest [3]time.Duration
	var examples [3]string
	other, again, slow := 0, 0, ""
	for _, a := range all {
		when := 0
		if since := a.began.Sub(at); since >= 0 {
			when = 1 + min(int(since/time.Second), 1)
		}
		began[when]++
		switch {
		case a.err != nil:
			failed[when]++
			examples[when] = fmt.Sprintf("%+.3f s: number %d from %s, greeted %t, reached a target %t: %v, after %.3f s, reason %q",
				a.began.Sub(at).Seconds(), a.number, a.local, a.greets, a.reached, a.err, a.took.Seconds(), reason(a.local))
			continue
		case when > 0 && a.began.Before(back) && a.relay == 2:
			other++
		case a.began.After(back) && a.relay == 1:
			again++
		}
		if when > 0 && a.took > max(slowest[1], slowest[2]) {
			slow = fmt.Sprintf("began at %+.3f s, number %d, greeted %t", a.began.Sub(at).Seconds(), a.number, a.greets)
		}
		slowest[when] = max(slowest[when], a.took)
	}
	note(kit.Measured{Name: "new connections", Value: float64(len(all))})
	note(kit.Measured{Name: "by the other relay", Value: float64(other)})
	note(kit.Measured{Name: "by the relay that is back", Value: float64(again)})
	for i, name := range []string{"failed, begun before", "failed, begun in the 1st second", "failed, begun later"} {
		m := kit.Measured{Name: name, Value: float64(failed[i]), Example: examples[i]}
		// Without pairs no check finds a relay that hangs.
		if planned(way) || i == 2 && (paired || way != frozen) {
			m.Bound, m.Exact = kit.AtMost(0), true
		}
		note(m)
	}
	before := kit.Measured{Name: "slowest, begun before", Unit: "s", Value: slowest[0].Seconds()}
	if paired && (dies(way) || planned(way)) { // else a flow that has its target waits for its relay
		before.Bound, before.Exact = kit.AtMost(slowestMost), true
	}
	note(before)
	m := kit.Measured{Name: "slowest, begun after", Unit: "s", Value: max(slowest[1], slowest[2]).Seconds(), Example: slow}
	served := kit.Measured{Name: "served of those begun after", Unit: "%", Value: 100 * (1 - share(failed[1]+failed[2], began[1]+began[2]))}
	if paired {
		m.Bound, m.Exact = kit.AtMost(slowestMost), true
		served.Bound, served.Exact = kit.AtLeast(servedLeast), true
	}
	note(m)
	note(served)
}

func share(part, of int) float64 { return float64(part) / float64(max(of, 1)) }

// noteTwice notes the requests that reached two targets.
func noteTwice(t *target, note func(kit.Measured)) {
	note(none("requests that reached two targets", t.twice(), ""))
}

// countStanding notes the standing connections of the other relay, which must notice nothing, and
// those of the relay that failed.
func (w *world) countStanding(s *standing, way string, paired bool, at time.Time, note func(kit.Measured)) {
	all, ended, touched, whole, unnamed := [3]int{}, 0, 0, 0, 0
	var longest [3]time.Duration
	var latest time.Duration
	example, strange := "", ""
	reasons := map[string]int{}
	for _, f := range s.flows {
		all[f.relay]++
		longest[f.relay] = max(longest[f.relay], f.longest)
		if f.err == nil {
			continue
		}
		if isWhole(f.err) {
			whole++
		}
		reason, _, _ := strings.Cut(w.reason(f.local), " ")
		text := fmt.Sprintf("%s at %+.3f s: %v, reason %q", f.local, f.ended.Sub(at).Seconds(), f.err, reason)
		if f.relay == 2 {
			touched++
			strange = text
			continue
		}
		ended++
		example = text
		latest = max(latest, f.ended.Sub(at))
		reasons[reason]++
		if reason == "" {
			unnamed++
		}
	}
	note(kit.Measured{Name: "standing on the other relay", Value: float64(all[2])})
	note(none("of them ended", touched, strange))
	note(kit.Measured{Name: "their slowest answer", Unit: "s", Value: longest[2].Seconds()})
	note(kit.Measured{Name: "standing on the relay that failed", Value: float64(all[1])})
	if !dies(way) {
		note(none("ended of these", ended, example))
		note(kit.Measured{Name: "their slowest answer on it", Unit: "s", Value: longest[1].Seconds()})
		return
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, fmt.Sprintf("%d × %s", reasons[reason], reason))
	}
	note(none("not ended of these", all[1]-ended, ""))
	note(kit.Measured{Name: "ended of these", Value: float64(ended), Example: strings.Join(list, ", ")})
	note(kit.Measured{Name: "the last of them ended after", Unit: "s", Value: latest.Seconds()})
	note(none("ends that look whole", whole, example))
	if paired {
		note(none("resets without a reason in the log", unnamed, example))
	}
}

// isWhole says whether a connection ended as if the target had ended it.
func isWhole(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
