package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/ccnames"
	"longhaul/packaging/kernels/result"
)

// An outcome is what a check saw.
type outcome struct {
	detail  string
	figures map[string]float64
}

// lacking is the error for a feature that the kernel lacks, as longhaul says it.
type lacking string

func (l lacking) Error() string { return string(l) }

// check is a check with its limit.
type check struct {
	limit time.Duration
	run   func(context.Context, result.Plan) (outcome, error)
}

// checks by name, beside those of the algorithms. Each leaves the guest as it was.
var checks = map[string]check{
	"host":      {3 * time.Minute, checkHost},
	"relay":     {3 * time.Minute, checkRelay},
	"measure":   {2 * time.Minute, checkMeasure},
	"route":     {2 * time.Minute, checkRoute},
	"doctor":    {2 * time.Minute, checkDoctor},
	"mss":       {3 * time.Minute, checkMSS},
	"demo":      {4 * time.Minute, checkProgram("longhaul", "demo")},
	"mitre":     {40 * time.Minute, checkProgram("longhaul", "lab", "run", "mitre", "--quick")},
	"diagnosis": {20 * time.Minute, checkDiagnosis},
	"figures":   {time.Hour, checkFigures},
	"ipvs": {20 * time.Minute, checkProgram("failover", "--longhaul", "/usr/bin/longhaul", "--case", "one-address",
		"--through", "ipvs-mh,ipvs-sh", "--quick", "--flows", "20")},
}

// findCheck returns the check of a name.
func findCheck(name string) (c check, ok bool) {
	if !slices.Contains(ccnames.Own(), name) {
		c, ok = checks[name]
		return c, ok
	}
	if ccnames.InLinux(name) { // the kernel has a module of this name
		name = ccnames.Second(name)
	}
	return check{3 * time.Minute, checkAlgorithm(name)}, true
}

// testLimit bounds the tests of a package. They are some ten times slower here.
const testLimit = 10 * time.Minute

// run runs a check and reports it. The check tests reports each package.
func run(name string, plan result.Plan) {
	if name == "tests" {
		for _, pack := range plan.Tests {
			report("tests "+pack, testLimit, func(ctx context.Context) (outcome, error) { return runTests(ctx, pack) })
		}
		return
	}
	c, ok := findCheck(name)
	if !ok {
		say(result.Message{Check: &result.Check{Name: name, Status: result.Failed, Detail: "the guest has no such check"}})
		return
	}
	report(name, c.limit, func(ctx context.Context) (outcome, error) { return c.run(ctx, plan) })
}

func report(name string, limit time.Duration, f func(context.Context) (outcome, error)) {
	say(result.Message{Begins: name})
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	began := time.Now()
	o, err := f(ctx)
	c := result.Check{Name: name, Status: result.OK, Seconds: time.Since(began).Seconds(), Detail: o.detail, Figures: o.figures}
	var lacks lacking
	switch {
	case errors.As(err, &lacks):
		c.Status, c.Detail = result.Unsupported, string(lacks)
	case err != nil:
		c.Status, c.Detail = result.Failed, sentence(err.Error())
		if ctx.Err() != nil {
			c.Detail = context.Cause(ctx).Error() + ": " + c.Detail
		}
	}
	say(result.Message{Check: &c})
}

// longhaul runs a command of longhaul that should succeed and returns what it prints.
// If it fails with one sentence that says what it needs, the error is [lacking].
func longhaul(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "longhaul", args...)
}

// output runs a program, and returns what it prints. The error is lacking for a feature that
// the kernel lacks.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.As(err, &exit) && args[0] == "doctor" && doctor.HasVerdict(exit.ExitCode()):
		return stdout.String(), nil
	case errors.As(err, &exit) && exit.ExitCode() == 1 && isLacking(stderr.String()):
		return "", lacking(sentence(stderr.String()))
	}
	return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, stderr.String())
}

