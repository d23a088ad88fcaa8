package jsonrows

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// patience is for what another program does, on a machine with much else to do.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	if path := os.Getenv(childHistory); path != "" {
		shipForEver(path, os.Getenv(childTarget))
	}
	nettest.Main(m)
}

// clickhouse is a server of Debian's package.
type clickhouse struct {
	dir, address string
	program      string
	cmd          *exec.Cmd
}

const serverConfig = `<yandex>
<logger><level>warning</level><console>1</console></logger>
<http_port>%[2]s</http_port><listen_host>127.0.0.1</listen_host>
<path>%[1]s/data/</path><tmp_path>%[1]s/tmp/</tmp_path>
<users_config>%[1]s/users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>10485760</mark_cache_size>
</yandex>`

const serverUsers = `<yandex>
<profiles><default/><readonly><readonly>1</readonly></readonly></profiles>
<quotas><default/></quotas>
<users>
<default><password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota></default>
<relay><password>` + password + `</password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota></relay>
<reader><password/><networks><ip>::/0</ip></networks><profile>readonly</profile><quota>default</quota></reader>
</users>
</yandex>`

const password = "p+ss:word of a relay"

// startClickHouse starts a server with its files in a directory of its own.
func startClickHouse(t testing.TB, dir string) *clickhouse {
	t.Helper()
	program := nettest.RequireProgram(t, "clickhouse-server", "clickhouse-server")
	c := &clickhouse{dir: dir, address: nettest.FreeAddress(t, "127.0.0.1"), program: program}
	_, port, _ := strings.Cut(c.address, ":")
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "config.xml"), fmt.Appendf(nil, serverConfig, dir, port), 0o600))
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "users.xml"), []byte(serverUsers), 0o600))
	c.start(t)
	t.Cleanup(c.kill)
	return c
}

func (c *clickhouse) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	nettest.Must(t, err)
	defer log.Close()
	c.cmd = exec.Command(c.program, "--config-file="+filepath.Join(c.dir, "config.xml"))
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = c.dir, log, log
	nettest.Must(t, c.cmd.Start())
	nettest.Eventually(t, patience, func() bool {
		response, err := http.Get("http://" + c.address + "/ping")
		if err == nil {
			response.Body.Close()
		}
		if nettest.Ended(c.cmd.Process.Pid) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server has ended: %s", text)
		}
		return err == nil
	}, func() string { text, _ := os.ReadFile(log.Name()); return string(text) })
}

func (c *clickhouse) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
}

// ask has the server execute SQL, and returns the answer.
func (c *clickhouse) ask(t testing.TB, sql string) string {
	t.Helper()
	response, err := http.Post("http://"+c.address+"/?wait_end_of_query=1", "text/plain", strings.NewReader(sql))
	nettest.Must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", sql, text, err)
	}
	return string(text)
}

const insert = "?query=INSERT INTO flows FORMAT JSONEachRow"

// to is the server as a target; part is what comes behind the address, and may begin with a user.
func (c *clickhouse) to(t testing.TB, user, query string) archive.Target {
	t.Helper()
	return target(t, "http://"+user+c.address+"/"+query)
}

func target(t testing.TB, to string) archive.Target {
	t.Helper()
	parsed, err := archive.ParseTarget(to)
	nettest.Must(t, err)
	return parsed
}

// schema makes the tables.
func (c *clickhouse) schema(t testing.TB) {
	t.Helper()
	if _, err := Schema(t.Context(), c.to(t, "", insert), SchemaOptions{}); err != nil {
		t.Fatal(remedy.Line(err))
	}
}

