package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest/browser"
)

// A chart shows the history's points; unknown values are negative.
func TestChart(t *testing.T) {
	records := webfake.New(0).Records(700)
	d := serve(t, 3, past(t, records))
	get := func(query string) (c history.Chart) {
		t.Helper()
		r, err := http.Get(d.base + "/api/v1/chart?" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d, %v", query, r.StatusCode, err)
		}
		return c
	}
	count := func(c history.Chart) (n int64) {
		before := time.Time{}
		for _, p := range c.Points {
			if !before.IsZero() && p.At.Sub(before) != c.Step.Duration() {
				t.Errorf("a point at %v after %v, in steps of %v", p.At, before, c.Step)
			}
			before = p.At
			n += p.Transfers
			if p.Transfers == 0 && p.TransferTimeMedian >= 0 || p.Transfers > 0 && p.TransferTimeP95 < p.TransferTimeMedian {
				t.Errorf("%d transfers took %v s, 95 %% of them %v s", p.Transfers, p.TransferTimeMedian, p.TransferTimeP95)
			}
		}
		return n
	}
	all := get("since=20d")
	if got := count(all); got != int64(len(records)) || all.Step.Duration() != 6*time.Hour {
		t.Errorf("%d transfers in steps of %v, want %d of 6 h", got, all.Step, len(records))
	}
	one := get("since=20d&tunnel=replication")
	if got := count(one); got != int64(len(records)/len(webfake.Tunnels)) || one.Tunnel != "replication" {
		t.Errorf("%d transfers of %q", got, one.Tunnel)
	}
	if day := get(""); len(day.Points) < 90 || day.Step.Duration() != 15*time.Minute {
		t.Errorf("a day has %d points of %v", len(day.Points), day.Step)
	}
	if none := get("since=9d&until=8d&tunnel=other"); count(none) != 0 || none.Points == nil {
		t.Errorf("a tunnel that is not there has %d points with transfers", count(none))
	}
	http.DefaultClient.CloseIdleConnections()
}

// A flow that ended long ago is found by its start time.
func TestFlowOfHistory(t *testing.T) {
	records := webfake.New(0).Records(700)
	d := serve(t, 3, past(t, records))
	old := records[123]
	began := url.QueryEscape(old.Start.Format(time.RFC3339Nano))
	for _, c := range []struct {
		path string
		want int
	}{
		{fmt.Sprintf("%d?start=%s", old.Flow, began), 200},
		{fmt.Sprintf("%d?start=%s", old.Flow+1, began), 404},
		{fmt.Sprintf("%d?start=%s", old.Flow, url.QueryEscape(old.Start.Add(-time.Hour).Format(time.RFC3339Nano))), 404},
		{fmt.Sprint(old.Flow), 404},
	} {
		r, err := http.Get(d.base + "/api/v1/flows/" + c.path)
		if err != nil {
			t.Fatal(err)
		}
		var shown struct{ Record *monitor.Record }
		err = json.NewDecoder(r.Body).Decode(&shown)
		r.Body.Close()
		if err != nil || r.StatusCode != c.want {
			t.Errorf("%s: %d, %v; want %d", c.path, r.StatusCode, err, c.want)
		}
		if c.want == 200 && (shown.Record == nil || shown.Record.Client != old.Client || shown.Record.BytesUp != old.BytesUp) {
			t.Errorf("%s: the record is %+v", c.path, shown.Record)
		}
	}
	// The page uses a live view, which reports a missing record.
	next, _ := events(t, d.address, fmt.Sprintf("view=flow&id=%d&start=%s", old.Flow, began))
	for range 2 {
		if v := next(); v["record"] == nil {
			t.Errorf("the live view has %v", v)
		}
	}
	next, _ = events(t, d.address, "view=flow&id=99999&start="+began)
	if v := next(); v["error"] == nil {
		t.Errorf("the live view of no flow has %v", v)
	}
	http.DefaultClient.CloseIdleConnections()
}

// On the first day History shows today's transfers, on the second yesterday's beside them.
func TestHistoryOfFirstDays(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	now := time.Now()
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.Local)
	today := webfake.New(0).Records(40)
	for i := range today { // all ended since midnight
		today[i].End = now.Add(-now.Sub(midnight) * time.Duration(len(today)-i) / time.Duration(len(today)+1))
	}
	both := webfake.New(0).Records(80)
	for i := range both {
		both[i].End = now.Add(-time.Duration(len(both)-i) * 20 * time.Minute)
	}
	both = append(both, today...)
	for name, c := range map[string]struct {
		records []monitor.Record
		want    string
	}{
		"first":  {today, "No transfer ended in the period before. 40 ended after it"},
		"second": {both, "half of them take at most"},
	} {
		t.Run(name, func(t *testing.T) {
			p := browser.Open(t, serve(t, 3, past(t, c.records)).base)
			p.Go("/history")
			p.Becomes(fmt.Sprintf("document.querySelector('.headline')?.innerText.includes(%q)", c.want))
			p.Becomes("document.querySelector('select').value === 'today' && location.search.includes('days=today')")
		})
	}
}
