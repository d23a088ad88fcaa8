package transfers

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestShipPage executes the commands of "Set it up" of docs/ship.md in their order, with a receiver at
// host-a. A copy passes the relay before its status is asked for, until that has what the page shows.
func TestShipPage(t *testing.T) {
	nettest.RequireRoot(t)
	p := readPage(t, "docs/ship.md", "Set it up")
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	l, err := s.Host("host-a").ListenTCP(s.ctx, 8080)
	nettest.Must(t, err)
	var mu sync.Mutex
	var rows strings.Builder
	receiver := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		z, err := gzip.NewReader(r.Body)
		if err == nil {
			_, err = io.Copy(&rows, z)
		}
		if err != nil || r.URL.Path != "/rows" {
			t.Errorf("%s: %v", r.URL, err)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- receiver.Serve(l) }()
	t.Cleanup(func() {
		receiver.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	s.follow(p, []place{
		{begins: "longhaul config check", prints: `^longhaul.yaml: ok, 1 tunnel`},
		{begins: "longhaul status", instead: func(c pageCommand) {
			s.execute(pageCommand{line: "scp -P 6000 -o HostKeyAlias=host-b my.data root@relay-a:/srv/", hosts: []string{"host-a"}})
			s.copied()
			shown := strings.Replace(strings.TrimSpace(c.shown), "3s", `\d+s`, 1)
			said := ""
			nettest.Eventually(t, time.Minute, func() bool {
				said, _ = s.shell("relay-a", c.line)
				return matches("(?m)^"+shown+"$", said)
			}, func() string { return "status does not say " + shown + ":\n" + said })
		}},
	})
	mu.Lock()
	defer mu.Unlock()
	if text := rows.String(); !matches(`"relay_site":"site-a","tunnel":"to-b"(?s:.*)"client":"[\d.]+\.0/24"`, text) || strings.Contains(text, "client_port") {
		t.Errorf("the rows are\n%s", text)
	}
}
