package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Status describes the service of a host. Unknown fields are left out of the
// JSON.
type Status struct {
	// Installed is "service install", "package", "by hand", or "" without a unit.
	Installed string `json:"installed"`
	// Complete is false after an interrupted installation.
	Complete bool   `json:"complete"`
	Program  string `json:"program,omitempty"` // that the unit starts
	// Version is the program's own version.
	Version      string   `json:"version,omitempty"`
	Unit         string   `json:"unit,omitempty"` // its file
	DropIns      []string `json:"drop_ins"`       // their files
	Capabilities []string `json:"capabilities"`
	Enabled      *bool    `json:"enabled,omitempty"` // starts with the machine
	State        string   `json:"state,omitempty"`   // of the unit, by systemd
	PID          int      `json:"pid,omitempty"`
	Says         string   `json:"says,omitempty"` // the status line of the relay
	// Exposure is the figure of systemd-analyze security, 0 (best) to 10.
	Exposure *float64 `json:"exposure,omitempty"`
	Missing  []string `json:"missing"` // missing installed files
	Changed  []string `json:"changed"` // installed files with other content
}

// Status reads the state of the service from the host's files and, if systemd runs the
// machine, from systemd. It runs the service's program for its version.
func (h Host) Status(ctx context.Context) (Status, error) {
	s := Status{Complete: true, DropIns: []string{}, Capabilities: []string{}, Missing: []string{}, Changed: []string{}}
	record, err := h.Load()
	if err != nil {
		return s, err
	}
	if record != nil {
		s.Complete = record.Complete
		missing, changed, err := h.Compare(record)
		if err != nil {
			return s, err
		}
		s.Missing, s.Changed = append(s.Missing, missing...), append(s.Changed, changed...)
	}
	switch packaged := h.packagedUnit(); {
	case h.Exists(UnitFile):
		s.Unit, s.Installed = UnitFile, "by hand"
		if record.Has(UnitFile) {
			s.Installed = "service install"
		}
	case packaged != "":
		s.Unit, s.Installed = packaged, "package"
	}
	if h.Root == "" && Booted() {
		if err := s.askSystemd(ctx); err != nil {
			return s, err
		}
	} else if s.Unit != "" {
		enabled := h.Exists(wantsLink)
		s.Enabled = &enabled
		s.findDropIns(h)
	}
	if s.Unit == "" {
		return s, nil
	}
	s.readUnit(ctx, h)
	// The exposure is unknown without systemd-analyze, or with an old one.
	if exposure, err := Exposure(ctx, h.Root, UnitName); err == nil {
		s.Exposure = &exposure
	}
	return s, nil
}

// askSystemd reads systemd's properties of the unit.
func (s *Status) askSystemd(ctx context.Context) error {
	u, err := ShowUnit(ctx, UnitName)
	if err != nil {
		return err
	}
	if u.File != "" {
		s.Unit = u.File
	}
	s.DropIns = append(s.DropIns, u.DropIns...)
	s.Enabled, s.PID, s.Says = &u.Enabled, u.PID, u.Status
	if s.State = u.Active; u.Sub != "" {
		s.State += " (" + u.Sub + ")"
	}
	if u.Masked {
		s.State += ", masked"
	}
	return nil
}

// findDropIns lists the drop-ins of an image.
func (s *Status) findDropIns(h Host) {
	for _, name := range DropInNames() {
		if path := dropInPath(name); h.Exists(path) {
			s.DropIns = append(s.DropIns, path)
		}
	}
	slices.Sort(s.DropIns)
}

// readUnit finds the program and the capabilities in the unit's files.
func (s *Status) readUnit(ctx context.Context, h Host) {
	var files [][]byte
	for _, path := range append([]string{s.Unit}, s.DropIns...) {
		if b, err := h.ReadFile(path); err == nil {
			files = append(files, b)
		}
	}
	s.Capabilities = append(s.Capabilities, Capabilities(files...)...)
	for _, f := range files {
		for line := range strings.Lines(string(f)) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok && command != "" {
				s.Program = strings.TrimLeft(strings.Fields(command)[0], "-+!@:|")
			}
		}
	}
	// The program of an image may be for another machine.
	if h.Root == "" && s.Program != "" {
		if out, err := exec.CommandContext(ctx, s.Program, "version").Output(); err == nil {
			s.Version = strings.TrimSpace(string(out))
		}
	}
}

// WriteText writes a line for each field, with "-" for unknown ones. It returns the
// writer's error.
func (s Status) WriteText(w io.Writer) error {
	var b bytes.Buffer
	if s.Installed == "" {
		fmt.Fprintln(&b, "longhaul is not installed as a service")
		for _, path := range append(s.Changed, s.Missing...) {
			fmt.Fprintln(&b, "left from a removed service: "+path)
		}
	} else {
		s.writeFields(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (s Status) writeFields(b *bytes.Buffer) {
	line := func(name, value string) {
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(b, "%-13s %s\n", name, value)
	}
	exposure := ""
	if s.Exposure != nil {
		exposure = fmt.Sprintf("%.1f of 10", *s.Exposure)
	}
	enabled := ""
	if s.Enabled != nil {
		enabled = map[bool]string{true: "yes", false: "no"}[*s.Enabled]
	}
	capabilities := strings.Join(s.Capabilities, " ")
	if capabilities == "" {
		capabilities = "none"
	}
	line("installed", "by "+strings.TrimPrefix(s.Installed, "by "))
	line("program", s.Program)
	line("version", s.Version)
	line("unit", s.Unit)
	for _, d := range s.DropIns {
		line("", d)
	}
	line("at boot", enabled)
	line("state", s.State)
	line("says", s.Says)
	line("capabilities", capabilities)
	line("exposure", exposure)
	for _, path := range s.Missing {
		line("missing", path)
	}
	for _, path := range s.Changed {
		line("changed", path)
	}
	if !s.Complete {
		fmt.Fprintln(b,
			"\nan installation was interrupted: longhaul service install completes it,\nlonghaul service uninstall removes it")
	}
}
