// Command history measures the history of flows. It fills a file with records
// such as a relay's flows leave. It times every question that the command line
// and the dashboard ask. At last it adds records at a steady rate to the full
// file, which deletes the oldest ones, and reports the writer's CPU share.
//
//	go run ./bench/history
//	go run ./bench/history --records 100000 --runs 5
//
// With --db it asks a PostgreSQL that many relays ship to, and fills it first if it is empty.
//
//	go run ./bench/history --db postgres://postgres@localhost/bench?host=/run/postgresql --records 10000000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/stats"
	"longhaul/internal/words/units"
)

func main() { kit.Command("history", run) }

// Limits that the history must keep.
const (
	maxAnswerTime = 200 * time.Millisecond // of any question, median
	maxFileBytes  = 300e6                  // for each million records
	maxCPUShare   = 0.03                   // of one core, for 1000 records a second
)

// rate is the number of flows that end in a second, in batches of a relay's report.
const (
	rate       = 1000
	batchEvery = 100 * time.Millisecond
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		records, runs int
		over, pace    time.Duration
		file, db      string
	)
	flags := flag.NewFlagSet("history", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&records, "records", 1_000_000, "how many")
	flags.DurationVar(&over, "over", 30*24*time.Hour, "time in which they ended, until now")
	flags.IntVar(&runs, "runs", 7, "of each question; medians and the longest are printed")
	flags.DurationVar(&pace, "pace", 20*time.Second, "time in which 1000 records a second are added at last; 0: none")
	flags.StringVar(&file, "file", "", "history to use; it is filled if there is none, and stays (default: one that goes away)")
	flags.StringVar(&db, "db", "", "URL of a database to ask instead; its owner makes the tables and fills them if they are empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if records < 1 || runs < 1 || over < time.Minute {
		return errors.New("--records and --runs take 1 or more, --over 1m or more")
	}
	if db != "" {
		return askDatabase(ctx, db, records, runs, over, stdout)
	}
	if file == "" {
		dir, err := os.MkdirTemp("", "longhaul-history")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		file = filepath.Join(dir, "history.db")
	}
	if _, err := os.Stat(file); err != nil {
		if err := fill(ctx, file, records, over, stdout); err != nil {
			return err
		}
	}
	return errors.Join(ask(ctx, file, over, runs, stdout), addSteadily(ctx, file, pace, stdout))
}

// fill writes the records as a relay would.
func fill(ctx context.Context, file string, records int, over time.Duration, stdout io.Writer) error {
	store, err := history.Open(file, history.Options{MaxBytes: 4 << 30})
	if err != nil {
		return err
	}
	defer store.Close()
	maker := synthetic.NewMaker(1)
	begin, step := time.Now().Add(-over), over/time.Duration(records)
	started, cpu := time.Now(), cpuTime()
	var making time.Duration
	for done := 0; done < records; {
		if err := ctx.Err(); err != nil {
			return err
		}
		state := store.State()
		if state.Problem != "" {
			return errors.New(state.Problem)
		}
		if state.Waiting > 8000 {
			time.Sleep(time.Millisecond)
			continue
		}
		before := cpuTime()
		batch := make([]monitor.Record, min(1000, records-done))
		for i := range batch {
			batch[i] = maker.Record(begin.Add(time.Duration(done+i+1) * step))
		}
		making += cpuTime() - before
		store.Add(batch)
		done += len(batch)
	}
	if err := store.Close(); err != nil {
		return err
	}
	took, cpu := time.Since(started), cpuTime()-cpu-making
	state := store.State()
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d records written in %.1f s (%.0f a second, some %.0f µs of a processor each), %d dropped\n",
		state.Written, took.Seconds(), float64(state.Written)/took.Seconds(), float64(cpu.Microseconds())/float64(records), state.Dropped)
	perRecord := float64(info.Size()) / float64(records)
	fmt.Fprintf(stdout, "%.1f MB on disk, %.0f bytes a record\n\n", float64(info.Size())/1e6, perRecord)
	if records >= 100_000 && perRecord*1e6 > maxFileBytes {
		return fmt.Errorf("1 000 000 records take %.0f MB, more than %.0f", perRecord, maxFileBytes/1e6)
	}
	return nil
}

