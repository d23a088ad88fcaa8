package examine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// read reads a capture, and exports its headers if that is wanted.
func (e *Examiner) read(sources []pcap.Source, options pcap.Options) (pcap.Result, error) {
	if e.Export == "" {
		return pcap.ReadFiles(sources, options)
	}
	file, err := os.OpenFile(e.Export, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return pcap.Result{}, remedy.New(&pcap.ExportError{Err: fmt.Errorf("%s is there already", e.Export)}, "name a new file")
	}
	if err != nil {
		return pcap.Result{}, &pcap.ExportError{Err: err}
	}
	options.Export = file
	result, err := pcap.ReadFiles(sources, options)
	if closed := file.Close(); closed != nil && !isExport(err) {
		err = &pcap.ExportError{Err: closed}
	}
	if result.Exported == 0 || isExport(err) {
		os.Remove(e.Export)
		return result, err
	}
	e.Note(fmt.Errorf("%s has the headers of %d packets, with other addresses and times", e.Export, result.Exported))
	return result, err
}

// isExport reports whether the export failed, and not the reading.
func isExport(err error) bool {
	failed := (*pcap.ExportError)(nil)
	return errors.As(err, &failed)
}
