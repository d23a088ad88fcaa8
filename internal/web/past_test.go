package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
	"longhaul/internal/web/webfake"
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
