// Command plot draws the series that experiments write as CSV: "go run
// ./bench/congestion --series FILE" does, and bench/cost with --series. It is a module of
// its own, so that longhaul's needs no library for drawing.
//
//	go run . lossy.csv    # writes lossy.svg
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// run draws each file beside it.
func run(files []string) error {
	if len(files) == 0 {
		return errors.New("no file given: name a CSV file, such as lossy.csv")
	}
	for _, file := range files {
		if err := convert(file, strings.TrimSuffix(file, filepath.Ext(file))+".svg"); err != nil {
			return fmt.Errorf("draw %s: %w", file, err)
		}
	}
	return nil
}

func convert(from, to string) error {
	table, err := os.Open(from)
	if err != nil {
		return err
	}
	defer table.Close()
	f, err := read(table)
	if err != nil {
		return err
	}
	picture, err := f.draw()
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = picture.WriteTo(out)
	return errors.Join(err, out.Close())
}