// addSteadily adds records at a steady rate to a file whose size is already at
// its limit, so that old records make room for new ones.
func addSteadily(ctx context.Context, file string, pace time.Duration, stdout io.Writer) error {
	if pace <= 0 {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	var dropped int64
	share := func(records []monitor.Record) (float64, error) {
		store, err := history.Open(file, history.Options{MaxBytes: max(info.Size()+8<<20, history.MinBytes)})
		if err != nil {
			return 0, err
		}
		began, cpu := time.Now(), cpuTime()
		tick := time.NewTicker(batchEvery)
		defer tick.Stop()
		for batch := range slices.Chunk(records, int(rate*batchEvery/time.Second)) {
			select {
			case <-ctx.Done():
				return 0, errors.Join(ctx.Err(), store.Close())
			case <-tick.C:
			}
			for i := range batch {
				batch[i].End = time.Now()
				batch[i].Start = batch[i].End.Add(time.Duration(-batch[i].Elapsed))
			}
			store.Add(batch)
		}
		err = store.Close()
		dropped += store.Dropped()
		return float64(cpuTime()-cpu) / float64(time.Since(began)), err
	}
	maker := synthetic.NewMaker(2)
	records := make([]monitor.Record, int(rate*pace.Seconds()))
	for i := range records {
		records[i] = maker.Record(time.Now())
	}
	full, err := share(records)
	if err != nil {
		return err
	}
	for i := range records {
		records[i] = maker.Record(time.Now())
		records[i].Goodput, records[i].Elapsed = monitor.Series{}, units.Seconds(4*time.Millisecond)
	}
	short, err := share(records)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d records a second onto a full file: %.2f %% of a core, of flows of milliseconds %.2f %%; %d dropped\n", rate, 100*full, 100*short, dropped)
	if most := max(full, short); most > maxCPUShare {
		return fmt.Errorf("%d records a second take %.2f %% of a core, more than %.0f %%", rate, 100*most, 100*maxCPUShare)
	}
	return nil
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ask times every question.
func ask(ctx context.Context, file string, over time.Duration, runs int, stdout io.Writer) error {
	reader, err := history.OpenReader(file)
	if err != nil {
		return err
	}
	defer reader.Close()
	extent, err := reader.Extent(ctx)
	if err != nil {
		return err
	}
	middle, err := reader.Get(ctx, extent.Records/2)
	if err != nil {
		return err
	}
	newest := extent.Newest.Add(time.Second)
	ago := func(share float64) time.Time { return newest.Add(-time.Duration(share * float64(over))) }
	rare, common := synthetic.Tunnel(synthetic.Tunnels-1), synthetic.Tunnel(0)
	list := func(name string, q history.Query) question {
		return question{name, func() (int, error) {
			all, err := reader.Query(ctx, q)
			return len(all), err
		}}
	}
	summary := func(name string, p history.Period, tunnel string) question {
		return question{name, func() (int, error) {
			s, err := reader.Summary(ctx, p, history.Selection{Tunnel: tunnel})
			return int(s.Flows), err
		}}
	}
	chart := func(name string, p history.Period, tunnel string) question {
		return question{name, func() (int, error) {
			c, err := reader.Series(ctx, p, history.Selection{Tunnel: tunnel})
			return len(c.Points), err
		}}
	}
	questions := []question{
		{"extent", func() (int, error) { e, err := reader.Extent(ctx); return int(e.Records), err }},
		{"get", func() (int, error) { _, err := reader.Get(ctx, extent.Records/2); return 1, err }},
		list("a flow's name", history.Query{Name: middle.Name}),
		list("a name that does not occur", history.Query{Name: flow.Name{1}}),
	}
	for _, order := range history.Orders() {
		questions = append(questions,
			list(string(order), history.Query{Order: order}),
			list(string(order)+", tunnel of every 128th", history.Query{Order: order, Selection: history.Selection{Tunnel: rare}}),
			list(string(order)+", cause, last tenth", history.Query{Order: order, Cause: doctor.RandomLoss, Since: ago(.1)}),
			list(string(order)+", tunnel, cause, first half", history.Query{Order: order, Selection: history.Selection{Tunnel: common}, Cause: doctor.Policer, Until: ago(.5)}),
			list(string(order)+", 1000 records", history.Query{Order: order, Limit: 1000}))
		page, err := reader.Query(ctx, history.Query{Order: order})
		if err != nil {
			return err
		}
		questions = append(questions, list(string(order)+", second page", history.Query{Order: order, After: page[len(page)-1].ID}))
	}
	questions = append(questions,
		list("newest, a tunnel that does not occur", history.Query{Selection: history.Selection{Tunnel: "none"}}),
		list("newest, cause that no flow has", history.Query{Cause: doctor.BlackHole, Selection: history.Selection{Tunnel: common}}),
		summary("summary of all", history.Period{}, ""),
		summary("summary of a tunnel", history.Period{}, common),
		summary("summary of the last tenth", history.Period{Since: ago(.1)}, ""),
		summary("summary, transfers of 10 MB and more", history.Period{MinBytes: 10e6}, ""),
		question{"two halves compared", func() (int, error) {
			c, err := reader.Compare(ctx, history.Period{Since: ago(1), Until: ago(.5)}, history.Period{Since: ago(.5)}, history.Selection{})
			return int(c.Before.Flows + c.After.Flows), err
		}},
		question{"two days compared, of a tunnel", func() (int, error) {
			day := 24 * time.Hour
			c, err := reader.Compare(ctx, history.Period{Since: newest.Add(-2 * day), Until: newest.Add(-day)}, history.Period{Since: newest.Add(-day)}, history.Selection{Tunnel: common})
			return int(c.Before.Flows + c.After.Flows), err
		}},
		chart("chart of all", history.Period{Since: ago(1), Until: newest}, ""),
		chart("chart of a tunnel", history.Period{Since: ago(1), Until: newest}, common),
		chart("chart of the last day", history.Period{Since: newest.Add(-24 * time.Hour), Until: newest}, ""),
		chart("chart of an hour long ago", history.Period{Since: ago(.8), Until: ago(.8).Add(time.Hour)}, ""),
	)
	worst, err := timed(questions, runs, stdout)
	if err == nil && worst > maxAnswerTime {
		err = fmt.Errorf("a question took %.0f ms, more than %v", ms(worst), maxAnswerTime)
	}
	return err
}

// timed asks each question some times. It returns the largest median.
func timed(questions []question, runs int, stdout io.Writer) (worst time.Duration, err error) {
	fmt.Fprintf(stdout, "| %-40s | %9s | %7s | %7s | %7s |\n", "question", "answers", "ms", "longest", "CPU ms")
	fmt.Fprintln(stdout, "|---|---|---|---|---|")
	for _, q := range questions {
		var times, cpu []time.Duration
		var n int
		for range runs {
			began, used := time.Now(), cpuTime()
			if n, err = q.ask(); err != nil {
				return worst, fmt.Errorf("%s: %w", q.name, err)
			}
			times, cpu = append(times, time.Since(began)), append(cpu, cpuTime()-used)
		}
		slices.Sort(times)
		slices.Sort(cpu)
		worst = max(worst, stats.At(times, 0.5))
		fmt.Fprintf(stdout, "| %-40s | %9d | %7.1f | %7.1f | %7.1f |\n", q.name, n, ms(stats.At(times, 0.5)), ms(times[len(times)-1]), ms(stats.At(cpu, 0.5)))
	}
	fmt.Fprintf(stdout, "\nthe slowest question takes %.0f ms\n", ms(worst))
	return worst, nil
}

// question is one that the command line or the dashboard asks, and returns the number of its answers.
type question struct {
	name string
	ask  func() (int, error)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
