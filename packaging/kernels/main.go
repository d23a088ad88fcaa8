// Command kernels boots Debian's kernels in qemu and checks longhaul on them: oldest to
// newest, amd64, arm64 and s390x. It needs no KVM.
//
//	go run ./packaging/kernels
//	go run ./packaging/kernels --kernels 6.1,backports --checks mss,tests
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"longhaul/packaging/kernels/result"
)

const usage = `usage: kernels [flags]

kernels fetches Debian's kernels, boots each in qemu with longhaul and the
compiled tests of the packages that touch the kernel, and prints what works
there. It runs from the top of the repository. The console of each is in a log.

  --kernels LIST  kernels, with commas between (default: all but s390x-sid; ci:
                  those of CI)
  --checks LIST   checks, with commas between (default: all but slow ones)
  --tests LIST    packages whose tests run in the check tests
  --script FILE   run this shell script in each guest instead, and print its
                  console; FILE finds longhaul, ip, tc and iperf3
  --jobs N        kernels at the same time (default 1)
  --limit D       longest time of one kernel (default 1h)
  --memory MB     memory of a guest (default 3072)
  --seconds N     duration of a transfer of the check figures (default 60)
  --rate MBPS     rate of the bottleneck there (default 20)
  --repeat N      transfers of each algorithm there (default 3)
  --cc LIST       algorithms there (default haul,brutal,bbr,cubic)
  --cache DIR     fetched packages (default: longhaul-kernels in the user's cache)
  --logs DIR      consoles (default: in the cache)
  --json FILE     write the result as JSON, - for standard output
  --list          list kernels and checks

Debian packages: qemu-system-x86 qemu-system-arm qemu-system-misc cpio kmod
Newer kernels of s390x need a newer QEMU than Debian 12's 7.2: from its backports.

examples, a script on one kernel and what CI runs:
  go run ./packaging/kernels --kernels 5.10 --script try.sh
  go run ./packaging/kernels --kernels ci --jobs 2

Exit status: 0 everything works where it should, 1 something does not, 2 a wrong
command line.
`

// A usageError is a wrong command line.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "kernels:", err)
	var wrong usageError
	if errors.As(err, &wrong) {
		os.Exit(2)
	}
	os.Exit(1)
}

type options struct {
	kernels       []kernel
	checks, tests []string
	script        string
	jobs, memory  int
	limit         time.Duration
	cache, logs   string
	json          string
	plan          result.Plan
}

func parse(args []string) (o options, list bool, err error) {
	flags := flag.NewFlagSet("kernels", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	names := flags.String("kernels", "", "")
	checks := flags.String("checks", strings.Join(allChecks, ","), "")
	tests := flags.String("tests", strings.Join(tested, ","), "")
	flags.StringVar(&o.script, "script", "", "")
	flags.IntVar(&o.jobs, "jobs", 1, "")
	flags.DurationVar(&o.limit, "limit", time.Hour, "")
	flags.IntVar(&o.memory, "memory", 3072, "")
	flags.IntVar(&o.plan.Seconds, "seconds", 60, "")
	flags.IntVar(&o.plan.RateMbps, "rate", 20, "")
	flags.IntVar(&o.plan.Repeat, "repeat", 3, "")
	algorithms := flags.String("cc", "haul,brutal,bbr,cubic", "")
	flags.StringVar(&o.cache, "cache", "", "")
	flags.StringVar(&o.logs, "logs", "", "")
	flags.StringVar(&o.json, "json", "", "")
	flags.BoolVar(&list, "list", false, "")
	if err := flags.Parse(args); err != nil {
		return o, false, err
	}
	if flags.NArg() > 0 {
		return o, false, fmt.Errorf("unexpected %q", flags.Arg(0))
	}
	if o.jobs < 1 || o.memory < 512 || o.plan.Seconds < 1 || o.plan.RateMbps < 1 || o.plan.Repeat < 1 {
		return o, false, errors.New("--jobs, --seconds, --rate and --repeat are at least 1, --memory at least 512")
	}
	if o.kernels, err = choose(*names); err != nil {
		return o, false, err
	}
	o.checks, o.tests = split(*checks), split(*tests)
	for _, c := range o.checks {
		if !slices.Contains(allChecks, c) && !slices.Contains(slowChecks, c) {
			return o, false, fmt.Errorf("no check %q: --list lists them", c)
		}
	}
	for _, t := range o.tests {
		if !slices.Contains(tested, t) {
			return o, false, fmt.Errorf("no tests of %q among %s", t, strings.Join(tested, ", "))
		}
	}
	o.plan.Algorithms = split(*algorithms)
	if o.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return o, false, fmt.Errorf("%w: name a --cache", err)
		}
		o.cache = filepath.Join(dir, "longhaul-kernels")
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return o, false, err
	}
	if o.logs == "" {
		o.logs = filepath.Join(o.cache, "logs")
	}
	return o, list, nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// choose returns the kernels of a list.
