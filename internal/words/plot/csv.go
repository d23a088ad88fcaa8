package plot

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
)

// header names the columns. Each row has one point of a line, a level or a span,
// as its kind says; the axes are those of its panel.
var header = []string{
	"panel", "kind", "name", "x", "x_end", "y", "low", "high",
	"x_label", "x_unit", "x_scale", "x_max", "y_label", "y_unit", "y_scale", "y_max",
}

// WriteFile makes a file of what WriteCSV writes.
func (f Figure) WriteFile(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.WriteCSV(file), file.Close())
}

// WriteCSV writes the title, the note and the number of columns as comments, and
// then a table. A number that is missing is an empty field.
func (f Figure) WriteCSV(w io.Writer) error {
	comments := fmt.Sprintf("# title: %s\n# note: %s\n# columns: %d\n", f.Title, f.Note, f.Columns)
	if _, err := io.WriteString(w, comments); err != nil {
		return err
	}
	table := csv.NewWriter(w)
	err := table.Write(header)
	for _, p := range f.Panels {
		for _, row := range p.rows() {
			err = errors.Join(err, table.Write(row))
		}
	}
	table.Flush()
	return errors.Join(err, table.Error())
}

func (p Panel) rows() (rows [][]string) {
	add := func(kind, name, x, xEnd, y, low, high string) {
		rows = append(rows, []string{
			p.Title, kind, name, x, xEnd, y, low, high,
			p.X.Label, p.X.Unit, string(p.X.Scale), bound(p.X.Max), p.Y.Label, p.Y.Unit, string(p.Y.Scale), bound(p.Y.Max),
		})
	}
	for _, s := range p.Series {
		for _, point := range s.Points {
			var low, high string
			if point.Lo != point.Hi {
				low, high = number(point.Lo), number(point.Hi)
			}
			add("line", s.Name, number(point.X), "", number(point.Y), low, high)
		}
	}
	for _, l := range p.Levels {
		add("level", l.Name, "", "", number(l.Y), "", "")
	}
	for _, s := range p.Spans {
		add("span", s.Name, number(s.From), number(s.To), "", "", "")
	}
	return rows
}

// number writes six digits, which is more than a measurement has.
func number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

func bound(v float64) string {
	if v == 0 {
		return ""
	}
	return number(v)
}
