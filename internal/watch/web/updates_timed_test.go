//go:build timed

package web_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"longhaul/test/nettest"
	"longhaul/test/nettest/browser"
)

// Updates with thousands of flows cost the browser no more than with thirty:
// see docs/dashboard.md.
func TestUpdatesOfThousandsOfFlows(t *testing.T) {
	needsBrowser(t)
	d := serve(t, 2000, nil)
	p := browser.Open(t, d.base)
	for _, path := range manyFlows {
		t.Run(path, func(t *testing.T) {
			p := p.For(t)
			p.Go(path)
			p.Becomes("performance.getEntriesByName('update').length >= 3")
			measureUpdates(t, p, 12)
		})
	}
}

// The dashboard of a real relay with 2000 flows stays below its bounds in the
// browser.
func TestUpdatesOfRunningRelays(t *testing.T) {
	lookAtRelays(t, 2000, measureUpdates)
}

// measureUpdates compares the updates of the open page with their bounds.
// Script time is CPU time.
func measureUpdates(t *testing.T, p *browser.Page, updates int) {
	t.Helper()
	const (
		maxScript = 50 * time.Millisecond
		maxAge    = time.Second
	)
	nettest.MostOf(t, func() error {
		browser.Eval[any](p, "performance.clearMeasures('update')")
		before := p.Metrics()
		// The page itself waits: to be asked all the time would be most of its work.
		browser.Eval[any](p, fmt.Sprintf(`new Promise((done, late) => {
			const look = () => performance.getEntriesByName('update').length >= %d ? done() : setTimeout(look, 100);
			setTimeout(() => late(new Error('too few updates')), %d);
			look();
		})`, updates, (patience+time.Duration(updates)*time.Second).Milliseconds()))
		after := p.Metrics()
		of := func(name string) time.Duration {
			return milliseconds((after[name] - before[name]) * 1000 / float64(updates))
		}
		took := medians(browser.Eval[[]float64](p, "performance.getEntriesByName('update').map((e) => e.duration)"))
		age := medians(browser.Eval[[]float64](p, "performance.getEntriesByName('update').map((e) => e.detail.ageMilliseconds)"))
		script := of("ScriptDuration")
		t.Logf("an update: script %v of the CPU, all of the page's work %v; it takes %v, and is shown %v after the sample", script, of("TaskDuration"), took, age)
		if script > maxScript || age > maxAge {
			return fmt.Errorf("an update takes %v and is shown after %v, the bounds are %v and %v", script, age, maxScript, maxAge)
		}
		return nil
	})
}

func medians(all []float64) time.Duration {
	slices.Sort(all)
	return milliseconds(all[len(all)/2])
}

func milliseconds(v float64) time.Duration {
	return time.Duration(v * float64(time.Millisecond)).Round(10 * time.Microsecond)
}