func choose(list string) (chosen []kernel, err error) {
	switch list {
	case "":
		return slices.DeleteFunc(slices.Clone(kernels), func(k kernel) bool { return k.byName }), nil
	case "ci":
		return slices.DeleteFunc(slices.Clone(kernels), func(k kernel) bool { return !k.ci }), nil
	}
	for _, name := range split(list) {
		at := slices.IndexFunc(kernels, func(k kernel) bool { return k.name == name })
		if at < 0 {
			return nil, fmt.Errorf("no kernel %q: --list lists them", name)
		}
		chosen = append(chosen, kernels[at])
	}
	return chosen, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, list, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return nil
	}
	if err != nil {
		return usageError{err}
	}
	if list {
		return printList(stdout)
	}
	if _, err := os.Stat("packaging/kernels"); err != nil {
		return errors.New("run it from the top of the repository")
	}
	for _, program := range []string{"qemu-system-x86_64", "cpio", "depmod", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: apt-get install qemu-system-x86 qemu-system-arm qemu-system-misc cpio kmod", program)
		}
	}
	for _, dir := range []string{o.cache, o.logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	unlock, err := lock(o.cache)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(o.cache, "run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	ready, ours, err := prepareAll(ctx, o, work, stderr)
	unlock()
	if err != nil {
		return err
	}
	reports := bootAll(ctx, o, work, ready, ours, stdout, stderr)
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted")
	}
	return conclude(o, reports, stdout)
}

// lock lets one process at a time change the cache.
func lock(cache string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// prepareAll fetches the kernels and builds longhaul for their architectures.
func prepareAll(ctx context.Context, o options, work string, stderr io.Writer) (ready []*bootable, ours map[string]string, err error) {
	ours = map[string]string{}
	for _, k := range o.kernels {
		fmt.Fprintf(stderr, "kernels: fetch %s, Debian %s, %s\n", k.name, k.suite, k.arch)
		b, err := prepare(ctx, o.cache, k)
		if err != nil {
			return nil, nil, err
		}
		ready = append(ready, b)
		if _, done := ours[k.arch]; done {
			continue
		}
		fmt.Fprintf(stderr, "kernels: build for %s\n", k.arch)
		tests := o.tests
		if o.script == "" && !slices.Contains(o.checks, "tests") {
			tests = nil
		}
		if ours[k.arch], err = buildOurs(ctx, work, k.arch, tests); err != nil {
			return nil, nil, err
		}
	}
	return ready, ours, nil
}

func bootAll(ctx context.Context, o options, work string, ready []*bootable, ours map[string]string, stdout, stderr io.Writer) []report {
	reports := make([]report, len(ready))
	slots := make(chan struct{}, o.jobs)
	var all sync.WaitGroup
	var printing sync.Mutex
	for _, i := range slowestFirst(ready) {
		b := ready[i]
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			reports[i] = bootOne(ctx, o, work, b, ours[b.arch], func(format string, args ...any) {
				printing.Lock()
				defer printing.Unlock()
				fmt.Fprintf(stderr, "kernels: "+b.name+": "+format+"\n", args...)
			}, stdout)
		})
	}
	all.Wait()
	return reports
}

