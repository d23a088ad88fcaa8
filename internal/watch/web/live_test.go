package web_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/web"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest"
)

// events requests a live view, and returns a function that reads its next
// event.
func events(t testing.TB, address, query string) (next func() map[string]any, c net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET /api/v1/live?%s HTTP/1.0\r\nHost: localhost\r\n\r\n", query)
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<24)
	return func() map[string]any {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				v := map[string]any{}
				if err := json.Unmarshal([]byte(text), &v); err != nil {
					t.Fatal(err)
				}
				return v
			}
		}
		return nil
	}, c
}

func shownFlows(v map[string]any) (tunnels []string) {
	for _, f := range v["flows"].([]any) {
		tunnels = append(tunnels, f.(map[string]any)["tunnel"].(string))
	}
	return tunnels
}

// A reader gets the requested page at once and after each sample.
func TestLiveSelection(t *testing.T) {
	nettest.CheckLeaks(t)
	d := serve(t, 2000, nil)
	next, _ := events(t, d.address, "view=flows&tunnel=replication&sort=-up&page=2&size=10")
	before := -1.0
	for range 3 {
		d.relay.Step()
		v := next()
		if v == nil {
			t.Fatal("the stream ended")
		}
		if sequence := v["head"].(map[string]any)["sequence"].(float64); sequence <= before {
			t.Errorf("sample %v after %v", sequence, before)
		} else {
			before = sequence
		}
		if got := shownFlows(v); len(got) != 10 || strings.Join(got, "") != strings.Repeat("replication", 10) {
			t.Errorf("flows of %q", got)
		}
		if v["total"] != 2000.0 || v["matched"] != 500.0 || v["page"] != 2.0 || v["pages"] != 50.0 {
			t.Errorf("%v of %v, page %v of %v", v["matched"], v["total"], v["page"], v["pages"])
		}
		up := 1e18
		for _, f := range v["flows"].([]any) {
			if now := f.(map[string]any)["up_bps"].(float64); now > up {
				t.Error("the flows are not sorted")
			} else {
				up = now
			}
		}
	}
}

// Every chart point arrives exactly once.
func TestLivePoints(t *testing.T) {
	d := serve(t, 10, nil)
	next, _ := events(t, d.address, "view=tunnel&name=to-site-b")
	first := next()["points"].(map[string]any)["at"].([]any)
	if kept := len(d.relay.Points("to-site-b", time.Time{})); len(first) < kept/2 || len(first) > kept {
		t.Errorf("the first event has %d points of the %d in ten minutes", len(first), kept)
	}
	last := first[len(first)-1].(float64)
	for range 3 {
		d.relay.Step()
		for _, at := range next()["points"].(map[string]any)["at"].([]any) {
			if at.(float64) <= last {
				t.Errorf("a point of %v after %v", at, last)
			}
			last = at.(float64)
		}
	}
}

// The number of readers is bounded, without effect on other requests; the
// server drops a reader that does not read.
func TestReaders(t *testing.T) {
	nettest.CheckLeaks(t)
	d := serve(t, 2000, nil)
	var readers []net.Conn
	var reading sync.WaitGroup
	for range web.Limits.Kept {
		next, c := events(t, d.address, "view=flows&size=100")
		if next() == nil {
			t.Fatal("a reader gets nothing")
		}
		readers = append(readers, c)
		c.SetDeadline(time.Time{})
		reading.Go(func() { io.Copy(io.Discard, c) })
	}
	status := func() (int, string) {
		r, err := http.Get(d.base + "/api/v1/live?view=flows")
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		line, _ := bufio.NewReader(r.Body).ReadString('\n')
		return r.StatusCode, line
	}
	if got, text := status(); got != 503 || !strings.Contains(text, "as many readers as can be") {
		t.Errorf("one more: %d %s", got, text)
	}
	r, err := http.Get(d.base + "/api/v1/overview")
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("something else: %v", err)
	}
	io.Copy(io.Discard, r.Body)
	r.Body.Close()
	for _, c := range readers {
		c.SetReadDeadline(time.Now())
	}
	reading.Wait()
	// No reader reads any more: the server drops them when their buffers are
	// full.
	nettest.Repeatedly(t, 3*time.Minute, func() bool {
		d.relay.Step()
		got, _ := status()
		return got == 200
	}, func() string { return "readers that do not read hold their places" })
	http.DefaultClient.CloseIdleConnections()
}

// Without a history, the dashboard remembers the latest ended flows.
func TestRecordsWithoutHistory(t *testing.T) {
	d := serve(t, 3, nil)
	fake := webfake.New(0)
	records := fake.Records(700)
	d.Ended(records[:100])
	d.Ended(records[100:])
	get := func(query string, v any) {
		t.Helper()
		r, err := http.Get(d.base + "/api/v1/records?" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	var all struct {
		History bool
		Records []monitor.Record
	}
	get("since=30d&limit=500", &all)
	if len(all.Records) != 500 || all.History || all.Records[0].Flow != records[699].Flow {
		t.Errorf("%d records, the first is of flow %d, want %d", len(all.Records), all.Records[0].Flow, records[699].Flow)
	}
	get("since=30d&limit=5&order=slowest&tunnel=replication", &all)
	for i, r := range all.Records {
		if r.Tunnel != "replication" || i > 0 && r.GoodputBps() < all.Records[i-1].GoodputBps() {
			t.Errorf("record %d: tunnel %s, %v bit/s", i, r.Tunnel, r.GoodputBps())
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
