package jsonrows

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor/history"
	"longhaul/test/nettest"
)

// cell is a row of the matrix.
type cell struct {
	From          string `json:"from_site"`
	To            string `json:"to_site"`
	Flows         int64  `json:"flows"`
	Transfers     int64  `json:"transfers"`
	Up            int64  `json:"sum_bytes_up"`
	Down          int64  `json:"sum_bytes_down"`
	Retransmitted int64  `json:"sum_bytes_retransmitted"`
	P50           int64  `json:"elapsed_us_p50"`
	P99           int64  `json:"elapsed_us_p99"`
}

// matrixOf is the matrix of a history's records, without SQL.
func matrixOf(records []history.Spooled) (cells []cell) {
	elapsed := map[string][]int64{}
	sums := map[string]*cell{}
	for _, r := range records {
		if r.ClientLeg.Side == "wan" {
			continue
		}
		to := r.Site
		if to == "" {
			to = r.Peer
		}
		c := sums[to]
		if c == nil {
			c = &cell{From: "site-a", To: to}
			sums[to] = c
		}
		c.Flows++
		c.Up, c.Down = c.Up+r.BytesUp, c.Down+r.BytesDown
		c.Retransmitted += max(r.ClientLeg.BytesRetransmitted, 0) + max(r.TargetLeg.BytesRetransmitted, 0)
		if r.BytesUp+r.BytesDown > 0 {
			c.Transfers++
			elapsed[to] = append(elapsed[to], r.Elapsed.Duration().Microseconds())
		}
	}
	for to, c := range sums {
		slices.Sort(elapsed[to])
		at := func(share float64) int64 { return elapsed[to][int(share*float64(len(elapsed[to])))] }
		c.P50, c.P99 = at(0.5), at(0.99)
		cells = append(cells, *c)
	}
	slices.SortFunc(cells, func(a, b cell) int { return strings.Compare(a.To, b.To) })
	return cells
}

// cellsOf reads the matrix as a database prints it, a JSON object a line.
func cellsOf(t *testing.T, text string) (cells []cell) {
	t.Helper()
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var c cell
		err := decoder.Decode(&c)
		if errors.Is(err, io.EOF) {
			return cells
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		cells = append(cells, c)
	}
}

const (
	plainNumbers = " SETTINGS output_format_json_quote_64bit_integers = 0"
	askMatrix    = "SELECT * FROM flows_matrix FORMAT JSONEachRow"
	askClient    = "SELECT count(), uniq(relay), sum(bytes_up) FROM flows_once WHERE client = '%s' FORMAT TSV"
)

// history of a day, with flows over the WAN at both ends among them.
func historyOfADay(t *testing.T, n int) (path string, records []history.Spooled) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "history.db")
	fillHistory(t, path, n)
	return path, spooled(t, path)
}

// shipAll ships a history until the place has all of it.
func shipAll(t *testing.T, path string, to archive.Target, arrived func() bool) {
	t.Helper()
	store, err := history.Open(path, history.Options{})
	nettest.Must(t, err)
	defer store.Close()
	ships := ship.New(store, ship.Options{Relay: "relay-a", Site: "site-a", Open: func(t archive.Target) (archive.Sink, error) { return Open(t) }})
	defer ships.Close()
	ships.Set([]archive.Target{to})
	nettest.Eventually(t, patience, arrived, func() string { return fmt.Sprintf("%+v", ships.States()) })
}

// The same records have the same matrix in the history and in the oldest ClickHouse that is taken.
func TestMatrixOfClickHouse(t *testing.T) {
	c := startClickHouse(t, t.TempDir())
	c.schema(t)
	path, records := historyOfADay(t, 20_000)
	to := c.to(t, "", insert)
	for _, name := range []string{"", "again"} { // a sink with another name has no cursor yet: each row comes twice
		to.Name = name
		all := fmt.Sprintf("%d\n", len(records))
		shipAll(t, path, to, func() bool { return c.ask(t, "SELECT uniqExact(epoch, id) FROM flows") == all })
	}
	got := cellsOf(t, c.askPlain(t, askMatrix))
	if want := matrixOf(records); !slices.Equal(got, want) {
		t.Errorf("the matrix is\n%+v\nwant\n%+v", got, want)
	}
	client := records[7].Client.Addr()
	if got, want := c.ask(t, fmt.Sprintf(askClient, client)), linesOfClient(records, client.String()); got != want {
		t.Errorf("the client has %q, want %q", got, want)
	}
	// A question about an hour reads that hour, not the day.
	answer := c.ask(t, "SELECT count() FROM flows_once WHERE ended >= toDateTime("+fmt.Sprint(records[len(records)-1].End.Unix())+") FORMAT JSON")
	var read struct {
		Statistics struct {
			Rows int `json:"rows_read"`
		} `json:"statistics"`
	}
	nettest.Must(t, json.Unmarshal([]byte(answer), &read))
	if all := 2 * len(records); read.Statistics.Rows == 0 || read.Statistics.Rows >= all {
		t.Errorf("a question about the last second has read %d of %d rows", read.Statistics.Rows, all)
	}
}

