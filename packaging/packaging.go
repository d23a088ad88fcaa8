// Package packaging has the files that come with the program, for
// `longhaul service install` to put onto a host. The packages have the same.
package packaging

import (
	"bytes"
	"embed"
	"io/fs"
	"path/filepath"

	"longhaul/docs"
)

//go:embed longhaul.service longhaul.service.d examples longhaul.schema.json prometheus/longhaul.rules.yml grafana
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
	all := map[string][]byte{"doc/longhaul/metrics.md": docs.Metrics}
	for from, to := range map[string]string{
		"examples": "doc/longhaul/examples", "prometheus": "doc/longhaul/prometheus", "grafana": "doc/longhaul/grafana", "longhaul.service.d": "longhaul/longhaul.service.d",
		"longhaul.schema.json": "longhaul/longhaul.schema.json",
	} {
		err := fs.WalkDir(files, from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			all[to+path[len(from):]], err = files.ReadFile(path)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
