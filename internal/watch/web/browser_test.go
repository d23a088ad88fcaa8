package web_test

import (
	"flag"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest/browser"
)

// needsBrowser skips the test without a browser, before it starts any servers.
func needsBrowser(t *testing.T) {
	t.Helper()
	browser.Require(t)
	if testing.Short() {
		t.Skip("a browser takes its time: without -short")
	}
}

// pages lists all pages, each with a text that proves its content.
func pages(record int64) map[string]string {
	shown := func(selector, text string) string {
		return fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.innerText.includes(%q))", selector, text)
	}
	old := " && " + shown(".hint", "figures of flows are up to 7.00 s old")
	return map[string]string{
		"/":                    shown("tbody th", "to-site-b") + " && " + shown("tbody th", "site-c") + " && document.querySelectorAll('canvas').length === 2" + old,
		"/flows":               "document.querySelectorAll('tbody tr').length === 30",
		"/flows/7":             shown(".chain", "this relay") + " && document.querySelectorAll('canvas').length === 2 && " + shown(".legend", ":40003") + " && " + shown(".verdict", "4 connections over the WAN") + " && " + shown("tbody th", "10.10.10.20:40003") + " && " + shown(".facts a", webfake.Name(7).String()),
		"/tunnels/to-site-b":   shown(".chain", "relay-c") + " && " + shown(".badge.warn", "lost 0.21 %") + " && " + shown("tbody th", "near end here") + old,
		"/tunnels/replication": shown(".alert", "standby.example.net:6000") + " && " + shown(".badge.bad", "high"),
		"/pairs":               shown("tbody th", "site-b") + " && " + shown(".badge.bad", "key-unknown") + " && " + shown("tbody small", "do not know each other's keys") + " && " + shown("tbody small", "network is unreachable") + " && " + shown(".facts", "41 MB"),
		"/events":              shown("tbody th", "standby.example.net:6000") + " && " + shown(".badge.bad", "lost") + " && " + shown("tbody td", "no answer in time"),
		"/transfers":           "document.querySelectorAll('tbody tr').length === 50",
		"/transfers?name=" + webfake.Name(1).String(): shown("tbody td", "from-site-b") + " && document.querySelectorAll('tbody tr').length === 1",
		"/flows?q=" + webfake.Name(9).String():        shown("tbody td", "from-site-b") + " && document.querySelectorAll('tbody tr').length === 1",
		"/causes":                                     shown("tbody th", "lost packets") + " && " + shown(".bars", "flows") + old,
		"/history":                                    shown(".headline", "Transfers are faster: they are ") + " && document.querySelectorAll('canvas').length === 6 && " + shown(".hint", "a point is of 2 h") + " && " + shown("tbody th", "Flows resumed by pairs"),
		fmt.Sprint("/history/", record):               shown(".facts", "both") + " && " + shown(".facts", "Waited in outages") + " && " + shown(".facts a", webfake.Name(1).String()),
	}
}

var allAudits = flag.Bool("all-audits", false, "look for accessibility findings of every page on every screen, not on one of them")

// Every page shows its content, in both themes and on a phone. It causes no
// error, no violation of the content security policy, no request to another
// host, and no accessibility finding.
func TestPages(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	fake := webfake.New(0)
	d := serve(t, 200, past(t, fake.Records(1000)))
	p := browser.Open(t, d.base)
	all := pages(1000)
	for i, screen := range []struct {
		theme         string
		width, height int64
	}{{"light", 1280, 900}, {"dark", 1280, 900}, {"light", 360, 740}} {
		p.Theme(screen.theme)
		p.Size(screen.width, screen.height)
		for k, path := range slices.Sorted(maps.Keys(all)) {
			shown, audit := all[path], *allAudits || i == k%3
			t.Run(fmt.Sprint(screen.theme, screen.width, path), func(t *testing.T) {
				p := p.For(t)
				p.Go(path)
				p.Becomes(shown)
				p.Becomes("document.getElementById('live').textContent === 'live'")
				if wide := browser.Eval[int](p, "document.documentElement.scrollWidth"); int64(wide) > screen.width {
					t.Errorf("the page is %d wide on a screen of %d", wide, screen.width)
				}
				problems := p.Problems()
				if audit {
					problems = append(problems, p.Audit()...)
				}
				for _, problem := range problems {
					t.Error(problem)
				}
			})
		}
	}
	if elsewhere := p.Elsewhere(); len(elsewhere) > 0 {
		t.Errorf("requests left the host: %q", elsewhere)
	}
}