// askPlain asks for 64-bit numbers without quotes.
func (c *clickhouse) askPlain(t *testing.T, sql string) string {
	t.Helper()
	response, err := http.Post("http://"+c.address+"/?output_format_json_quote_64bit_integers=0", "text/plain", strings.NewReader(sql))
	nettest.Must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	nettest.Must(t, err)
	return string(text)
}

func linesOfClient(records []history.Spooled, client string) string {
	var n, up int64
	for _, r := range records {
		if r.Client.Addr().String() == client {
			n, up = n+1, up+r.BytesUp
		}
	}
	return fmt.Sprintf("%d\t1\t%d\n", n, up)
}

// receiver keeps the bodies that it is sent, and says of the first ones that it has not.
type receiver struct {
	mu     sync.Mutex
	bodies [][]byte
	taken  int // rows that it has said it has
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var body, rows bytes.Buffer
	zipped, err := gzip.NewReader(io.TeeReader(request.Body, &body))
	if err == nil {
		_, err = rows.ReadFrom(zipped)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, body.Bytes())
	if err != nil || len(r.bodies) <= 2 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	r.taken += bytes.Count(rows.Bytes(), []byte("\n"))
}

// The same of a present ClickHouse, in a Python process: it takes the bodies that the sink sent.
func TestMatrixOfPresentClickHouse(t *testing.T) {
	python := requireChDB(t)
	path, records := historyOfADay(t, 20_000)
	r := &receiver{}
	server := httptest.NewServer(r)
	defer server.Close()
	shipAll(t, path, target(t, server.URL+"/"+insert), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.taken >= len(records)
	})
	to := target(t, "http://127.0.0.1:8123/?query=INSERT INTO longhaul.flows FORMAT JSONEachRow")
	statements, err := Schema(t.Context(), to, SchemaOptions{Print: true, Keep: 90 * 24 * 3600e9})
	nettest.Must(t, err)
	later := schema{table: table{"longhaul", "flows"}, present: true, days: 30, database: true}
	for _, c := range later.definitions() {
		if c[0] != "target_retransmits" { // as if it were new
			later.has = append(later.has, c[0])
		}
	}
	client := records[7].Client.Addr()
	dir := t.TempDir()
	task := map[string]any{
		"schema": statements,
		"insert": "INSERT INTO longhaul.flows SETTINGS input_format_skip_unknown_fields = 1 FORMAT JSONEachRow\n",
		"queries": []string{
			"SELECT count(), uniqExact(relay, epoch, id) FROM longhaul.flows_once FORMAT TSV",
			"SELECT * FROM longhaul.flows_matrix" + plainNumbers + " FORMAT JSONEachRow",
			fmt.Sprintf(strings.Replace(askClient, "flows_once", "longhaul.flows_once", 1), client),
			"SELECT countIf(target_retransmits IS NULL) = count() FROM longhaul.flows_once FORMAT TSV",
			"SELECT toUnixTimestamp64Milli(ended), toUnixTimestamp64Milli(started), toString(name) FROM longhaul.flows_once WHERE id = 1 FORMAT TSV",
		},
		"before":    []string{"ALTER TABLE longhaul.flows DROP COLUMN target_retransmits"},
		"migration": later.statements(),
	}
	text, err := json.Marshal(task)
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "task.json"), text, 0o600))
	for i, body := range r.bodies {
		nettest.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.gz", i)), body, 0o600))
	}
	cmd := exec.Command(python, "testdata/chdb_run.py", dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var answers []string
	nettest.Must(t, json.Unmarshal(out, &answers))
	if got, want := answers[0], fmt.Sprintf("%d\t%d\n", len(records), len(records)); got != want {
		t.Errorf("the view has %q, want %q", got, want)
	}
	if got, want := cellsOf(t, answers[1]), matrixOf(records); !slices.Equal(got, want) {
		t.Errorf("the matrix is\n%+v\nwant\n%+v", got, want)
	}
	if got, want := answers[2], linesOfClient(records, client.String()); got != want {
		t.Errorf("the client has %q, want %q", got, want)
	}
	first := records[0]
	if answers[3] != "1\n" {
		t.Errorf("the column that was added again has values: %q", answers[3])
	}
	if got, want := answers[4], fmt.Sprintf("%d\t%d\t%s\n", first.End.UnixMilli(), first.Start.UnixMilli(), first.Name); got != want {
		t.Errorf("the first row is %q, want %q", got, want)
	}
}

// requireChDB returns a Python that has chdb. Without one it skips the test; with CI=true it fails it.
func requireChDB(t *testing.T) string {
	t.Helper()
	python := os.Getenv("LONGHAUL_TEST_CHDB")
	if python == "" {
		python = nettest.RequireProgram(t, "python3", "python3")
	}
	if out, err := exec.Command(python, "-c", "import chdb").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI must be able to run this: needs Python's package chdb: %s", out)
		}
		t.Skip("needs Python's package chdb: pip install chdb in a virtual environment, and LONGHAUL_TEST_CHDB=ITS/bin/python3")
	}
	return python
}
