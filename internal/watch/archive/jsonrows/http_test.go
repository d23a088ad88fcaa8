package jsonrows

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// nginx's configuration: TLS with certificates of both sides, and a small limit of a request's size. It gives its
// directories to user, and a user namespace has root alone.
const nginxConfig = `daemon off; master_process off; user root; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
  access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen %[2]s ssl; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem;
    ssl_client_certificate %[1]s/cert.pem; ssl_verify_client on; client_max_body_size 20k;
    location / { proxy_pass http://%[3]s; }
    location /moved { return 307 http://%[3]s/; }
  }
}`

// Through nginx: TLS with a certificate of each side, a limit of a request's size, and a redirect.
func TestThroughNginx(t *testing.T) {
	program := nettest.RequireProgram(t, "nginx", "nginx-light")
	c := startClickHouse(t, t.TempDir())
	c.schema(t)
	dir := t.TempDir()
	cert, key := nettest.Certificate(t, dir, "ch.example.net")
	address := nettest.FreeAddress(t, "127.0.0.1")
	config := filepath.Join(dir, "nginx.conf")
	nettest.Must(t, os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, address, c.address), 0o600))
	cmd := exec.Command(program, "-c", config, "-p", dir, "-e", "stderr") // until it has read the file
	cmd.Stderr = t.Output()
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	nettest.Eventually(t, patience, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, func() string { text, _ := os.ReadFile(filepath.Join(dir, "error.log")); return string(text) })
	to := target(t, "https://relay@"+address+"/"+insert)
	to.PasswordFile, to.CA, to.Certificate, to.Key = secretFile(t, password), cert, cert, key
	rows := rowsOf(1, 2000)
	s := sinkOf(t, to)
	// An old ClickHouse refuses a setting before it has read the rows, and closes. If nginx is still sending
	// them, its answer is 502 in place of the reason, and the caller delivers again.
	nettest.Eventually(t, patience, func() bool {
		err := s.Deliver(t.Context(), rows)
		if err != nil && !strings.Contains(err.Error(), "502") {
			t.Fatal(remedy.Line(err))
		}
		return err == nil
	}, func() string { text, _ := os.ReadFile(filepath.Join(dir, "error.log")); return string(text) })
	if s.most == 0 || s.most >= 1000 {
		t.Errorf("%d rows in a request", s.most)
	}
	if got := c.ask(t, "SELECT count() FROM flows_once"); got != "2000\n" {
		t.Errorf("%q rows", got)
	}
	large := rows[0]
	for i := range 4000 { // what does not compress to 20 kB
		large.Error += fmt.Sprintf("%x", uint64(i)*0x9e3779b97f4a7c15)
	}
	isSentence(t, s.Deliver(t.Context(), []archive.Row{large}), "413", "limit")

	other := to
	other.To = "https://relay@" + address + "/moved" + insert
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "307", "http://"+c.address)
	other = to
	other.CA = ""
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "x509", "as ca")
	other = to
	other.Certificate, other.Key = "", ""
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "400", "URL")
	other = to
	other.To = strings.Replace(to.To, "https://", "http://", 1)
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "400", "URL")
	other = to
	other.To = strings.Replace(to.To, address, c.address, 1)
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "HTTPS", "http://")
	other = to
	other.To = "https://relay@" + nettest.FreeAddress(t, "127.0.0.1") + "/"
	isSentence(t, sinkOf(t, other).Deliver(t.Context(), rows), "refused", "start the server")
	if got := c.ask(t, "SELECT count() FROM flows"); got != "2000\n" {
		t.Errorf("%q rows", got)
	}
}

