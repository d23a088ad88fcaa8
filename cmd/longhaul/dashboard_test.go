package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
	"longhaul/test/nettest/browser"
)

// carry sends blocks through a flow and takes the echo of each until ctx ends, and
// then ends the flow cleanly. The test does not end before the flow.
func carry(ctx context.Context, t *testing.T, address string) (client string, ended func()) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		block := bytes.Repeat([]byte("longhaul"), 8<<10)
		for ctx.Err() == nil {
			_, err := c.Write(block)
			// To write on before that meets a fault of Linux: docs/faults.md.
			if err == nil {
				_, err = io.ReadFull(c, block)
			}
			if err != nil {
				t.Errorf("a flow under the dashboard: %v", err)
				return
			}
		}
		c.(*net.TCPConn).CloseWrite()
		if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
			t.Errorf("a flow under the dashboard ends with %d bytes, %v", n, err)
		}
	})
	ended = sync.OnceFunc(func() {
		all.Wait()
		c.Close()
	})
	t.Cleanup(ended)
	return c.LocalAddr().String(), ended
}

// TestDashboard looks at a running relay with a browser: what flows do, what stays
// of them, a configuration that comes to want TLS and the token, and an upgrade.
func TestDashboard(t *testing.T) {
	browser.Require(t)
	if testing.Short() {
		t.Skip("a browser takes its time: without -short")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const token = "a-token-that-is-long-enough"
	cert, key := nettest.Certificate(t, dir, "localhost")
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "longhaul.yaml")
	listen, page := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	target := echoTarget(t)
	write := func(dashboard string) {
		t.Helper()
		text := fmt.Sprintf("control_socket: %q\nhistory: {file: %q}\ndashboard: %s\ntunnels: [{name: to-b, listen: %q, forward: %q}]\n",
			socket, filepath.Join(dir, "history.db"), dashboard, listen, target)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{listen: " + page + "}")
	r := startAs(t, "longhaul", nil, nil, "relay", "-c", file)
	r.waitLog(t, `msg="serving the dashboard" address=`+page+` url=http://`+page+`/`)
	r.waitLog(t, "relay started")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, ended := carry(ctx, t, listen)
	_, others := carry(ctx, t, listen)
	port := client[strings.LastIndexByte(client, ':'):]

	p := browser.Open(t, "http://"+page)
	p.Size(1280, 900)
	p.Go("/")
	p.Becomes("[...document.querySelectorAll('tbody tr')].some((r) => r.innerText.includes('to-b') && r.innerText.includes('b/s'))")
	p.Becomes("document.querySelectorAll('.tile b')[2].textContent === '2' && /[1-9].*b\\/s/.test(document.querySelectorAll('.tile b')[0].textContent)")
	p.Go("/flows")
	link := fmt.Sprintf("[...document.querySelectorAll('tbody th a')].find((a) => a.textContent.endsWith(%q))", port)
	p.Becomes("document.querySelectorAll('tbody tr').length === 2 && " + link)
	browser.Eval[any](p, link+".click()")
	p.Becomes("document.querySelector('.chain')?.innerText.includes('this relay') && document.querySelector('canvas')")
	for _, problem := range append(p.Problems(), p.Audit()...) {
		t.Error(problem)
	}
	// It ends, and its page stays.
	cancel()
	ended()
	others()
	p.Becomes("document.querySelector('h1').textContent.includes('ended') && document.body.innerText.includes('How it ended')")
	p.Go("/transfers?since=1h")
	p.Becomes("document.querySelectorAll('tbody tr').length === 2 && document.querySelector('tbody th a').getAttribute('href').startsWith('/history/')")
	browser.Eval[any](p, "document.querySelector('tbody th a').click()")
	p.Becomes("document.querySelector('h1').textContent.includes('Record') && document.body.innerText.includes('How it ended')")
	p.Go("/history?days=1")
	p.Becomes("document.querySelector('.headline')?.textContent.includes('2 ended after it')")
	for _, problem := range append(p.Problems(), p.Audit()...) {
		t.Error(problem)
	}

	// Another process takes over: the page loses its stream, and has that of the other.
	p.Go("/")
	p.Becomes("document.getElementById('live').textContent === 'live'")
	browser.Eval[any](p, `window.states = [];
		new MutationObserver(() => states.push(document.getElementById('live').dataset.state)).observe(document.getElementById('live'), {attributes: true})`)
	successor := upgradeAt(t, socket).NewPID
	p.Becomes("window.states.includes('lost') && window.states.at(-1) === 'live'")
	if pid := browser.Eval[int](p, "fetch('/api/v1/overview').then((r) => r.json()).then((o) => o.process.pid)"); pid != successor {
		t.Errorf("the page is served by process %d, want %d", pid, successor)
	}
	p.Problems() // that the stream broke off is one

	// From now on it takes TLS and the token, at the same address.
	write(fmt.Sprintf("{listen: %s, tls_cert: %q, tls_key: %q, token_file: %q}", page, cert, key, tokenFile))
	if err := syscall.Kill(successor, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, patience, func() bool {
		status, _, err := httpd.Get(t.Context(), page, "/api/v1/overview", 1<<20)
		return err == nil && status == 400 // plain HTTP, where TLS is spoken
	}, func() string { return "it still takes plain HTTP" })
	s := browser.Open(t, "https://"+page)
	s.Go("/flows?sort=age")
	s.Becomes("location.pathname === '/login' && document.getElementById('token')")
	for _, problem := range s.Audit() {
		t.Error(problem)
	}
	login := func(word string) {
		browser.Eval[any](s, fmt.Sprintf("document.getElementById('token').value = %q, document.forms[0].submit()", word))
	}
	login("a-token-that-is-wrong")
	s.Becomes("document.getElementById('wrong') && !document.getElementById('wrong').hidden")
	login(token)
	s.Becomes("location.pathname + location.search === '/flows?sort=age' && document.getElementById('live').textContent === 'live'")
	if got := browser.Eval[string](s, "document.cookie"); got != "" {
		t.Errorf("a script sees the cookie %q", got)
	}
	browser.Eval[any](s, "document.querySelector('#logout button').click()")
	s.Becomes("location.pathname === '/login'")
	if elsewhere := append(p.Elsewhere(), s.Elsewhere()...); len(elsewhere) > 0 {
		t.Errorf("requests left the host: %q", elsewhere)
	}
}
