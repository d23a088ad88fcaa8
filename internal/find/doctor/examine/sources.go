package examine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// Stdin names standard input in place of a file.
const Stdin = "-"

const stdinName = "standard input"

// maxFiles bounds the files of a capture.
const maxFiles = 4096

// sources finds the files of a capture: files, directories of them, or standard input.
func (e *Examiner) sources(ctx context.Context, paths []string) ([]pcap.Source, error) {
	var all []pcap.Source
	for _, path := range paths {
		if path == Stdin {
			all = append(all, pcap.Source{Name: stdinName, Open: func() (io.ReadCloser, error) { return e.stdin(ctx), nil }})
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case info.IsDir():
			inside, err := directory(ctx, path)
			if err != nil {
				return nil, err
			}
			all = append(all, inside...)
			continue
		case len(paths) > 1 && !info.Mode().IsRegular():
			return nil, remedy.New(fmt.Errorf("%s is not a regular file, and several files are read twice", path), "give it alone, or store it in a file first")
		}
		all = append(all, source(ctx, path))
	}
	switch {
	case len(all) > maxFiles:
		return nil, remedy.New(fmt.Errorf("%d files are more than the %d that are read", len(all), maxFiles), "join some of them first: mergecap -w FILE ...")
	case len(all) > 1 && slices.Contains(paths, Stdin):
		return nil, remedy.New(errors.New(stdinName+" is read with no other file"), "join them first: mergecap -w FILE ...")
	}
	return all, nil
}

// source is a file.
func source(ctx context.Context, path string) pcap.Source {
	return pcap.Source{Name: path, Open: func() (io.ReadCloser, error) {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return cancelledFile{ctx, file}, nil
	}}
}

// directory lists the files of a directory that may be captures.
func directory(ctx context.Context, path string) ([]pcap.Source, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var all []pcap.Source
	for _, entry := range entries {
		if info, err := os.Stat(filepath.Join(path, entry.Name())); err != nil || !info.Mode().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		s := source(ctx, filepath.Join(path, entry.Name()))
		s.Optional = true
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no files", path)
	}
	return all, nil
}

// cancelledFile is a file whose reads fail once the context ends.
type cancelledFile struct {
	ctx context.Context
	*os.File
}

func (f cancelledFile) Read(b []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	return f.File.Read(b)
}

// stdin returns standard input, whose reads fail once the context ends, also while they
// wait.
func (e *Examiner) stdin(ctx context.Context) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, e.Stdin)
		w.CloseWithError(err) // nil: the end
	}()
	context.AfterFunc(ctx, func() { r.CloseWithError(context.Cause(ctx)) })
	return r
}
