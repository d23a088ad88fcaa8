package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// figure is what a file of longhaul/internal/words/plot holds.
type figure struct {
	title, note string
	columns     int
	panels      []*panel
}

type panel struct {
	title  string
	x, y   axis
	lines  []*line
	levels []level
	spans  []span
}

type axis struct {
	label, unit, scale string
	max                float64 // NaN: where the data end
}

type line struct {
	name   string
	points []point
}

// point has NaN where the file has no number.
type point struct{ x, y, low, high float64 }

type level struct {
	name string
	y    float64
}

type span struct {
	name     string
	from, to float64
}

var columns = []string{
	"panel", "kind", "name", "x", "x_end", "y", "low", "high",
	"x_label", "x_unit", "x_scale", "x_max", "y_label", "y_unit", "y_scale", "y_max",
}

// read takes the comments of a file's beginning and the table below them.
func read(r io.Reader) (*figure, error) {
	f := &figure{}
	in := bufio.NewReader(r)
	for {
		if next, err := in.Peek(1); err != nil || next[0] != '#' {
			break
		}
		comment, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		key, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(comment, "\n"), "# "), ": ")
		switch key {
		case "title":
			f.title = value
		case "note":
			f.note = value
		case "columns":
			if f.columns, err = strconv.Atoi(value); err != nil {
				return nil, err
			}
		}
	}
	rows, err := csv.NewReader(in).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || !slices.Equal(rows[0], columns) {
		return nil, fmt.Errorf("invalid header: want the columns %s", strings.Join(columns, ","))
	}
	for i, row := range rows[1:] {
		if err := f.add(row); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
	}
	return f, nil
}

// add puts a row into its panel, which is a new one if its title is.
func (f *figure) add(row []string) error {
	var errs []error
	number := func(column string) float64 {
		text := row[slices.Index(columns, column)]
		if text == "" {
			return math.NaN()
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("invalid %s: %q", column, text))
		}
		return v
	}
	p := f.panel(row[0])
	p.x = axis{row[8], row[9], row[10], number("x_max")}
	p.y = axis{row[12], row[13], row[14], number("y_max")}
	switch kind, name := row[1], row[2]; kind {
	case "line":
		at := point{number("x"), number("y"), number("low"), number("high")}
		if p.x.scale == "log10" && !(at.x > 0) || p.y.scale == "log10" && at.y <= 0 {
			errs = append(errs, fmt.Errorf("line %q has a value of 0 or less on a logarithmic axis", name))
		}
		l := p.line(name)
		l.points = append(l.points, at)
	case "level":
		p.levels = append(p.levels, level{name, number("y")})
	case "span":
		p.spans = append(p.spans, span{name, number("x"), number("x_end")})
	default:
		errs = append(errs, fmt.Errorf("invalid kind %q: want line, level or span", kind))
	}
	return errors.Join(errs...)
}

func (f *figure) panel(title string) *panel {
	for _, p := range f.panels {
		if p.title == title {
			return p
		}
	}
	p := &panel{title: title}
	f.panels = append(f.panels, p)
	return p
}

func (p *panel) line(name string) *line {
	for _, l := range p.lines {
		if l.name == name {
			return l
		}
	}
	l := &line{name: name}
	p.lines = append(p.lines, l)
	return l
}
