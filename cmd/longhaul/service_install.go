//go:build linux

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/config"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/service"
	"longhaul/packaging"
)

// serviceInstall is what install was asked to do.
type serviceInstall struct {
	config, prefix, root string
	grants               []string
	now, dryRun, json    bool

	host     service.Host
	record   *service.Record // what was made before; nil if nothing was
	packaged string          // the unit of a package, whose files are left alone
	program  string          // that the unit starts
	dynamic  bool            // it needs shared libraries
}

// serviceInstalled is what install prints as JSON.
type serviceInstalled struct {
	DryRun  bool           `json:"dry_run"`
	Program string         `json:"program"`
	Unit    string         `json:"unit"`
	Grants  []grant        `json:"grants"`
	Steps   []service.Step `json:"steps"`
	Enabled bool           `json:"enabled"`
	Started bool           `json:"started"`
	Notes   []string       `json:"notes"`
}

func newServiceInstall(env *env) *cobra.Command {
	var s serviceInstall
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Make this program a service of systemd",
		Long: `install puts this program, its unit, manual pages and shell completion into
/usr/local, and a configuration to start from into /etc/longhaul if there is
none. It enables the service as soon as that configuration has been edited.

The unit runs without any capability, but for those that the configuration
needs: ports below 1024, restricted congestion controls, buffers beyond the
sysctls, algorithms of longhaul's own. Run it again after changing those.

Nothing that it has not made itself is overwritten, whatever it is. With a
package installed it adds what the configuration needs, and no more. If it is
interrupted, run it again, or uninstall.`,
		Example: `  longhaul service install --dry-run
  longhaul service install --config site-a.yaml --now
  longhaul service install --root /mnt/image --config site-a.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), env) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.config, "config", "", "copy `FILE` to /etc/longhaul/longhaul.yaml")
	flags.BoolVar(&s.now, "now", false, "start the service as well")
	flags.BoolVar(&s.dryRun, "dry-run", false, "only say what would be done")
	flags.StringSliceVar(&s.grants, "grant", nil, "a `LIST` of drop-ins beyond those that the configuration needs (auto, or as before), or none: "+strings.Join(allGrants, ", "))
	flags.StringVar(&s.prefix, "prefix", "", "where bin and share are: a `DIR` ("+defaultPrefix+", or as before)")
	rootFlag(flags, &s.root)
	flags.BoolVar(&s.json, "json", false, "print what was done as JSON")
	return cmd
}

func (s *serviceInstall) run(ctx context.Context, env *env) (err error) {
	if s.prefix != "" && !filepath.IsAbs(s.prefix) {
		return usageError(remedy.New(fmt.Errorf("--prefix %s is no absolute path", s.prefix), "write it like "+defaultPrefix))
	}
	if s.host, err = serviceHost(s.root); err != nil {
		return err
	}
	if err := mayChange(s.host); err != nil && !s.dryRun {
		return err
	}
	if s.record, err = s.host.Load(); err != nil {
		return err
	}
	s.remember()
	s.program = filepath.Join(s.prefix, programBelowPrefix)
	if s.packaged = packagedUnit(s.host); s.packaged != "" {
		s.program = packaging.PackagedProgram
	}
	text, err := s.configuration()
	if err != nil {
		return err
	}
	c, err := s.loader().Parse(ctx, configFile, text)
	if err != nil {
		return err
	}
	own, err := cc.NewHost().Names()
	if err != nil {
		return err
	}
	limits := usualLimits()
	if s.host.Root == "" {
		limits = readLimits()
	}
	grants, err := chosenGrants(s.grants, findGrants(c, limits, own))
	if err != nil {
		return usageError(err)
	}
	edited := !bytes.Equal(text, config.Example)
	files, err := s.files(env, text, grants, edited)
	if err != nil {
		return err
	}
	plan, err := s.host.Plan(service.Wanted{Files: files, Program: s.program, Version: version(), Loads: loaded(grants, c), Choices: s.grants})
	if err != nil {
		return serviceError(err)
	}
	out := serviceInstalled{DryRun: s.dryRun, Program: s.program, Unit: s.unit(), Grants: grants, Steps: plan.Steps, Enabled: edited, Notes: []string{}}
	if !s.dryRun {
		if err := plan.Apply(); err != nil {
			return serviceError(err)
		}
		if s.host.Root == "" {
			if err := s.tell(ctx, plan, edited, &out); err != nil {
				return err
			}
		}
	}
	out.Notes = append(out.Notes, s.notes(edited, out.Started)...)
	if err := s.write(env, out, plan.Changes()); err != nil {
		return err
	}
	if s.now && !edited && !s.dryRun {
		return remedy.New(errors.New(configFile+" is still the example, so that nothing was started"), "edit it, then run longhaul service install --now again")
	}
	return nil
}

// remember takes what is not said now as it was said before.
func (s *serviceInstall) remember() {
	if s.prefix == "" {
		s.prefix = defaultPrefix
		if r := s.record; r != nil && r.Has(r.Program) {
			s.prefix = filepath.Join("/", strings.TrimSuffix(r.Program, programBelowPrefix))
		}
	}
	if len(s.grants) == 0 && s.record != nil {
		s.grants = s.record.Choices
	}
}

// write says what was done.
func (s *serviceInstall) write(env *env, out serviceInstalled, changes bool) error {
	if s.json {
		return display.WriteJSON(env.stdout, out)
	}
	writeSteps(env, out.Steps, s.dryRun)
	if !changes {
		fmt.Fprintln(env.stdout, "everything is as it should be")
	}
	if out.Started {
		fmt.Fprintln(env.stdout, unitName+" is running")
	}
	for _, note := range out.Notes {
		fmt.Fprintln(env.stdout, "note: "+note)
	}
	return nil
}

// loaded are the algorithms that the service will load.
func loaded(grants []grant, c *config.Config) (names []string) {
	for _, g := range grants {
		switch g.Name {
		case grantLoadCC:
			names = append(names, g.of...)
		case grantCC:
			names = append(names, c.CongestionControls()...)
		}
	}
	return names
}

// loader reads the configuration as the host will.
func (s *serviceInstall) loader() config.Loader {
	l := loader()
	if s.host.Root != "" {
		l = config.Loader{Resolve: config.PlaceholderResolver()}
	}
	l.CheckKey, l.CheckDashboard = checkServiceKey(s.host), checkServiceDashboard(s.host)
	return l
}

// unit is the file of the unit that will be in force.
func (s *serviceInstall) unit() string {
	if s.packaged != "" {
		return s.packaged
	}
	return unitFile
}

// configuration is what the service will read: what is there, or what is to
// be put there.
func (s *serviceInstall) configuration() ([]byte, error) {
	there, err := s.host.ReadFile(configFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, serviceError(err)
	}
	exists := err == nil
	if s.config == "" {
		if exists {
			return there, nil
		}
		return config.Example, nil
	}
	given, err := os.ReadFile(s.config)
	if err != nil {
		return nil, usageError(remedy.New(fmt.Errorf("--config: %w", err), "check the path and its permissions"))
	}
	// The example that install itself has put there holds nothing of anybody's.
	untouched := s.record.Has(configFile) && bytes.Equal(there, config.Example)
	if exists && !bytes.Equal(there, given) && !untouched {
		return nil, remedy.New(fmt.Errorf("%s is there already and is another one than %s", configFile, s.config), "copy it there yourself, check it with longhaul config check, and leave --config out")
	}
	return given, nil
}

// files are all that ought to be on the host.
func (s *serviceInstall) files(env *env, text []byte, grants []grant, enable bool) ([]service.File, error) {
	var all []service.File
	add := func(f service.File) {
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		all = append(all, f)
	}
	if s.packaged == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		binary, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		s.dynamic = needsLibraries(binary)
		unit, err := packaging.File(unitName, s.program)
		if err != nil {
			return nil, err
		}
		add(service.File{Path: s.program, Content: binary, Mode: 0o755, Vital: true})
		add(service.File{Path: unitFile, Content: unit, Vital: true})
		shared, err := sharedFiles(env)
		if err != nil {
			return nil, err
		}
		for _, path := range slices.Sorted(maps.Keys(shared)) {
			add(service.File{Path: filepath.Join(s.prefix, "share", path), Content: shared[path]})
		}
	}
	seed := service.File{Path: configFile, Content: config.Example, Seed: true}
	if s.config != "" {
		seed.Content, seed.Seed = text, false
	}
	add(seed)
	for _, g := range grants {
		dropIn, err := g.dropIn(s.program)
		if err != nil {
			return nil, err
		}
		add(service.File{Path: dropInDir + "/" + g.Name + ".conf", Content: dropIn, Why: g.Why})
	}
	if enable {
		add(service.File{Path: wantsLink, Link: s.unit(), Seed: true})
	}
	return all, nil
}

// tell makes systemd know, and starts the service if that was asked for.
func (s *serviceInstall) tell(ctx context.Context, plan *service.Plan, edited bool, out *serviceInstalled) error {
	if err := service.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	unit, err := service.ShowUnit(ctx, unitName)
	if err != nil {
		return err
	}
	running := unit.Active == "active" || unit.Active == "reloading"
	if running && plan.Changes() {
		out.Notes = append(out.Notes, "the running relay is the one before: longhaul upgrade changes to a new program and cuts no flow, systemctl restart longhaul takes up everything")
	}
	if !s.now || !edited || running {
		out.Started = running
		return nil
	}
	if err := service.Systemctl(ctx, "start", unitName); err != nil {
		return remedy.New(err, "see journalctl -u longhaul")
	}
	out.Started = true
	return nil
}

// needsLibraries says whether a program is started by way of a dynamic linker.
func needsLibraries(program []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(program))
	return err == nil && slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// notes say what to do next.
func (s *serviceInstall) notes(edited, started bool) (notes []string) {
	if s.packaged != "" {
		notes = append(notes, "program and unit are a package's: "+s.packaged)
	}
	if s.dynamic {
		notes = append(notes, "this program needs shared libraries, which the unit does not execute: build it with CGO_ENABLED=0")
	}
	switch {
	case !edited:
		notes = append(notes, "edit "+configFile+", then run longhaul service install --now again")
	case !started && s.host.Root == "":
		notes = append(notes, "start it with systemctl start longhaul")
	}
	return notes
}