func sinkOf(t testing.TB, to archive.Target) *Sink {
	t.Helper()
	s, err := Open(to)
	if err != nil {
		t.Fatal(remedy.Line(err))
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func secretFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	nettest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// isSentence checks that an error is one line with a remedy, bounded, and has no secret in it.
func isSentence(t *testing.T, err error, problem, fix string) {
	t.Helper()
	if err == nil {
		t.Fatalf("taken, want %q", problem)
	}
	line := remedy.Line(err)
	if !strings.Contains(err.Error(), problem) || !strings.Contains(remedy.Of(err), fix) {
		t.Errorf("%s; want %q and %q", line, problem, fix)
	}
	if len(line) > 450 || strings.ContainsAny(line, "\n\r\x1b\x00") || strings.Contains(line, password) || strings.Contains(line, url.QueryEscape(password)) {
		t.Errorf("%q", line)
	}
}

func TestDeliverToClickHouse(t *testing.T) {
	c := startClickHouse(t, t.TempDir())
	c.schema(t)
	to := c.to(t, "relay@", insert)
	to.PasswordFile = secretFile(t, password+"\n")
	s := sinkOf(t, to)
	rows := rowsOf(1, 3000)
	for _, part := range [][]archive.Row{rows[:2000], rows[:2000], rows[1000:], rows} {
		if err := s.Deliver(t.Context(), part); err != nil {
			t.Fatal(remedy.Line(err))
		}
	}
	if got := c.ask(t, "SELECT count(), min(id), max(id), min(epoch) FROM flows_once"); got != "3000\t1\t3000\t9007199254740993\n" {
		t.Errorf("the view has %q", got)
	}
	if got := c.ask(t, "SELECT started_ms, started, name, client, cause_share, client_port FROM flows_once WHERE id = 1"); got !=
		fmt.Sprintf("%d\t%s\t%s\t%s\t\\N\t%d\n", rows[0].Start.UnixMilli(), rows[0].Start.UTC().Format(time.DateTime), rows[0].Name, rows[0].Client.Addr(), rows[0].Client.Port()) {
		t.Errorf("the first row is %q", got)
	}
	hostile := rows[0]
	hostile.ID, hostile.Error = 4000, "a\x00b\xffc\"d\\e\nf\u2028\u202e"+strings.Repeat("ü", 10000)
	if err := s.Deliver(t.Context(), []archive.Row{hostile}); err != nil {
		t.Fatal(remedy.Line(err))
	}
	if got := c.ask(t, "SELECT error FROM flows_once WHERE id = 4000 FORMAT RowBinary"); !strings.HasSuffix(got, strings.ToValidUTF8(hostile.Error, "\uFFFD")) {
		t.Errorf("the text is %.60q", got)
	}
}

// What ClickHouse refuses is said in one sentence, and what it is about.
func TestClickHouseRefuses(t *testing.T) {
	c := startClickHouse(t, t.TempDir())
	c.schema(t)
	c.ask(t, "CREATE TABLE narrow (relay Int8, epoch Int64, id Int64) ENGINE = MergeTree ORDER BY id")
	c.ask(t, "CREATE TABLE crowded (relay String, epoch Int64, id Int64) ENGINE = MergeTree ORDER BY id SETTINGS parts_to_throw_insert = 1, parts_to_delay_insert = 1")
	c.ask(t, "INSERT INTO crowded VALUES ('a', 1, 1)")
	rows := rowsOf(1, 100)
	for _, test := range []struct{ user, password, query, problem, fix string }{
		{"", "", "?query=INSERT INTO nowhere FORMAT JSONEachRow", "Code: 60", "history schema"},
		{"", "", "?query=INSERT INTO nowhere.flows FORMAT JSONEachRow", "Code: 81", "history schema"},
		{"", "", insert + "&database=nowhere", "Code: 81", "history schema"},
		{"", "", insert + "&input_format_skip_unknown_fields=0", "Code: 117", "history schema"},
		{"", "", "?query=INSERT INTO narrow FORMAT JSONEachRow", "Code: 2", "history schema"},
		{"", "", "?query=INSERT INTO crowded FORMAT JSONEachRow", "Code: 252", "async_insert=1"},
		{"", "", insert + "&max_memory_usage=1", "Code: 241", "max_memory_usage"},
		{"", "", insert + "&no_such_setting=1", "Code: 115", "setting"},
		{"", "", "", "Code: ", "?query=INSERT INTO flows"},
		{"nobody@", "", insert, "Code: 192", "user"},
		{"relay@", "wrong", insert, "Code: 193", "user"},
		{"relay@", "", insert, "Code: 194", "user"},
		{"reader@", "", insert, "Code: 164", "readonly"},
	} {
		t.Run(test.problem, func(t *testing.T) {
			to := c.to(t, test.user, test.query)
			if test.password != "" {
				to.PasswordFile = secretFile(t, test.password)
			}
			isSentence(t, sinkOf(t, to).Deliver(t.Context(), rows), test.problem, test.fix)
		})
	}
	if got := c.ask(t, "SELECT count() FROM flows_once"); got != "0\n" {
		t.Errorf("%q rows of refused requests", got)
	}
}

// A full disk is a reason to wait: when there is room again, the same rows are taken.
func TestFullDiskOfClickHouse(t *testing.T) {
	nettest.RequireSandbox(t)
	dir := t.TempDir()
	nettest.Must(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	if err := syscall.Mount("tmpfs", filepath.Join(dir, "data"), "tmpfs", 0, "size=48m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(dir, "data"), syscall.MNT_DETACH) })
	c := startClickHouse(t, dir)
	c.schema(t)
	s := sinkOf(t, c.to(t, "", insert))
	filler := filepath.Join(dir, "data", "filler")
	nettest.Must(t, fill(filler))
	rows := rowsOf(1, 5000)
	isSentence(t, s.Deliver(t.Context(), rows), "Code: ", "free space")
	nettest.Must(t, os.Remove(filler))
	if err := syscall.Mount("tmpfs", filepath.Join(dir, "data"), "tmpfs", syscall.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Deliver(t.Context(), rows); err != nil {
		t.Fatal(remedy.Line(err))
	}
	if got := c.ask(t, "SELECT count() FROM flows_once"); got != "5000\n" {
		t.Errorf("%q rows", got)
	}
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for piece := make([]byte, 1<<16); err == nil; {
		_, err = f.Write(piece)
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

// BenchmarkDeliver measures what a record costs the process that ships, and how fast a server takes them.
func BenchmarkDeliver(b *testing.B) {
	c := startClickHouse(b, b.TempDir())
	c.schema(b)
	rows := rowsOf(1, 2000)
	for _, plain := range []bool{false, true} {
		b.Run(fmt.Sprintf("plain=%v", plain), func(b *testing.B) {
			s := sinkOf(b, c.to(b, "", insert))
			s.plain = plain
			begun := cpuTime(b)
			for b.Loop() {
				nettest.Must(b, s.Deliver(b.Context(), rows))
			}
			n := float64(b.N * len(rows))
			b.ReportMetric(float64(cpuTime(b)-begun)/n, "cpu-ns/record")
			b.ReportMetric(n/b.Elapsed().Seconds(), "records/s")
		})
	}
}
