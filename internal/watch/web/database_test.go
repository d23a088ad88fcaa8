package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest"
	"longhaul/test/nettest/browser"
)

// manyRelays has records of three relays in a database.
func manyRelays(t *testing.T) (*pgtest.Server, *postgres.Reader) {
	t.Helper()
	s := pgtest.Start(t)
	to, err := archive.DatabaseKey.Parse(s.Database("longhaul"))
	nettest.Must(t, err)
	_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{})
	nettest.Must(t, err)
	sink, err := postgres.Open(to)
	nettest.Must(t, err)
	defer sink.Close()
	for n := range 3 {
		var rows []archive.Row
		for i, r := range webfake.New(0).Records(300) {
			r.ID, r.Relay = int64(i+1), fmt.Sprintf("relay-%c", 'a'+n)
			rows = append(rows, archive.Row{Record: r, Epoch: int64(n + 1), OwnSite: fmt.Sprintf("site-%c", 'a'+n)})
		}
		nettest.Must(t, sink.Deliver(t.Context(), rows))
	}
	r, err := postgres.OpenReader(to, postgres.ReaderOptions{Patience: patience})
	nettest.Must(t, err)
	t.Cleanup(func() { r.Close() })
	return s, r
}

// With a database the interface answers for all relays, or for one of them, or for this relay's own file.
func TestDatabaseAnswers(t *testing.T) {
	t.Parallel()
	server, db := manyRelays(t)
	d := serve(t, 3, past(t, webfake.New(0).Records(40)))
	d.SetDatabase(db)
	get := func(path string, into any) int {
		t.Helper()
		r, err := http.Get(d.base + "/api/v1/" + path)
		nettest.Must(t, err)
		defer r.Body.Close()
		nettest.Must(t, json.NewDecoder(r.Body).Decode(into))
		return r.StatusCode
	}
	for path, want := range map[string]int64{
		"summary?since=20d": 900, "summary?since=20d&relay=relay-b": 300, "summary?since=20d&site=site-a": 300, "summary?since=20d&source=relay": 40,
		"summary?since=20d&client=10.10.0.0/16": 900, "summary?since=20d&client=10.11.0.0/16": 0,
	} {
		var s history.Summary
		if code := get(path, &s); code != http.StatusOK || s.Flows != want {
			t.Errorf("%s: %d, %d flows, want %d", path, code, s.Flows, want)
		}
	}
	var places history.Places
	if get("places", &places); !slices.Equal(places.Relays, []string{"relay-a", "relay-b", "relay-c"}) {
		t.Errorf("%+v", places)
	}
	var failed struct{ Error string }
	if code := get("summary?client=me", &failed); code != http.StatusBadRequest {
		t.Errorf("%d, %+v", code, failed)
	}
	server.Stop()
	if code := get("records", &failed); code != http.StatusServiceUnavailable || !strings.Contains(failed.Error, "no database answers at ") || !strings.Contains(failed.Error, "; start the server, or correct host and port in the URL of dashboard.database") || strings.Contains(failed.Error, "\n") {
		t.Errorf("without a server: %d, %q", code, failed.Error)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Transfers and History show all relays and select by relay. While the database is away they say
// so, and live pages go on.
func TestDatabasePages(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	server, db := manyRelays(t)
	d := serve(t, 50, nil)
	d.SetDatabase(db)
	p := browser.Open(t, d.base)
	p.Size(1280, 900)
	p.Go("/transfers?order=newest&since=30d")
	const relays = "[...document.querySelectorAll('tbody tr')].map((r) => r.children[2].innerText)"
	p.Becomes("document.querySelectorAll('tbody tr').length === 50 && new Set(" + relays + ").size === 3")
	choose := func(label, value string) {
		p.Becomes(fmt.Sprintf("[...document.querySelectorAll('label.field')].find((l) => l.innerText.startsWith(%q))?.querySelector('option[value=%q]')", label, value))
		browser.Eval[any](p, fmt.Sprintf("(() => { const s = [...document.querySelectorAll('label.field')].find((l) => l.innerText.startsWith(%q)).querySelector('select'); s.value = %q; s.dispatchEvent(new Event('change')); })()", label, value))
	}
	choose("Relay", "relay-b")
	p.Becomes(relays + ".every((r) => r === 'site-b/relay-b') && location.search.includes('relay=relay-b')")
	browser.Eval[any](p, "document.querySelector('tbody a').click()")
	p.Becomes("location.pathname.startsWith('/history/') && document.body.innerText.includes('relay-b')")
	for _, path := range []string{"/transfers?since=30d", "/history?days=7"} {
		for _, width := range []int64{1280, 360} {
			p.Size(width, 800)
			p.Go(path)
			p.Becomes("document.querySelectorAll('tbody tr').length > 5")
			if wide := browser.Eval[int](p, "document.documentElement.scrollWidth"); int64(wide) > width {
				t.Errorf("%s is %d wide on a screen of %d", path, wide, width)
			}
			for _, problem := range append(p.Problems(), p.Audit()...) {
				t.Error(problem)
			}
		}
	}
	p.Size(1280, 900)
	p.Go("/history?days=7")
	p.Becomes("document.body.innerText.includes('right within 1.1 %')")
	choose("Site", "site-c")
	p.Becomes("location.search.includes('site=site-c') && document.querySelector('tbody tr td').innerText === '150'")

	server.Stop()
	p.Go("/transfers")
	p.Becomes("document.querySelector('.notice')?.innerText.startsWith('no database answers at ')")
	p.Go("/")
	p.Becomes("performance.getEntriesByName('update').length >= 3 && document.getElementById('live').textContent === 'live'")
	server.Run()
	p.Go("/transfers")
	nettest.Eventually(t, patience, func() bool {
		_, err := db.Query(t.Context(), history.Query{})
		return err == nil
	}, func() string { return "the database does not answer again" })
	p.Go("/transfers?since=30d")
	p.Becomes("document.querySelectorAll('tbody tr').length === 50 && !document.querySelector('.notice')")
	p.Problems() // those of the time without a database
}
