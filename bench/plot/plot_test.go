package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// written is where longhaul/internal/words/plot keeps what it writes.
const written = "../../internal/words/plot/testdata"

func TestDraw(t *testing.T) {
	for name, want := range map[string][]string{
		"lines":  {"goodput over time", "medians of 5 runs", ">haul<", ">cubic<", ">limit<", ">outage<", "goodput (Mb/s)"},
		"panels": {"100 Mb/s, 600 ms", ">hybla<", ">0.1<", "loss (%)"},
		"log":    {"longhaul &lt;relay&gt;", ">100000<", ">flows<"},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := os.ReadFile(filepath.Join(written, name+".csv"))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), name+".csv")
			if err := os.WriteFile(file, table, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := run([]string{file}); err != nil {
				t.Fatal(err)
			}
			svg, err := os.ReadFile(strings.TrimSuffix(file, ".csv") + ".svg")
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range want {
				if !strings.Contains(string(svg), text) {
					t.Errorf("missing %q", text)
				}
			}
			elements := xml.NewDecoder(bytes.NewReader(svg))
			for {
				if _, err := elements.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("not well-formed: %v", err)
				}
			}
		})
	}
}

func TestReadGap(t *testing.T) {
	table, err := os.Open(filepath.Join(written, "lines.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	f, err := read(table)
	if err != nil {
		t.Fatal(err)
	}
	p := f.panels[0]
	if len(p.lines) != 3 || len(p.levels) != 1 || len(p.spans) != 2 {
		t.Errorf("%d lines, %d levels, %d spans", len(p.lines), len(p.levels), len(p.spans))
	}
	if gap := p.lines[1].points[6]; !math.IsNaN(gap.y) || gap.x != 30 {
		t.Errorf("the gap is %+v", gap)
	}
}

func TestMistakes(t *testing.T) {
	header := strings.Join(columns, ",") + "\n"
	for table, want := range map[string]string{
		"":                        "invalid header",
		"a,b\n1,2\n":              "invalid header",
		header:                    "nothing to draw",
		header + ",line,a,1,,1\n": "wrong number of fields",
		header + ",line,a,x,,1,,,time,s,,,goodput,Mb/s,,\n":      `row 1: invalid x: "x"`,
		header + ",line,a,0,,1,,,size,MB,log10,,time,s,log10,\n": "logarithmic axis",
		header + ",dot,a,1,,1,,,time,s,,,goodput,Mb/s,,\n":       `invalid kind "dot"`,
	} {
		file := filepath.Join(t.TempDir(), "x.csv")
		if err := os.WriteFile(file, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{file}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", table, err, want)
		}
	}
	if err := run(nil); err == nil {
		t.Error("no file is no mistake")
	}
}
