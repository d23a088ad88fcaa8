package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// report is the outcome of all files.
type report struct {
	Files   files          `json:"files"`
	Flows   flows          `json:"flows"`
	Figures []agreement    `json:"figures"`
	Causes  map[string]int `json:"causes"` // of the verdicts; "refused": none
	Differ  []difference   `json:"differ"`
	// Failures are files that longhaul does not read, or not to the end, although
	// tshark reads TCP in them, and files for which a program took too long.
	Failures []failure `json:"failures"`
	Slowest  extreme   `json:"slowest"`
	Largest  extreme   `json:"largest"`
}

type files struct {
	Read     int `json:"read"`
	Copies   int `json:"copies"`  // of files that were read
	Asked    int `json:"asked"`   // of the read ones, those that tshark read
	TCP      int `json:"tcp"`     // of the read ones, those with TCP by either program
	Crashed  int `json:"crashed"` // longhaul, by either way
	TimedOut int `json:"timed_out"`
}

type flows struct {
	Compared     int `json:"compared"`
	Agreeing     int `json:"agreeing"`      // in every figure
	OnlyTshark   int `json:"only_tshark"`   // longhaul does not have them
	OnlyLonghaul int `json:"only_longhaul"` // tshark does not have them
}

// agreement counts the directions in which the programs agree on a figure.
type agreement struct {
	Name     string `json:"name"`
	Compared int    `json:"compared"` // both know it
	Agreeing int    `json:"agreeing"`
	Nonzero  int    `json:"nonzero"` // of the agreeing ones, not 0
}

// difference is a direction of data in which the two differ.
type difference struct {
	File    string    `json:"file"`
	Has     direction `json:"flow"` // of the program that has it; tshark's if both do
	Only    string    `json:"only,omitempty"`
	Figures []differs `json:"figures,omitempty"`
}

type differs struct {
	Name     string  `json:"name"`
	Longhaul float64 `json:"longhaul"`
	Tshark   float64 `json:"tshark"`
	Filter   string  `json:"filter"`
}

type failure struct {
	File  string `json:"file"`
	Error string `json:"error"`
}

type extreme struct {
	File  string `json:"file"`
	Value int64  `json:"value"` // ns, or bytes
}

// progressEvery is the pause between two lines about the progress.
const progressEvery = 10 * time.Second

