//go:build linux

package main

import (
	"context"

	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/service"
)

// serviceState is what status prints as JSON. What is not known is left out.
type serviceState struct {
	// Installed: "service install", "package", or "" where there is no unit.
	Installed    string   `json:"installed"`
	Complete     bool     `json:"complete"` // no installation was interrupted
	Program      string   `json:"program,omitempty"`
	Version      string   `json:"version,omitempty"` // of the program
	Unit         string   `json:"unit,omitempty"`    // its file
	DropIns      []string `json:"drop_ins"`
	Capabilities []string `json:"capabilities"`
	Enabled      *bool    `json:"enabled,omitempty"`
	State        string   `json:"state,omitempty"`
	PID          int      `json:"pid,omitempty"`
	Says         string   `json:"says,omitempty"` // the relay of itself
	Exposure     *float64 `json:"exposure,omitempty"`
	Missing      []string `json:"missing"` // of what was installed
	Changed      []string `json:"changed"`
}

func newServiceStatus(env *env) *cobra.Command {
	var (
		asJSON bool
		root   string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the service is installed, runs, and what it may do",
		Long: `status shows which program the service runs and which version that is, whether
it runs and starts with the machine, its capabilities, and the exposure that
systemd-analyze security computes, from 0 (best) to 10. What the relay itself
does is shown by longhaul status.

Exit codes: 0 there is such a service, 1 there is none.`,
		Example: `  longhaul service status
  longhaul service status --json | jq .capabilities`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, err := serviceHost(root)
			if err != nil {
				return err
			}
			s, err := findService(cmd.Context(), host)
			if err != nil {
				return err
			}
			if asJSON {
				err = display.WriteJSON(env.stdout, s)
			} else {
				s.write(env.stdout)
			}
			if err == nil && s.Installed == "" {
				return &exitError{nil, exitFailure}
			}
			return err
		},
	}
	flags := cmd.Flags()
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	return cmd
}

// findService looks at the service of a host.
func findService(ctx context.Context, host service.Host) (s serviceState, err error) {
	s = serviceState{Complete: true, DropIns: []string{}, Capabilities: []string{}, Missing: []string{}, Changed: []string{}}
	record, err := host.Load()
	if err != nil {
		return s, err
	}
	if record != nil {
		s.Complete = record.Complete
		missing, changed, err := host.Compare(record)
		if err != nil {
			return s, err
		}
		s.Missing, s.Changed = append(s.Missing, missing...), append(s.Changed, changed...)
	}
	switch packaged := packagedUnit(host); {
	case host.Exists(unitFile):
		s.Unit, s.Installed = unitFile, "by hand"
		if record.Has(unitFile) {
			s.Installed = "service install"
		}
	case packaged != "":
		s.Unit, s.Installed = packaged, "package"
	}
	if host.Root == "" && service.Booted() {
		if err := s.askSystemd(ctx); err != nil {
			return s, err
		}
	} else if s.Unit != "" {
		enabled := host.Exists(wantsLink)
		s.Enabled = &enabled
		s.findDropIns(host)
	}
	if s.Unit == "" {
		return s, nil
	}
	s.readUnit(ctx, host)
	// Without systemd-analyze, or with one that cannot, it is not known.
	if exposure, err := service.Exposure(ctx, host.Root, unitName); err == nil {
		s.Exposure = &exposure
	}
	return s, nil
}

// askSystemd fills in what systemd knows of the unit.
func (s *serviceState) askSystemd(ctx context.Context) error {
	u, err := service.ShowUnit(ctx, unitName)
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

// findDropIns lists those of an image.
func (s *serviceState) findDropIns(host service.Host) {
	for _, name := range allGrants {
		if path := dropInDir + "/" + name + ".conf"; host.Exists(path) {
			s.DropIns = append(s.DropIns, path)
		}
	}
	slices.Sort(s.DropIns)
}

// readUnit finds the program and the capabilities in the unit's files.
func (s *serviceState) readUnit(ctx context.Context, host service.Host) {
	var files [][]byte
	for _, path := range append([]string{s.Unit}, s.DropIns...) {
		if b, err := host.ReadFile(path); err == nil {
			files = append(files, b)
		}
	}
	s.Capabilities = append(s.Capabilities, service.Capabilities(files...)...)
	for _, f := range files {
		for line := range strings.Lines(string(f)) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok && command != "" {
				s.Program = strings.TrimLeft(strings.Fields(command)[0], "-+!@:|")
			}
		}
	}
	// The program of an image may be of another machine.
	if host.Root == "" && s.Program != "" {
		if out, err := exec.CommandContext(ctx, s.Program, "version").Output(); err == nil {
			s.Version = strings.TrimSpace(string(out))
		}
	}
}

// write prints the state for people. What is not known is "-".
func (s *serviceState) write(w io.Writer) {
	if s.Installed == "" {
		fmt.Fprintln(w, "longhaul is not installed as a service")
		for _, path := range append(s.Changed, s.Missing...) {
			fmt.Fprintln(w, "left of one that was: "+path)
		}
		return
	}
	line := func(name, value string) {
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%-13s %s\n", name, value)
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
		fmt.Fprintln(w, "\nan installation was interrupted: longhaul service install completes it,\nlonghaul service uninstall clears it away")
	}
}
