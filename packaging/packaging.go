// Package packaging has the files that come with the program, for
// `longhaul service install` to put onto a host. The packages have the same.
package packaging

import (
	"bytes"
	"embed"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"longhaul/docs"
)

//go:embed longhaul.service longhaul.service.d examples ansible kubernetes longhaul.schema.json prometheus/longhaul.rules.yml prometheus/alertmanager.example.yml grafana
var files embed.FS

// PackagedProgram is where the packages have the program, and so where the
// files that name it say it is.
const PackagedProgram = "/usr/bin/longhaul"

// File is one of the files, with the program at another place.
func File(name, program string) ([]byte, error) {
	b, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	b = bytes.ReplaceAll(b, []byte(PackagedProgram), []byte(program))
	return bytes.ReplaceAll(b, execPaths(PackagedProgram), execPaths(program)), nil
}

// execPaths is the unit's line with the directory of a program.
func execPaths(program string) []byte {
	return []byte("\nExecPaths=" + filepath.Dir(program) + "\n")
}

// Shared are the files of share/ below the prefix, by their paths there.
func Shared() (map[string][]byte, error) {
	all := map[string][]byte{}
	add := func(from embed.FS, dir, to string) error {
		return fs.WalkDir(from, dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			all[path.Join(to, strings.TrimPrefix(name, dir))], err = from.ReadFile(name)
			return err
		})
	}
	for from, to := range sharedAs {
		if err := add(files, from, to); err != nil {
			return nil, err
		}
	}
	if err := add(docs.Pages, ".", sharedPages); err != nil {
		return nil, err
	}
	for name, text := range all {
		if page, is := strings.CutPrefix(name, sharedPages+"/"); is && path.Ext(page) == ".md" {
			all[name] = sharedPage(page, text, all)
		}
	}
	return all, nil
}

// sharedPages is where the pages of docs/ are.
const sharedPages = "doc/longhaul"

// sharedAs is where the files of this directory are.
var sharedAs = map[string]string{
	"examples": sharedPages + "/examples", "kubernetes": sharedPages + "/kubernetes", "prometheus": sharedPages + "/prometheus",
	"grafana": sharedPages + "/grafana", "ansible": "longhaul/ansible", "longhaul.service.d": "longhaul/longhaul.service.d",
	"longhaul.schema.json": "longhaul/longhaul.schema.json",
}
