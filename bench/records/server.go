package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/test/pgserver"
)

// server is a database.
type server struct {
	to      string // its URL
	port    int
	start   func(context.Context) error                           // returns when it answers
	kill    func()                                                // as a host dies
	say     func(ctx context.Context, sql string) (string, error) // rows of columns between tabs
	sumsSQL string
	badSQL  string // counts sums that differ from their rows; empty: it keeps none
}

func newServer(ctx context.Context, way, dir string) (*server, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := newPostgres(dir)
	if way == wayClickHouse {
		s, err = newClickHouse(dir)
	}
	if err != nil {
		return nil, err
	}
	return s, s.start(ctx)
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
func newPostgres(dir string) (*server, error) {
	const port = 5432
	pg, err := pgserver.In(dir, "-p", strconv.Itoa(port), "-h", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	return &server{
		to: fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port), port: port, kill: pg.Kill,
		start: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, startPatience)
			defer cancel()
			return pg.Start(ctx)
		},
		say: func(_ context.Context, sql string) (string, error) {
			out, err := pg.Program("psql", "-X", "-q", "-A", "-t", "-F", "\t", "-c", sql).CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("psql: %w: %s", err, bytes.TrimSpace(out))
			}
			return string(out), nil
		},
		sumsSQL: `SELECT relay, count(*), count(DISTINCT (epoch, id)), sum(bytes_up), sum(bytes_down) FROM longhaul.flows GROUP BY relay`,
		badSQL: `SELECT (SELECT count(*) FROM (
				SELECT date_trunc('hour', ended) AS hour, relay, count(*) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down
				FROM longhaul.flows GROUP BY 1, 2) AS rows
			FULL JOIN (
				SELECT hour, relay, sum(flows) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down
				FROM longhaul.hours JOIN longhaul.lines USING (line) GROUP BY 1, 2) AS sums USING (hour, relay)
			WHERE (rows.flows, rows.up, rows.down) IS DISTINCT FROM (sums.flows, sums.up, sums.down))
		+ (SELECT count(*) FROM (
				SELECT (ended AT TIME ZONE 'UTC')::date AS day, relay, count(*) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down,
					count(*) FILTER (WHERE bytes_up + bytes_down > 0 AND elapsed_us > 0) AS transfers
				FROM longhaul.flows GROUP BY 1, 2) AS rows
			FULL JOIN (
				SELECT day, relay, sum(flows) AS flows, sum(bytes_up) AS up, sum(bytes_down) AS down, sum(transfers) AS transfers,
					-- The sum of a whole number's digits, here of 12 each, is what is left by 1e12 - 1.
					sum(goodputs) * ('1e' || 12 * 1365)::numeric % 999999999999 AS goodputs, sum(times) * ('1e' || 12 * 1365)::numeric % 999999999999 AS times
				FROM longhaul.days JOIN longhaul.lines USING (line) GROUP BY 1, 2) AS sums USING (day, relay)
			WHERE (rows.flows, rows.up, rows.down, rows.transfers, rows.transfers, rows.transfers)
				IS DISTINCT FROM (sums.flows, sums.up, sums.down, sums.transfers, sums.goodputs, sums.times))`,
	}, pg.Init()
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
	args := []string{"--config-file=" + filepath.Join(dir, "config.xml")}
	s := &server{
		to: fmt.Sprintf("http://127.0.0.1:%d/?query=INSERT+INTO+flows+FORMAT+JSONEachRow", port), port: port,
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
	}
	var cmd *exec.Cmd
	s.start = func(ctx context.Context) error {
		log, err := os.Create(filepath.Join(dir, "log"))
		if err != nil {
			return err
		}
		defer log.Close()
		cmd = exec.Command("clickhouse-server", args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		for begun := time.Now(); ; {
			_, err := s.say(ctx, "SELECT 1")
			if err == nil {
				return nil
			}
			if time.Since(begun) > startPatience {
				text, _ := os.ReadFile(log.Name())
				text = regexp.MustCompile(`(?m)^\d+\. .*\n`).ReplaceAll(text, nil) // the frames of stacks
				return fmt.Errorf("the database does not answer: %w\n%s", err, text[max(0, len(text)-2000):])
			}
			if err := kit.Pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	s.kill = func() {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	return s, err
}
