package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
)

// server is a database.
type server struct {
	to      string // its URL
	port    int
	dir     string
	args    []string
	say     func(ctx context.Context, sql string) (string, error) // rows of columns between tabs
	sumsSQL string
	badSQL  string // counts sums that differ from their rows; empty: it keeps none
	cmd     *exec.Cmd
	log     *os.File
}

func newServer(ctx context.Context, way, dir string) (*server, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := newPostgres(ctx, dir)
	if way == wayClickHouse {
		s, err = newClickHouse(dir)
	}
	if err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	return s, s.start(ctx)
}

// start starts the database and returns when it answers.
func (s *server) start(ctx context.Context) error {
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for begun := time.Now(); ; {
		_, err := s.say(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		if time.Since(begun) > startPatience {
			text, _ := os.ReadFile(s.log.Name())
			return fmt.Errorf("the database does not answer: %w\n%s", err, text[max(0, len(text)-2000):])
		}
		if err := kit.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// kill kills all processes of it at once, as a host dies. A backend of PostgreSQL that outlives its
// postmaster may wait for ever, and then the next postmaster cannot start.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	for pids := s.processes(); len(pids) > 0; pids = s.processes() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		time.Sleep(time.Millisecond)
	}
}

// processes are those that work in the database's directory.
func (s *server) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if dir, err := os.Readlink("/proc/" + e.Name() + "/cwd"); err == nil && strings.HasPrefix(dir, s.dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// restart kills it and starts it again after a while.
func (s *server) restart(ctx context.Context, down time.Duration) error {
	s.kill()
	if err := kit.Pause(ctx, down); err != nil {
		return err
	}
	return s.start(ctx)
}

// prepare makes the tables.
func (s *server) prepare(ctx context.Context, longhaul string) error {
	return command(ctx, longhaul, "history", "schema", "--to", s.to)
}

// sums are those of each relay in the database.
func (s *server) sums(ctx context.Context) (map[string]sums, error) {
	out, err := s.say(ctx, s.sumsSQL)
	if err != nil {
		return nil, err
	}
	all := map[string]sums{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("the database answers %q", line)
		}
		var n [4]int64
		for i := range n {
			if n[i], err = strconv.ParseInt(f[i+1], 10, 64); err != nil {
				return nil, err
			}
		}
		all[f[0]] = sums{n[0], n[1], n[2], n[3]}
	}
	return all, nil
}

// rollups counts sums that differ from their rows; negative: the database keeps none.
func (s *server) rollups(ctx context.Context) (int64, error) {
	if s.badSQL == "" {
		return -1, nil
	}
	out, err := s.say(ctx, s.badSQL)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

// newPostgres makes a cluster as Debian's defaults have it.
func newPostgres(ctx context.Context, dir string) (*server, error) {
	bin, data := lab.PostgresPrograms(), filepath.Join(dir, "data")
	as := []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"}
	initdb := append(append([]string{}, as[1:]...), bin+"/initdb", "-D", data, "-A", "trust", "-U", "postgres")
	if err := errors.Join(command(ctx, "chown", "postgres", dir), command(ctx, as[0], initdb...)); err != nil {
		return nil, err
	}
	const port = 5432
	return &server{
		to: fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port), port: port, dir: dir,
		args: append(as, bin+"/postgres", "-D", data, "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-k", dir),
		say: func(ctx context.Context, sql string) (string, error) {
			out, err := exec.CommandContext(ctx, "psql", "-X", "-q", "-A", "-t", "-F", "\t", "-h", dir, "-p", strconv.Itoa(port),
				"-U", "postgres", "-d", "postgres", "-c", sql).CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("psql: %w: %s", err, bytes.TrimSpace(out))
			}
			return string(out), nil
		},
		sumsSQL: `SELECT relay, count(*), count(DISTINCT (epoch, id)), sum(bytes_up), sum(bytes_down) FROM longhaul.flows GROUP BY relay`,
		badSQL: `SELECT count(*) FROM (
			SELECT date_trunc('hour', ended) AS hour, relay, count(*) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down
			FROM longhaul.flows GROUP BY 1, 2) AS rows
		FULL JOIN (
			SELECT hour, relay, sum(flows) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down
			FROM longhaul.hours JOIN longhaul.lines USING (line) GROUP BY 1, 2) AS sums USING (hour, relay)
		WHERE (rows.flows, rows.up, rows.down) IS DISTINCT FROM (sums.flows, sums.up, sums.down)`,
	}, nil
}

// newClickHouse is a server with everything in one directory.
func newClickHouse(dir string) (*server, error) {
	const port = 8123
	config := fmt.Sprintf(`<yandex>
	<logger><level>warning</level><console>1</console></logger>
	<listen_host>127.0.0.1</listen_host><http_port>%d</http_port><tcp_port>9000</tcp_port>
	<path>%[2]s/data/</path><tmp_path>%[2]s/tmp/</tmp_path><user_files_path>%[2]s/files/</user_files_path>
	<mark_cache_size>536870912</mark_cache_size>
	<users_config>users.xml</users_config><default_profile>default</default_profile><default_database>default</default_database>
	</yandex>`, port, dir)
	const users = `<yandex><profiles><default/></profiles><quotas><default/></quotas><users><default>
	<password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
	</default></users></yandex>`
	err := errors.Join(os.WriteFile(filepath.Join(dir, "config.xml"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(dir, "users.xml"), []byte(users), 0o644))
	return &server{
		to: fmt.Sprintf("http://127.0.0.1:%d/?query=INSERT+INTO+flows+FORMAT+JSONEachRow", port), port: port, dir: dir,
		args: []string{"clickhouse-server", "--config-file=" + filepath.Join(dir, "config.xml")},
		say: func(ctx context.Context, sql string) (string, error) {
			cmd := exec.CommandContext(ctx, "curl", "-sS", "--fail-with-body", "--data-binary", "@-", fmt.Sprintf("http://127.0.0.1:%d/", port))
			cmd.Stdin = strings.NewReader(sql)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("clickhouse-server: %w: %s", err, bytes.TrimSpace(out))
			}
			return string(out), nil
		},
		sumsSQL: `SELECT relay, count() AS n, uniqExact(epoch, id) AS u, sum(bytes_up) AS up, sum(bytes_down) AS down FROM flows_once GROUP BY relay`,
	}, err
}