// The history page compares two periods as charts and as tables.
func TestHistoryCourse(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	d := serve(t, 3, past(t, webfake.New(0).Records(1000)))
	p := browser.Open(t, d.base)
	p.Size(1280, 900)
	p.Go("/history?days=7")
	chart := func(title string) string {
		return fmt.Sprintf("[...document.querySelectorAll('.plot')].find((e) => e.getAttribute('aria-label').startsWith(%q))", title+".")
	}
	p.Becomes(chart("Transfer time") + " && " + chart("Data retransmitted"))
	// The flows became faster a week ago.
	label := browser.Eval[string](p, chart("Transfer time")+".getAttribute('aria-label')")
	for _, series := range []string{"before, median: last ", "after, median: last ", "before, 95 %: last ", "after, 95 %: last "} {
		if !strings.Contains(label, series) {
			t.Errorf("the chart is described as %q, without %q", label, series)
		}
	}
	browser.Eval[any](p, chart("Transfers that ended")+".nextElementSibling.open = true")
	p.Becomes(chart("Transfers that ended") + ".nextElementSibling.querySelectorAll('tbody tr').length >= 15")
	rows := browser.Eval[[][]string](p, "[..."+chart("Transfers that ended")+".nextElementSibling.querySelectorAll('tr')].map((r) => [...r.children].map((c) => c.textContent))")
	if len(rows) == 0 || strings.Join(rows[0], "|") != "From its beginning|before|after" || len(rows[1]) != 3 || !strings.Contains(rows[1][0], " d") {
		t.Errorf("the table begins with %q", rows[:min(2, len(rows))])
	}
	// Another metric has other data and another description.
	browser.Eval[any](p, "document.querySelector('select').value = '1'; document.querySelector('select').dispatchEvent(new Event('change'))")
	p.Becomes("[...document.querySelectorAll('.hint')].some((e) => e.innerText.includes('a point is of 15 min'))")
	if again := browser.Eval[string](p, chart("Transfer time")+".getAttribute('aria-label')"); again == label {
		t.Errorf("after another choice the chart is described as %q still", again)
	}
	// Periods of different lengths have a point wherever either has one.
	p.Go("/history?after_since=" + ago(time.Hour) + "&after_until=" + ago(0) + "&before_since=" + ago(6*24*time.Hour) + "&before_until=" + ago(24*time.Hour))
	p.Becomes("[...document.querySelectorAll('.hint')].some((e) => e.innerText.includes('a point is of 1 h before and 1 min after'))")
	for _, problem := range append(p.Problems(), p.Audit()...) {
		t.Error(problem)
	}
}

// ago formats a past time for a URL.
func ago(d time.Duration) string {
	return time.Now().Add(-d).UTC().Format(time.RFC3339)
}

