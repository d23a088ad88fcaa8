package web_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"longhaul/test/nettest"
	"longhaul/test/nettest/browser"
)

var (
	picture      = flag.String("picture", "", "write what the overview of a running relay shows to this file")
	pictureAfter = flag.Duration("picture-after", 10*time.Minute, "how long its flows run before")
)

// The dashboard of a real relay with real flows, which move data each second
// over a lossy WAN. Every page shows its content and follows the data.
func TestRunningRelays(t *testing.T) {
	t.Parallel()
	lookAtRelays(t, 200, func(_ *testing.T, p *browser.Page, _ int) {
		p.Becomes("performance.getEntriesByName('update').length >= 2")
	})
}

// lookAtRelays opens each page of a relay with a number of flows. It calls
// atUpdates for live pages, with the number of updates to measure.
func lookAtRelays(t *testing.T, flows int, atUpdates func(t *testing.T, p *browser.Page, updates int)) {
	needsBrowser(t)
	s := newSite(t)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s.begin(ctx, flows-flows/20, flows/20)
	p := browser.Open(t, "http://"+s.board())
	p.Theme("light")
	p.Size(1280, 900)

	shown := func(selector, text string) string {
		return fmt.Sprintf("[...document.querySelectorAll(%q)].some((e) => e.innerText.includes(%q))", selector, text)
	}
	first := "document.querySelector('tbody th a')"
	before := s.echoes()
	for _, page := range []struct {
		path    string
		follow  string // a link on path that leads to the page
		shows   string
		updates int
	}{
		{"/", "", shown("tbody th", "zone-transfers") + " && " + shown(".alert", "connection refused") + ` && document.querySelectorAll('canvas').length === 2 &&
			document.querySelectorAll('.tile b')[2].textContent.replace(/\D/g, '') >= ` + fmt.Sprint(flows) + " && /[1-9].*b\\/s/.test(document.querySelectorAll('.tile b')[0].textContent)", 5},
		{"/flows", "", "document.querySelectorAll('tbody tr').length === 30 && / flows, page 1 of (\\d+)/.exec(document.querySelector('.found').textContent)?.[1] >= " + fmt.Sprint(flows/30), 5},
		{"/flows?tunnel=replication", first, shown(".chain", "this relay") + " && " + shown(".chain", "ms") + " && " + shown(".facts", "b/s") + " && document.querySelector('canvas')", 3},
		{"/flows?tunnel=sessions", first, shown(".facts a", "-4") + " && " + shown(".facts", "site-b"), 3},
		{"/tunnels/to-site-b", "", shown(".chain", "10.20.20.10:6000") + " && " + shown(".verdict", "intact") + " && !document.querySelector('.node.bad') && document.querySelectorAll('canvas').length === 2", 3},
		{"/pairs", "", shown("tbody th", "site-b") + " && " + shown("tbody th", "near end here, to 10.") + " && document.querySelector('td[data-label=State] span')?.textContent === 'up' && " +
			"[...document.querySelectorAll('td[data-label=Busy]')].some((e) => e.textContent === '" + fmt.Sprint(flows/40) + "') && /^\\d{2,3}(\\.\\d)? ms$/.test(document.querySelector('td[data-label=RTT]').textContent)", 3},
		{"/causes", "", "document.querySelectorAll('tbody tr').length >= 2 && document.querySelector('.bars li')", 3},
		{"/transfers?since=1h&order=newest", "", shown("tbody td", "zone-transfers"), 0},
		{"/transfers?since=1h", first, shown(".facts", "both") + " && " + shown(".facts", "MB") + " && document.querySelector('canvas')", 0},
		{"/history?days=1", "", shown(".headline", "No transfer ended in the period before.") + " && document.querySelectorAll('tbody tr').length >= 9 && document.querySelectorAll('canvas').length === 6", 0},
	} {
		t.Run(page.path, func(t *testing.T) {
			p := p.For(t)
			p.Go(page.path)
			if page.follow != "" {
				p.Becomes(page.follow)
				browser.Eval[any](p, page.follow+".click()")
			}
			p.Becomes(page.shows)
			p.Becomes("document.getElementById('live').textContent === 'live'")
			if page.updates > 0 {
				atUpdates(t, p, page.updates)
			}
			problems := p.Problems()
			if *allAudits {
				problems = append(problems, p.Audit()...)
			}
			for _, problem := range problems {
				t.Error(problem)
			}
		})
	}
	nettest.Eventually(t, patience, func() bool {
		for i, n := range s.echoes() {
			if n == before[i] {
				return false
			}
		}
		return true
	}, func() string { return "some flows do not move" })
	if elsewhere := p.Elsewhere(); len(elsewhere) > 0 {
		t.Errorf("requests left the host: %q", elsewhere)
	}
	stop() // and every flow ends without error
	p.Go("/")
	p.Becomes("document.querySelectorAll('.tile b')[2].textContent === '0'")
	for _, problem := range p.Problems() {
		t.Error(problem)
	}
}

// echoes returns the number of echoes of each flow so far.
func (s *site) echoes() []int64 {
	all := make([]int64, len(s.flows))
	for i, f := range s.flows {
		all[i] = f.echoes.Load()
	}
	return all
}

// The picture of docs/dashboard.md.
func TestPicture(t *testing.T) {
	if *picture == "" {
		t.Skip("it writes a picture: -picture FILE")
	}
	s := newSite(t)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s.begin(ctx, 150, 50)
	s.fetchOften(ctx, 2, 8<<20, 24<<20, 40*time.Second) // a large one now and then
	p := browser.Open(t, "http://"+s.board())
	p.Theme("light")
	p.Size(1280, 1175)
	<-time.After(*pictureAfter) // the charts show this much
	p.Go("/")
	p.Becomes("performance.getEntriesByName('update').length >= 5")
	if err := os.WriteFile(*picture, p.Screenshot(), 0o644); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, patience, func() bool { return len(p.Problems()) == 0 }, func() string { return "the browser complains" })
}