// isLacking reports whether a command's errors are one line about a need, and perhaps a
// hint.
func isLacking(stderr string) bool {
	lines := slices.DeleteFunc(strings.Split(stderr, "\n"), func(l string) bool {
		return strings.TrimSpace(l) == "" || strings.HasPrefix(l, "longhaul: hint: ")
	})
	return len(lines) == 1 && strings.Contains(lines[0], " needs ")
}

// checkProgram runs a command that has to succeed.
func checkProgram(name string, args ...string) func(context.Context, result.Plan) (outcome, error) {
	return func(ctx context.Context, _ result.Plan) (outcome, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			return outcome{}, fmt.Errorf("%w: %s", err, tail(string(out), 600))
		}
		fmt.Println(string(out))
		return outcome{}, nil
	}
}

// tail returns the end of a text.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// runTests runs the tests of a package in its folder.
func runTests(ctx context.Context, pack string) (outcome, error) {
	dir := filepath.Join("/src", pack)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "test"), "-test.short", "-test.v", "-test.timeout="+testLimit.String())
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.Env = append(os.Environ(), "LONGHAUL_BINARY=/usr/bin/longhaul")
	b, err := cmd.CombinedOutput()
	out := string(b)
	count := func(prefix string) int { return strings.Count("\n"+out, "\n"+prefix) }
	o := outcome{
		detail:  fmt.Sprintf("%d passed, %d skipped, %d failed", count("--- PASS: "), count("--- SKIP: "), count("--- FAIL: ")),
		figures: map[string]float64{"passed": float64(count("--- PASS: ")), "skipped": float64(count("--- SKIP: "))},
	}
	fmt.Print(skips(out))
	if err == nil {
		return o, nil
	}
	fmt.Println(out)
	var failed []string
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			name, _, _ := strings.Cut(rest, " ")
			failed = append(failed, name)
		}
	}
	return o, fmt.Errorf("%w: %s; %s", err, strings.Join(failed, ", "), o.detail)
}

// skips returns the skipped tests and subtests with their reasons, which are on the line
// before or after.
func skips(out string) string {
	lines := strings.SplitAfter(out, "\n")
	var all strings.Builder
	for i, line := range lines {
		if !strings.Contains(line, "--- SKIP: ") {
			continue
		}
		all.WriteString(line)
		for _, near := range []int{i - 1, i + 1} {
			if near >= 0 && near < len(lines) && strings.Contains(lines[near], "_test.go:") {
				all.WriteString(lines[near])
			}
		}
	}
	return all.String()
}

// checkDiagnosis has doctor look at the lab's connections of 15 known causes.
func checkDiagnosis(ctx context.Context, _ result.Plan) (outcome, error) {
	out, err := output(ctx, "diagnosis", "--longhaul", "/usr/bin/longhaul", "--sample", "15", "--parallel", "1", "--seed", "21", "--json")
	if err != nil {
		return outcome{}, err
	}
	var report struct {
		Failed int
		Cases  []struct {
			Name, Verdict, Error string
			Causes               []string
			Right                bool
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return outcome{}, fmt.Errorf("read the report: %w", err)
	}
	right, single := 0, 0
	var wrong []string
	for _, c := range report.Cases {
		if len(c.Causes) == 0 && c.Error == "" {
			continue // no single removal brings a fifth more
		}
		single++
		if c.Right {
			right++
		} else {
			wrong = append(wrong, fmt.Sprintf("%s: %s for %s %s", c.Name, c.Verdict, strings.Join(c.Causes, " or "), c.Error))
		}
	}
	o := outcome{
		detail:  fmt.Sprintf("%d of %d right; %s", right, single, strings.Join(wrong, "; ")),
		figures: map[string]float64{"right": float64(right), "of": float64(single)},
	}
	// Programs are slow here, and doctor says so of some.
	if report.Failed > 0 || 4*right < 3*single {
		return o, errors.New(o.detail)
	}
	return o, nil
}