// Pages follow the live data.
func TestLive(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	d := serve(t, 200, nil)
	p := browser.Open(t, d.base)
	p.Size(1280, 900)
	p.Go("/")
	sequence := "performance.getEntriesByName('update').at(-1)?.detail.sequence"
	p.Becomes(sequence)
	first := browser.Eval[int](p, sequence)
	p.Becomes(fmt.Sprintf("%s >= %d", sequence, first+3))

	// The server applies the filter, order and page in the URL.
	p.Go("/flows?tunnel=replication&sort=client")
	p.Becomes("document.querySelectorAll('tbody tr').length === 30 && [...document.querySelectorAll('tbody tr')].every((r) => r.innerText.includes('replication'))")
	p.Becomes("document.querySelector('th[aria-sort=ascending]').textContent === 'Client'")
	browser.Eval[any](p, "[...document.querySelectorAll('button')].find((b) => b.textContent.startsWith('Next')).click()")
	p.Becomes("location.search.includes('page=2') && document.querySelector('.found').textContent.includes('page 2 of 2')")

	// The first keyboard stop skips the navigation.
	p.Go("/")
	p.Becomes(sequence)
	p.Key("\t")
	p.Becomes("document.activeElement.className === 'skip'")
	p.Key("\r")
	p.Becomes("location.hash === '#main'")

	// Pausing stops the updates.
	browser.Eval[any](p, "document.getElementById('pause').click()")
	p.Becomes("document.getElementById('live').textContent === 'paused'")
	browser.Eval[any](p, "document.getElementById('pause').click()")
	p.Becomes("document.getElementById('live').textContent === 'live'")

	// After its end, a flow's page shows the record.
	f, _, _ := d.relay.Flow(9)
	p.Go("/flows/9?start=" + url.QueryEscape(f.Start.Format(time.RFC3339Nano)))
	p.Becomes("document.querySelector('h1').textContent.includes('open')")
	d.Ended([]monitor.Record{d.relay.End(9)})
	p.Becomes("document.querySelector('h1').textContent.includes('ended') && document.body.innerText.includes('How it ended')")
	for _, problem := range p.Problems() {
		t.Error(problem)
	}
	p.Go("/flows/123456")
	p.Becomes("document.querySelector('.notice')?.textContent.includes('there is no flow 123456 now')")
	p.Problems()
}

// A page that asks again and again pauses while it is hidden, and goes on when it is shown.
func TestPollingPauses(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	d := serve(t, 3, nil)
	p := browser.Open(t, d.base)
	const asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/v1/events')).length"
	hide := func(hidden bool) {
		browser.Eval[any](p, fmt.Sprintf("Object.defineProperty(document, 'hidden', { value: %v, configurable: true })", hidden))
		browser.Eval[any](p, "document.dispatchEvent(new Event('visibilitychange'))")
	}
	p.Go("/events")
	p.Becomes(asked + " >= 1")
	before := browser.Eval[int](p, asked)
	hide(true)
	p.Becomes(fmt.Sprintf("%s > %d", asked, before)) // the one that was due, and the last one
	hide(false)
	p.Becomes(fmt.Sprintf("%s >= %d", asked, browser.Eval[int](p, asked)+2))
	for _, problem := range p.Problems() {
		t.Error(problem)
	}
}

// The chosen theme persists.
func TestTheme(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	d := serve(t, 3, nil)
	p := browser.Open(t, d.base)
	p.Theme("light")
	p.Go("/")
	ground := func() string { return browser.Eval[string](p, "getComputedStyle(document.body).backgroundColor") }
	light := ground()
	browser.Eval[any](p, "document.getElementById('theme').click(); document.getElementById('theme').click()")
	dark := ground()
	p.Go("/flows")
	if kept := ground(); dark == light || kept != dark {
		t.Errorf("light %s, dark %s, on the next page %s", light, dark, kept)
	}
}

// Thousands of flows make a page no larger than thirty do.
func TestThousandsOfFlows(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	const (
		maxWeight   = 200_000
		maxElements = 1000 // a page of flows has 30
	)
	d := serve(t, 2000, nil)
	p := browser.Open(t, d.base)
	for _, path := range manyFlows {
		t.Run(path, func(t *testing.T) {
			p := p.For(t)
			p.Go(path)
			p.Becomes("performance.getEntriesByName('update').length >= 2")
			weight := browser.Eval[int](p, `[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
				.filter((e) => !e.name.includes('/api/')).reduce((sum, e) => sum + e.decodedBodySize, 0)`)
			elements := browser.Eval[int](p, "document.querySelectorAll('*').length")
			t.Logf("files of %d bytes, %d elements", weight, elements)
			if path == "/" && (weight < 50_000 || weight > maxWeight) { // other pages use the cached files
				t.Errorf("the page's files have %d bytes, the bound is %d", weight, maxWeight)
			}
			if elements > maxElements {
				t.Errorf("the page has %d elements, the bound is %d", elements, maxElements)
			}
		})
	}
}

// manyFlows lists the pages that show data of all flows.
var manyFlows = []string{"/", "/flows", "/tunnels/to-site-b", "/causes"}