// Answers that no real server gives when it is asked to.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(w http.ResponseWriter)
		path   string // empty: any
		text   string // empty: it is taken
		fix    string
	}{
		{"no content", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }, "", "", ""},
		{"exception in a header", func(w http.ResponseWriter) { w.Header().Set("X-ClickHouse-Exception-Code", "241") }, "", "200", "memory"},
		{"exception in the body", func(w http.ResponseWriter) {
			fmt.Fprint(w, "\nCode: 243. DB::Exception: Cannot reserve 1 MiB (NOT_ENOUGH_SPACE)")
		}, "", "NOT_ENOUGH_SPACE", "free space"},
		{"password in the body", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "%q is wrong", password)
		}, "", `"***" is wrong`, ""},
		{"password in the body, bare", func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized); fmt.Fprint(w, "no: "+password) }, "", "no: ***", "password"},
		{"hostile text", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "\x1b]0;x\x07\u202e"+strings.Repeat("ü\xff", 1<<19))
		}, "", "500", "log"},
		{"page", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>\n<h1>no")
		}, "", "502 Bad Gateway", "busy or away"},
		{"not there", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, "", "404", "path"},
		{"too many", func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }, "", "429", "sent again"},
		{"large header", func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "", "header", "server"},
		{"body cut off", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "5") }, "", "EOF", "server"},
		{"bulk, taken", func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"errors":true,"items":[{"create":{"status":409,"error":{"type":"version_conflict_engine_exception"}}},{"create":{"status":201}}]}`)
		}, "flows/_bulk", "", ""},
		{"bulk, one refused", func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"errors":true,"items":[{"create":{"status":201}},{"create":{"status":429,"error":{"type":"rejected_execution_exception","reason":"full\n"}}}]}`)
		}, "flows/_bulk", "rejected_execution_exception: full", "overloaded"},
		{"bulk, too few", func(w http.ResponseWriter) { fmt.Fprint(w, `{"errors":false,"items":[{"create":{"status":201}}]}`) }, "flows/_bulk", "not that of _bulk", "OpenSearch"},
		{"bulk, no answer", func(http.ResponseWriter) {}, "flows/_bulk", "not that of _bulk", "OpenSearch"},
		{"bulk, another answer", func(w http.ResponseWriter) { fmt.Fprint(w, "[1]") }, "flows/_bulk", "not that of _bulk", "OpenSearch"},
		{"bulk, without end", func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"errors":true,"items":[`)
			for range 1 << 21 {
				fmt.Fprint(w, "          ")
			}
			fmt.Fprint(w, `]}`)
		}, "flows/_bulk", "not that of _bulk", "OpenSearch"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				test.answer(w)
			}))
			defer server.Close()
			to := target(t, server.URL+"/"+test.path)
			to.PasswordFile = secretFile(t, password)
			err := sinkOf(t, to).Deliver(t.Context(), rowsOf(1, 2))
			if test.text != "" {
				isSentence(t, err, test.text, test.fix)
			} else if err != nil {
				t.Error(remedy.Line(err))
			}
		})
	}
}

// What a server gets: who asks, what the body is, and one connection for all requests.
func TestRequests(t *testing.T) {
	var requests, connections atomic.Int64
	var plain atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+password || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Method != http.MethodPost {
			t.Errorf("%s %v", r.Method, r.Header)
		}
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			if plain.Load() {
				w.WriteHeader(http.StatusUnsupportedMediaType)
				return
			}
			zipped, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = zipped
		}
		text, err := io.ReadAll(body)
		if n := strings.Count(string(text), "\n"); err != nil || n != 100 {
			t.Errorf("%d lines, %v", n, err)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	to := target(t, server.URL+"/rows")
	to.PasswordFile = secretFile(t, password+"\r\n")
	s := sinkOf(t, to)
	rows := rowsOf(1, 100)
	for range 5 {
		nettest.Must(t, s.Deliver(t.Context(), rows))
	}
	plain.Store(true)
	nettest.Must(t, s.Deliver(t.Context(), rows))
	if requests.Load() != 7 || connections.Load() != 1 {
		t.Errorf("%d requests in %d connections", requests.Load(), connections.Load())
	}
	server.CloseClientConnections() // as a server does that has waited for long
	nettest.Must(t, s.Deliver(t.Context(), rows))
	for text, problem := range map[string]string{"": "no password", "\n": "no password", "a\x00b": "no password"} {
		to.PasswordFile = secretFile(t, text)
		isSentence(t, sinkOf(t, to).Deliver(t.Context(), rows), problem, "write it")
	}
	to.PasswordFile = "/nonexistent/secret"
	isSentence(t, sinkOf(t, to).Deliver(t.Context(), rows), "password", "file")
}

// A server that does not answer holds nobody longer than the context, which the error still is.
func TestServerThatDoesNotAnswer(t *testing.T) {
	listener := nettest.ListenTCP(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = io.ReadFull(conn, make([]byte, 100))
			cancel()
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	s := sinkOf(t, target(t, "http://"+listener.Addr().String()+"/"))
	if err := s.Deliver(ctx, rowsOf(1, 2)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for query, problem := range map[string]string{
		"?query=SELECT 1": "inserts no JSON rows",
		"?query=INSERT INTO a.b.c FORMAT JSONEachRow":                 "inserts no JSON rows",
		"?query=INSERT INTO flows; DROP TABLE flows FORMAT":           "invalid query",
		"?query=INSERT INTO flows%3B DROP TABLE a FORMAT JSONEachRow": "inserts no JSON rows",
		insert + "&wait_for_async_insert=0":                           "before it has the rows",
		insert + "&database=a'b":                                      "name of a database",
	} {
		_, err := Open(archive.Target{Kind: archive.JSONRows, To: "http://127.0.0.1/" + query})
		isSentence(t, err, problem, "")
		if remedy.Of(err) == "" {
			t.Errorf("%v has no remedy", err)
		}
	}
	_, err := Open(archive.Target{Kind: archive.JSONRows, To: "https://127.0.0.1/", CA: "/nonexistent"})
	isSentence(t, err, "authorities", "file")
	_, err = Open(archive.Target{Kind: archive.JSONRows, To: "https://127.0.0.1/", CA: "http_test.go"})
	isSentence(t, err, "no certificate", "PEM")
}

func TestSchema(t *testing.T) {
	c := startClickHouse(t, t.TempDir())
	to := c.to(t, "", "?query=INSERT INTO fleet.flows FORMAT JSONEachRow")
	for range 2 { // it is made, and stays
		if _, err := Schema(t.Context(), to, SchemaOptions{}); err != nil {
			t.Fatal(remedy.Line(err))
		}
		nettest.Must(t, sinkOf(t, to).Deliver(t.Context(), rowsOf(1, 100)))
		if got := c.ask(t, "SELECT count() FROM fleet.flows_once"); got != "100\n" {
			t.Errorf("%q rows", got)
		}
	}
	c.ask(t, "ALTER TABLE fleet.flows DROP COLUMN target_retransmits") // as if it were new
	if _, err := Schema(t.Context(), to, SchemaOptions{}); err != nil {
		t.Fatal(remedy.Line(err))
	}
	if got := c.ask(t, "SELECT count() FROM fleet.flows_once WHERE target_retransmits IS NULL"); got != "100\n" {
		t.Errorf("%q rows without the column", got)
	}
	_, err := Schema(t.Context(), to, SchemaOptions{Keep: 48 * 3600e9})
	isSentence(t, err, "by their age", "DROP PARTITION")
	_, err = Schema(t.Context(), to, SchemaOptions{Keep: 3600e9})
	isSentence(t, err, "time to keep", "a day")
	for name, table := range map[string]string{"taken": "taken", "half": "half_once", "third": "third_matrix"} {
		c.ask(t, "CREATE TABLE "+table+" (relay String) ENGINE = Log")
		_, err = Schema(t.Context(), c.to(t, "", "?query=INSERT INTO "+name+" FORMAT JSONEachRow"), SchemaOptions{})
		isSentence(t, err, "another table "+table, "rename")
	}
	if got := c.ask(t, "SELECT count() FROM system.tables WHERE engine = 'Log' AND database = 'default'"); got != "3\n" {
		t.Errorf("%q tables of others", got)
	}
	_, err = Schema(t.Context(), c.to(t, "reader@", insert), SchemaOptions{})
	isSentence(t, err, "Code: 164", "readonly")
	_, err = Schema(t.Context(), target(t, "https://127.0.0.1/flows/_bulk"), SchemaOptions{})
	isSentence(t, err, "only ClickHouse", "JSONEachRow")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello\x1b") }))
	defer server.Close()
	_, err = Schema(t.Context(), target(t, server.URL+"/"+insert), SchemaOptions{})
	isSentence(t, err, "not ClickHouse", "address")
	for _, column := range archive.Columns() {
		if types[column.Name].present == "" {
			t.Errorf("%s has no type", column.Name)
		}
	}
	if len(types) != len(archive.Columns()) {
		t.Errorf("%d types of %d columns", len(types), len(archive.Columns()))
	}
}

// ClickHouse is asked to answer when it has the rows, whatever the profile of the user says. A server that
// does not know the setting has no such inserts; others are not asked.
func TestClickHouseWaits(t *testing.T) {
	var asked []string
	old := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		wait := r.URL.Query().Get("wait_for_async_insert")
		asked = append(asked, wait)
		if old && wait != "" {
			w.Header().Set("X-ClickHouse-Exception-Code", "115")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "Code: 115, e.displayText() = DB::Exception: Unknown setting wait_for_async_insert, e.what() = DB::Exception")
		}
	}))
	defer server.Close()
	for _, test := range []struct {
		query string
		old   bool
		asked string
		fails bool
	}{
		{insert, false, "[1 1]", false},
		{insert, true, "[1  ]", false}, // with the setting, then twice without
		{insert + "&wait_for_async_insert=1", false, "[1 1]", false},
		{insert + "&wait_for_async_insert=1", true, "[1]", true},
		{"rows", false, "[ ]", false},
	} {
		asked, old = nil, test.old
		s := sinkOf(t, target(t, server.URL+"/"+test.query))
		var err error
		for range 2 {
			if err == nil {
				err = s.Deliver(t.Context(), rowsOf(1, 2))
			}
		}
		if got := fmt.Sprint(asked); got != test.asked || (err != nil) != test.fails {
			t.Errorf("%+v: asked for %s, %v", test, got, err)
		}
	}
}

// A certificate that is gone when the connection is made is one sentence, and the file is read again.
func TestCertificateIsGone(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	block := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	own := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	nettest.Must(t, err)
	to := target(t, server.URL+"/rows")
	to.CA = secretFile(t, block("CERTIFICATE", own.Certificate[0]))
	to.Certificate, to.Key = secretFile(t, block("CERTIFICATE", own.Certificate[0])), secretFile(t, block("PRIVATE KEY", key))
	nettest.Must(t, os.Rename(to.Certificate, to.Certificate+".old"))
	s := sinkOf(t, to)
	isSentence(t, s.Deliver(t.Context(), rowsOf(1, 2)), "load the certificate for the sink", "name a certificate and its key")
	nettest.Must(t, os.Rename(to.Certificate+".old", to.Certificate))
	nettest.Must(t, s.Deliver(t.Context(), rowsOf(1, 2)))
}