// slowestFirst orders the kernels by their emulated processors: other ones than amd64
// take about twice as long, and a slow kernel that begins last is waited for alone.
func slowestFirst(ready []*bootable) []int {
	order := make([]int, len(ready))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(slowness(ready[b].arch), slowness(ready[a].arch))
	})
	return order
}

func slowness(arch string) int {
	if arch == "amd64" {
		return 0
	}
	return 1
}

func bootOne(ctx context.Context, o options, work string, b *bootable, ours string, say func(string, ...any), stdout io.Writer) report {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("not done after %v", o.limit))
	defer cancel()
	fail := func(err error) report {
		say("%v", err)
		return report{Kernel: b.name, Arch: b.arch, Package: b.image, Error: err.Error()}
	}
	plan := o.plan
	plan.Checks, plan.Tests = b.checks(o.checks), o.tests
	planFile, err := packPlan(ctx, work, b.name, plan, o.script)
	if err != nil {
		return fail(err)
	}
	log, err := os.Create(filepath.Join(o.logs, b.name+".log"))
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	to := io.Writer(log)
	if o.script != "" {
		to = io.MultiWriter(log, stdout)
	}
	r := boot(ctx, b, work, []string{ours, planFile}, o.memory, to, func(m result.Message) {
		switch {
		case m.Release != "":
			say("Linux %s runs", m.Release)
		case m.Check != nil:
			say("%-12s %-11s %4.0f s  %s", m.Check.Name, m.Check.Status, m.Check.Seconds, m.Check.Detail)
		}
	})
	if r.Error != "" {
		say("%s: %s", r.Error, log.Name())
	}
	return r
}

// conclude prints the table, writes the JSON, and returns an error if something is not
// as expected.
func conclude(o options, reports []report, stdout io.Writer) error {
	if o.script == "" {
		printTable(stdout, o.checks, reports)
	}
	if o.json != "" {
		b, err := json.MarshalIndent(reports, "", "  ")
		if err != nil {
			return err
		}
		b = append(b, '\n')
		if o.json == "-" {
			_, err = stdout.Write(b)
		} else {
			err = os.WriteFile(o.json, b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	var problems []string
	for i, r := range reports {
		for _, p := range r.problems(o.kernels[i]) {
			problems = append(problems, r.Kernel+": "+p)
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("not as it should be:\n  %s", strings.Join(problems, "\n  "))
	}
	return nil
}

func printTable(w io.Writer, checks []string, reports []report) {
	fmt.Fprintf(w, "%-11s %-28s %5s", "kernel", "release", "boot")
	for _, c := range checks {
		fmt.Fprintf(w, " %-8.8s", c)
	}
	fmt.Fprintln(w)
	for _, r := range reports {
		fmt.Fprintf(w, "%-11s %-28s %3.0f s", r.Kernel, cmp.Or(r.Release, "-"), r.Boot)
		for _, name := range checks {
			shown := "-"
			for _, c := range r.Checks {
				if c.Name == name || strings.HasPrefix(c.Name, name+" ") && (shown == "-" || c.Status == result.Failed) {
					shown = map[result.Status]string{result.OK: "yes", result.Unsupported: "no", result.Failed: "FAILED"}[c.Status]
				}
			}
			fmt.Fprintf(w, " %-8s", shown)
		}
		fmt.Fprintln(w)
	}
}

func printList(w io.Writer) error {
	for _, k := range kernels {
		fmt.Fprintf(w, "%-11s %-6s Debian %s, %s", k.name, k.arch, k.suite, k.pack)
		if k.ci {
			fmt.Fprint(w, "; CI")
		}
		if k.byName {
			fmt.Fprint(w, "; if named, needs QEMU 10")
		}
		if len(k.lacks) > 0 {
			fmt.Fprint(w, "; without ", strings.Join(k.lacks, ", "))
		}
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintf(w, "\nchecks: %s\nslow:   %s\ntests:  %s\n", strings.Join(allChecks, ", "), strings.Join(slowChecks, ", "), strings.Join(tested, ", "))
	return err
}