// compareAll compares all files, one after another.
func (b *bench) compareAll(ctx context.Context) (*report, error) {
	paths, err := b.list()
	if err != nil {
		return nil, err
	}
	r := &report{Causes: map[string]int{}}
	for _, f := range compared {
		r.Figures = append(r.Figures, agreement{Name: f.name})
	}
	seen := map[[sha256.Size]byte]bool{}
	said := time.Now()
	for i, path := range paths {
		if time.Since(said) >= progressEvery {
			said = time.Now()
			fmt.Fprintf(b.stderr, "captures: %d of %d files, %d flows compared\n", i, len(paths), r.Flows.Compared)
		}
		sum, err := digest(path)
		if err != nil {
			return nil, err
		}
		if seen[sum] {
			r.Files.Copies++
			continue
		}
		seen[sum] = true
		if err := b.file(ctx, r, path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}

// list finds the files, without hidden ones.
func (b *bench) list() ([]string, error) {
	var paths []string
	for _, root := range b.paths {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			hidden := path != root && strings.HasPrefix(d.Name(), ".")
			switch {
			case err != nil:
				return err
			case hidden && d.IsDir():
				return filepath.SkipDir
			case !hidden && d.Type().IsRegular():
				paths = append(paths, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func digest(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), errors.Join(err, f.Close())
}

// file compares a file.
func (b *bench) file(ctx context.Context, r *report, path string) error {
	r.Files.Read++
	v, err := b.verdict(ctx, path)
	if err != nil {
		return err
	}
	r.Causes[cmp.Or(v.Cause, "refused")]++
	if v.Time > time.Duration(r.Slowest.Value) {
		r.Slowest = extreme{path, int64(v.Time)}
	}
	if v.Memory > r.Largest.Value {
		r.Largest = extreme{path, v.Memory}
	}
	ours, complaint, err := b.count(ctx, path)
	if err != nil {
		return err
	}
	switch {
	case v.Crashed || ours == nil && complaint != timedOut:
		r.Files.Crashed++
		r.Failures = append(r.Failures, failure{path, cmp.Or(v.Refusal, complaint)})
	case v.TimedOut || ours == nil:
		r.Files.TimedOut++
		r.Failures = append(r.Failures, failure{path, timedOut})
	}
	if ours == nil {
		return nil
	}
	if len(ours.Directions) > 0 {
		r.Files.TCP++
	}
	if ours.Error == "" && ours.Bytes < b.least/20 {
		return nil // too few packets for such a flow, even if they are full and captured without data
	}
	theirs, err := b.ask(ctx, path)
	if errors.Is(err, errLate) {
		r.Failures = append(r.Failures, failure{path, err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	r.Files.Asked++
	if len(ours.Directions) == 0 && len(theirs) > 0 {
		r.Files.TCP++
	}
	if ours.Error != "" && len(theirs) > 0 {
		r.Failures = append(r.Failures, failure{path, ours.Error})
	}
	r.compare(path, ours.Directions, theirs, float64(b.least))
	return nil
}

const timedOut = "did not end in time"

// child runs a program on a file within the time limit.
func (b *bench) child(ctx context.Context, name string, args ...string) (cmd *exec.Cmd, stdout []byte, stderr string, late bool, err error) {
	limit, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	cmd = exec.CommandContext(limit, name, args...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil, nil, "", false, context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return cmd, out.Bytes(), complaints.String(), limit.Err() != nil, err
}

// verdict runs longhaul doctor on a file.
func (b *bench) verdict(ctx context.Context, path string) (v verdict, err error) {
	began := time.Now()
	cmd, stdout, stderr, late, err := b.child(ctx, b.binary, "doctor", "--pcap", path, "--json")
	if err != nil {
		return v, err
	}
	v.Time, v.TimedOut, v.Status = time.Since(began), late, cmd.ProcessState.ExitCode()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		v.Memory = usage.Maxrss << 10
	}
	v.Crashed = !late && (v.Status < 0 || crashed(stderr))
	if json.Unmarshal(stdout, &v) != nil || v.Cause == "" {
		v.Refusal = firstLine(stderr)
	}
	return v, nil
}

// crashed reports whether the output is of a program of Go that crashed.
func crashed(stderr string) bool {
	return strings.Contains(stderr, "\ngoroutine ") || strings.HasPrefix(stderr, "panic: ") || strings.HasPrefix(stderr, "fatal error: ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// count has longhaul's counts of a file made; nil with a complaint if that crashed.
func (b *bench) count(ctx context.Context, path string) (*counted, string, error) {
	_, stdout, stderr, late, err := b.child(ctx, b.self, "--read", path)
	switch {
	case err != nil:
		return nil, "", err
	case late:
		return nil, timedOut, nil
	}
	c := &counted{}
	if json.Unmarshal(stdout, c) != nil {
		return nil, firstLine(stderr), nil
	}
	return c, "", nil
}

// compare compares the directions of a file.
func (r *report) compare(path string, ours, theirs []direction, least float64) {
	for _, p := range match(ours, theirs) {
		switch {
		case p.ours == nil && p.theirs.bytes() >= least:
			r.Flows.OnlyTshark++
			r.Differ = append(r.Differ, difference{File: path, Has: *p.theirs, Only: "tshark"})
		case p.theirs == nil && p.ours.bytes() >= least:
			r.Flows.OnlyLonghaul++
			r.Differ = append(r.Differ, difference{File: path, Has: *p.ours, Only: "longhaul"})
		case p.ours != nil && p.theirs != nil && max(p.ours.bytes(), p.theirs.bytes()) >= least:
			r.flow(path, p)
		}
	}
}

// flow compares a direction that both have.
func (r *report) flow(path string, p pair) {
	r.Flows.Compared++
	d := difference{File: path, Has: *p.theirs}
	for i, f := range compared {
		a, known := p.ours.Figures[f.name]
		b, too := p.theirs.Figures[f.name]
		if !known || !too {
			continue
		}
		r.Figures[i].Compared++
		if equal(a, b, f.share, f.least) {
			r.Figures[i].Agreeing++
			if a > 0 && b > 0 {
				r.Figures[i].Nonzero++
			}
			continue
		}
		filter := strings.NewReplacer("%[1]s", end(p.theirs.From), "%[2]s", end(p.theirs.To)).Replace(f.filter)
		d.Figures = append(d.Figures, differs{f.name, a, b, fmt.Sprintf("tcp.stream == %d && %s", p.theirs.Stream, filter)})
	}
	if len(d.Figures) == 0 {
		r.Flows.Agreeing++
		return
	}
	r.Differ = append(r.Differ, d)
}

// pair is a direction as both count it; nil: a program does not have it.
type pair struct{ ours, theirs *direction }

// match finds the directions of the same connections. Connections between the same ports are kept
// apart by when they begin.
func match(ours, theirs []direction) []pair {
	type ends struct{ from, to netip.AddrPort }
	open := map[ends][]*direction{}
	for i := range theirs {
		d := &theirs[i]
		open[ends{d.From, d.To}] = append(open[ends{d.From, d.To}], d)
	}
	var pairs []pair
	for i := range ours {
		d := &ours[i]
		candidates := open[ends{d.From, d.To}]
		if len(candidates) == 0 {
			pairs = append(pairs, pair{ours: d})
			continue
		}
		apart := func(c *direction) time.Duration { return c.Start.Sub(d.Start).Abs() }
		nearest := slices.MinFunc(candidates, func(a, b *direction) int { return cmp.Compare(apart(a), apart(b)) })
		open[ends{d.From, d.To}] = slices.DeleteFunc(candidates, func(c *direction) bool { return c == nearest })
		pairs = append(pairs, pair{d, nearest})
	}
	for i := range theirs {
		if d := &theirs[i]; slices.Contains(open[ends{d.From, d.To}], d) {
			pairs = append(pairs, pair{theirs: d})
		}
	}
	return pairs
}

// print prints the tables.
func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "files\t%d\t%d copies of them left out; TCP in %d; tshark read %d\n", r.Files.Read, r.Files.Copies, r.Files.TCP, r.Files.Asked)
	fmt.Fprintf(t, "longhaul crashed, late\t%d, %d\t\n", r.Files.Crashed, r.Files.TimedOut)
	fmt.Fprintf(t, "slowest\t%.2f s\t%s\n", time.Duration(r.Slowest.Value).Seconds(), r.Slowest.File)
	fmt.Fprintf(t, "largest resident\t%.0f MB\t%s\n", float64(r.Largest.Value)/1e6, r.Largest.File)
	fmt.Fprintf(t, "flows compared\t%d\t%d equal in everything\n", r.Flows.Compared, r.Flows.Agreeing)
	fmt.Fprintf(t, "only in tshark, longhaul\t%d, %d\t\n", r.Flows.OnlyTshark, r.Flows.OnlyLonghaul)
	fmt.Fprintf(t, "\nfigure\tagree\tdiffer\tagree and not 0\n")
	for _, a := range r.Figures {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", a.Name, a.Agreeing, a.Compared-a.Agreeing, a.Nonzero)
	}
	fmt.Fprintf(t, "\nverdict\tfiles\n")
	causes := make([]string, 0, len(r.Causes))
	for cause := range r.Causes {
		causes = append(causes, cause)
	}
	slices.SortFunc(causes, func(a, b string) int { return cmp.Or(r.Causes[b]-r.Causes[a], cmp.Compare(a, b)) })
	for _, cause := range causes {
		fmt.Fprintf(t, "%s\t%d\n", cause, r.Causes[cause])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "\n%s\n  %s\n", f.File, f.Error)
	}
	for _, d := range r.Differ {
		d.print(w)
	}
	return nil
}

func (d *difference) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n  %v to %v, %.0f bytes\n", d.File, d.Has.From, d.Has.To, d.Has.bytes())
	if d.Only != "" {
		fmt.Fprintf(w, "  only in %s\n", d.Only)
	}
	for _, f := range d.Figures {
		for _, c := range compared {
			if c.name == f.Name {
				fmt.Fprintf(w, "  %-13s longhaul %s, tshark %s   %s\n", f.Name, c.print(f.Longhaul), c.print(f.Tshark), f.Filter)
			}
		}
	}
}
