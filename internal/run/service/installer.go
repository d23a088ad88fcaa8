package service

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
	"longhaul/packaging"
)

// Installer installs the running program on a host as a service of systemd.
type Installer struct {
	Host Host

	// Config is the content for [ConfigFile], from a file named ConfigName. With an
	// empty name the existing configuration stays, or Install writes the example.
	Config     []byte
	ConfigName string
	// ConfigFiles are Config and the files that it includes where it is. Install refuses
	// if it would not include the same on the host. Nil: not asked.
	ConfigFiles config.Files

	Prefix  string   // the parent of bin and share; empty: as before, or [DefaultPrefix]
	DropIns []string // a choice for [CheckDropIns]; empty: as before, or "auto"
	Start   bool     // start the service unless its configuration is the example
	DryRun  bool     // only plan

	Version string // of the running program

	// Loader loads configurations of this machine.
	Loader config.Loader
	// OwnCC are longhaul's congestion controls. AllowedCC are those that a process
	// without privilege may choose on this machine; nil: unknown.
	OwnCC, AllowedCC []string
	// Lacks returns what a configuration needs and the host lacks; nil: not asked. With
	// a fatal lack Install changes nothing.
	Lacks func(*config.Config) ([]Lack, error)
	// Share returns the files of share by path there.
	Share func() (map[string][]byte, error)
}

// Installed reports an installation, made or planned.
type Installed struct {
	DryRun  bool     `json:"dry_run"`
	Program string   `json:"program"` // that the unit starts
	Unit    string   `json:"unit"`    // its file
	DropIns []DropIn `json:"grants"`
	Steps   []Step   `json:"steps"`
	Lacks   []Lack   `json:"lacks"` // of the host
	// Enabled is false while the configuration is the example.
	Enabled bool     `json:"enabled"`
	Started bool     `json:"started"` // the service runs
	Notes   []string `json:"notes"`
}

// WriteText writes the steps and notes, without the lacks. The error is the writer's.
func (i Installed) WriteText(w io.Writer) error {
	var b bytes.Buffer
	writeSteps(&b, i.Steps, i.DryRun)
	if !changeFiles(i.Steps) {
		fmt.Fprintln(&b, "nothing to change")
	}
	if i.Started {
		fmt.Fprintln(&b, UnitName+" is running")
	}
	writeNotes(&b, i.Notes)
	_, err := w.Write(b.Bytes())
	return err
}

// installation is a running [Installer].
type installation struct {
	Installer
	record   *Record // of the previous installation; nil without one
	packaged string  // the unit of a package, which Install does not change
	program  string  // that the unit starts
	dynamic  bool    // the program needs shared libraries
}

// Install installs the program, its unit, drop-ins and configuration. An error of the
// configuration is a [config.Errors]. Other errors may have a remedy.
func (i Installer) Install(ctx context.Context) (Installed, error) {
	n := installation{Installer: i}
	var err error
	if n.record, err = n.Host.Load(); err != nil {
		return Installed{}, err
	}
	n.repeatChoices()
	n.program = filepath.Join(n.Prefix, programBelowPrefix)
	if n.packaged = n.Host.packagedUnit(); n.packaged != "" {
		n.program = packaging.PackagedProgram
	}
	text, err := n.configuration()
	if err != nil {
		return Installed{}, err
	}
	c, err := n.loader().Parse(ctx, ConfigFile, text)
	if err != nil {
		return Installed{}, err
	}
	if err := n.checkIncluded(c.Files); err != nil {
		return Installed{}, err
	}
	lacks := []Lack{}
	if n.Lacks != nil {
		if lacks, err = n.Lacks(c); err != nil {
			return Installed{}, err
		}
		if err := refuse(lacks); err != nil {
			return Installed{}, err
		}
	}
	limits := defaultLimits()
	if n.Host.Root == "" {
		limits = readLimits(n.AllowedCC)
	}
	dropIns, err := chooseDropIns(n.DropIns, neededDropIns(c, limits, n.OwnCC))
	if err != nil {
		return Installed{}, err
	}
	edited := !bytes.Equal(text, config.Example)
	files, err := n.files(text, dropIns, edited)
	if err != nil {
		return Installed{}, err
	}
	plan, err := n.Host.Plan(Wanted{Files: files, Program: n.program, Version: n.Version, Loads: loadedCC(dropIns, c), Choices: n.DropIns})
	if err != nil {
		return Installed{}, withRemedy(err)
	}
	result := Installed{DryRun: n.DryRun, Program: n.program, Unit: n.unit(), DropIns: dropIns, Steps: plan.Steps, Lacks: lacks, Enabled: edited, Notes: []string{}}
	if !n.DryRun {
		if err := plan.Apply(); err != nil {
			return Installed{}, withRemedy(err)
		}
		if n.Host.Root == "" {
			if err := n.tellSystemd(ctx, plan, &result); err != nil {
				return Installed{}, err
			}
		}
	}
	result.Notes = append(result.Notes, n.notes(&result)...)
	return result, nil
}

// repeatChoices takes missing choices from the previous installation.
func (n *installation) repeatChoices() {
	if n.Prefix == "" {
		n.Prefix = DefaultPrefix
		if r := n.record; r != nil && r.Has(r.Program) {
			n.Prefix = filepath.Join("/", strings.TrimSuffix(r.Program, programBelowPrefix))
		}
	}
	if len(n.DropIns) == 0 && n.record != nil {
		n.DropIns = n.record.Choices
	}
}

