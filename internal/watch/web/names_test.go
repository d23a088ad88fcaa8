package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest/browser"
)

// Flows and records are found by name, with a history or without, however old the records are.
func TestNames(t *testing.T) {
	records := webfake.New(0).Records(300)
	again := records[200].Name
	records[7].Name, records[7].Peer, records[7].Site = again, "site-c/c1", "site-c" // the other tunnel that it passed, days ago
	kept := serve(t, 30, past(t, records))
	remembered := serve(t, 30, nil)
	remembered.Ended(records)
	plain := strings.ReplaceAll(strings.ToUpper(again.String()), "-", "")
	for _, c := range []struct {
		query string
		want  int // negative: the status
	}{
		{"records?name=" + again.String(), 2},
		{"records?name=" + plain, 2},
		{"records?name=" + again.String() + "&tunnel=" + records[7].Tunnel, 1},
		{"records?name=" + again.String() + "&since=1h", 0},
		{"records?name=" + flow.Name{1}.String(), 0},
		{"records?name=5f3a", -http.StatusBadRequest},
		{"flows?q=" + webfake.Name(9).String(), 1},
		{"flows?q=" + strings.ReplaceAll(webfake.Name(9).String(), "-", ""), 1},
		{"flows?q=-000000000009", 1},
		{"flows?q=" + webfake.Name(31).String(), 0},
		{"flows?size=100&q=site-b/b1", 7},
	} {
		for which, d := range map[string]*dashboard{"history": kept, "remembered": remembered} {
			r, err := http.Get(d.base + "/api/v1/" + c.query)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Records []monitor.Record
				Flows   []monitor.Flow
				Error   string
			}
			err = json.NewDecoder(r.Body).Decode(&got)
			r.Body.Close()
			found := len(got.Records) + len(got.Flows)
			switch {
			case err != nil:
				t.Errorf("%s, %s: %v", which, c.query, err)
			case c.want < 0 && (r.StatusCode != -c.want || !strings.Contains(got.Error, "is no name of a flow")):
				t.Errorf("%s, %s: %d, %q", which, c.query, r.StatusCode, got.Error)
			case c.want >= 0 && (r.StatusCode != http.StatusOK || found != c.want):
				t.Errorf("%s, %s: %d with %d found, want %d", which, c.query, r.StatusCode, found, c.want)
			}
			for _, one := range got.Records {
				if one.Name != again || one.Relay != "relay-a" || one.Site != flow.SiteOf(one.Peer) {
					t.Errorf("%s, %s: record of %v at %q, site %q of %q", which, c.query, one.Name, one.Relay, one.Site, one.Peer)
				}
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// From a flow its name leads to all of it at this relay: what runs, and then what has ended.
func TestNamesOnPages(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	records := webfake.New(0).Records(20)
	for i := range records { // as those of flows that ran before those of the page
		records[i].Name = webfake.Name(1000 + i)
	}
	records[3].Name, records[15].Name = webfake.Name(2000), webfake.Name(2000)
	d := serve(t, 30, past(t, records))
	p := browser.Open(t, d.base)
	p.Size(1280, 900)
	rows := func(n int) string { return fmt.Sprintf("document.querySelectorAll('tbody tr').length === %d", n) }
	name := webfake.Name(8).String()
	link := fmt.Sprintf("[...document.querySelectorAll('.facts a')].find((e) => e.textContent === %q)", name)
	p.Go("/flows/8")
	p.Becomes(link + " && [...document.querySelectorAll('.facts')].some((e) => e.innerText.includes('site-b/b1'))")
	browser.Eval[any](p, link+".click()")
	p.Becomes(rows(1) + " && location.search === '?q=" + name + "'")

	// A name that no flow has now may be that of one that has ended.
	p.Go("/flows?q=" + webfake.Name(2000).String())
	p.Becomes("document.querySelector('.pages a:not([hidden])')?.getAttribute('href') === '/transfers?name=" + webfake.Name(2000).String() + "'")
	browser.Eval[any](p, "document.querySelector('.pages a').click()")
	p.Becomes("location.pathname === '/transfers' && document.querySelector('h1').textContent === 'Transfers'")
	p.Becomes(rows(2) + " && document.querySelector('input[type=search]').value === '" + webfake.Name(2000).String() + "'")
	p.Becomes("document.querySelectorAll('.filters .field:not([hidden])').length === 3")
	problems := append(p.Problems(), p.Audit()...)
	browser.Eval[any](p, "document.querySelector('tbody th a').click()")
	p.Becomes("[...document.querySelectorAll('.facts a')].some((e) => e.getAttribute('href') === '/transfers?name=" + webfake.Name(2000).String() + "')")

	// A text that is no name is refused in words, and an empty one shows the usual list again.
	p.Go("/transfers?order=newest&since=30d")
	p.Becomes(rows(20))
	enter := func(text string) {
		browser.Eval[any](p, fmt.Sprintf("{ const e = document.querySelector('input[type=search]'); e.value = %q; e.dispatchEvent(new Event('change')) }", text))
	}
	enter("5f3a")
	p.Becomes("document.querySelector('.notice')?.textContent.includes('is no name of a flow: a name has 32 hexadecimal digits')")
	enter("")
	p.Becomes(rows(20) + " && !document.querySelector('.notice') && document.querySelectorAll('.filters .field:not([hidden])').length === 5")
	for _, problem := range append(problems, p.Problems()...) {
		if !strings.Contains(problem, "name=5f3a") { // the browser reports each refusal, at its time
			t.Error(problem)
		}
	}
}
