package web_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/web"
	"longhaul/internal/watch/web/webfake"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// patience bounds conditions that take some seconds on an idle machine.
const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// dashboard is the dashboard of a simulated relay, on a loopback address.
type dashboard struct {
	*web.Dashboard
	relay   *webfake.Monitor
	address string
	base    string
}

// serve starts a dashboard with a number of flows; its data advance with time.
func serve(t testing.TB, flows int, past web.History) *dashboard {
	t.Helper()
	d := &dashboard{relay: webfake.New(flows)}
	d.Dashboard = web.New(web.Options{Monitor: d.relay, History: past, Events: d.relay.Events, Log: quiet})
	d.address = listen(t, d.Handler(web.Access{}))
	d.base = "http://" + d.address
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				d.relay.Step()
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-stopped
	})
	return d
}

func listen(t testing.TB, handler http.Handler) string {
	t.Helper()
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	s := httpd.Serve(l, handler, quiet, web.Limits)
	t.Cleanup(s.Close)
	return l.Addr().String()
}

// past stores records in a history file and opens it.
func past(t testing.TB, records []monitor.Record) *history.Reader {
	t.Helper()
	path := t.TempDir() + "/history.db"
	store, err := history.Open(path, history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store.Add(records)
	nettest.Eventually(t, patience, func() bool { return store.State().Written == int64(len(records)) }, func() string {
		return fmt.Sprintf("%d records are not written: %+v", len(records), store.State())
	})
	nettest.Must(t, store.Close())
	r, err := history.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}