// loader returns a loader of configurations for the host.
func (n *installation) loader() config.Loader {
	l := n.Loader
	if n.Host.Root != "" {
		l = config.Loader{Resolve: config.PlaceholderResolver(), Root: n.Host.Root}
	}
	l.CheckKey, l.CheckDashboard = n.Host.checkKey(n.Loader.CheckKey), n.Host.checkDashboard(n.Loader.CheckDashboard)
	l.WebConfig = n.Host.readWebConfig
	return l
}

// unit returns the file of the unit in force.
func (n *installation) unit() string {
	if n.packaged != "" {
		return n.packaged
	}
	return UnitFile
}

// configuration returns the text of the service's configuration.
func (n *installation) configuration() ([]byte, error) {
	present, err := n.Host.ReadFile(ConfigFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, withRemedy(err)
	}
	exists := err == nil
	switch {
	case n.ConfigName == "" && exists:
		return present, nil
	case n.ConfigName == "":
		return config.Example, nil
	}
	// An unchanged example has no settings of a user.
	untouched := n.record.Has(ConfigFile) && bytes.Equal(present, config.Example)
	if exists && !bytes.Equal(present, n.Config) && !untouched {
		return nil, remedy.New(fmt.Errorf("%s already exists and differs from %s", ConfigFile, n.ConfigName),
			"copy it there yourself, check it with longhaul config check, and leave --config out")
	}
	return n.Config, nil
}

// checkIncluded returns an error if a file that the given configuration includes is not among those that
// it includes on the host.
func (n *installation) checkIncluded(onHost config.Files) error {
	for i, f := range n.ConfigFiles {
		same := func(o config.File) bool {
			return filepath.Base(o.Path) == filepath.Base(f.Path) && bytes.Equal(o.Text, f.Text)
		}
		if i > 0 && !slices.ContainsFunc(onHost[1:], same) {
			return remedy.New(fmt.Errorf("%s includes %s, which the service would not, since %s includes no such file", n.ConfigName, f.Path, ConfigFile),
				"copy the included files below "+filepath.Dir(ConfigFile)+" first, such as to "+filepath.Dir(ConfigFile)+"/conf.d")
		}
	}
	return nil
}

// files lists the files that the host must have.
func (n *installation) files(text []byte, dropIns []DropIn, enable bool) ([]File, error) {
	var all []File
	add := func(f File) {
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		all = append(all, f)
	}
	if n.packaged == "" {
		running, err := os.Executable()
		if err != nil {
			return nil, err
		}
		binary, err := os.ReadFile(running)
		if err != nil {
			return nil, err
		}
		n.dynamic = isDynamic(binary)
		unit, err := packaging.File(UnitName, n.program)
		if err != nil {
			return nil, err
		}
		add(File{Path: n.program, Content: binary, Mode: 0o755, Vital: true})
		add(File{Path: UnitFile, Content: unit, Vital: true})
		shared, err := n.Share()
		if err != nil {
			return nil, err
		}
		for _, path := range slices.Sorted(maps.Keys(shared)) {
			add(File{Path: filepath.Join(n.Prefix, "share", path), Content: shared[path]})
		}
	}
	seed := File{Path: ConfigFile, Content: config.Example, Seed: true}
	if n.ConfigName != "" {
		seed.Content, seed.Seed = text, false
	}
	add(seed)
	for _, d := range dropIns {
		text, err := d.text(n.program)
		if err != nil {
			return nil, err
		}
		add(File{Path: d.path(), Content: text, Why: d.Why})
	}
	if enable {
		add(File{Path: wantsLink, Link: n.unit(), Seed: true})
	}
	return all, nil
}

// tellSystemd reloads systemd's configuration, and starts the service if requested.
func (n *installation) tellSystemd(ctx context.Context, plan *Plan, result *Installed) error {
	if err := Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	unit, err := ShowUnit(ctx, UnitName)
	if err != nil {
		return err
	}
	running := unit.Active == "active" || unit.Active == "reloading"
	if running && plan.Changes() {
		result.Notes = append(result.Notes,
			"the old relay still runs: longhaul upgrade starts the new program and cuts no flow, systemctl restart longhaul applies everything")
	}
	if !n.Start || !result.Enabled || running {
		result.Started = running
		return nil
	}
	if err := Systemctl(ctx, "start", UnitName); err != nil {
		return remedy.New(err, "see journalctl -u longhaul")
	}
	result.Started = true
	return nil
}

// isDynamic reports whether a dynamic linker starts the program.
func isDynamic(program []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(program))
	return err == nil && slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// notes returns the next steps.
func (n *installation) notes(result *Installed) (notes []string) {
	if n.packaged != "" {
		notes = append(notes, "program and unit belong to a package: "+n.packaged)
	}
	if n.dynamic {
		notes = append(notes, "this program needs shared libraries, which the unit does not execute: build it with CGO_ENABLED=0")
	}
	if n.Host.Root == "" && !Booted() { // only a dry run comes here
		return append(notes, "systemd does not run this machine: run longhaul relay under the init that does")
	}
	switch {
	case !result.Enabled:
		notes = append(notes, "edit "+ConfigFile+", then run longhaul service install --now again")
	case !result.Started && n.Host.Root == "":
		notes = append(notes, "start it with systemctl start longhaul")
	}
	return notes
}
