package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Booted reports whether systemd runs this machine.
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system") // like sd_booted(3)
	return err == nil && info.IsDir()
}

// Systemctl runs systemctl. The error contains its error output.
func Systemctl(ctx context.Context, args ...string) error {
	_, err := output(ctx, "systemctl", args...)
	return err
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n"); line != "" {
			err = errors.New(line)
		}
		err = fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return stdout.String(), err
}

// Unit has systemd's properties of a unit.
type Unit struct {
	Loaded bool // the unit exists
	Masked bool
	// Active and Sub are the states of systemctl status: "active", "running".
	Active, Sub string
	// Enabled: it starts with the machine.
	Enabled bool
	PID     int    // of the main process; 0 if it does not run
	File    string // of the unit
	DropIns []string
	Status  string // the service's own status line
}

// ShowUnit asks systemd about a unit.
func ShowUnit(ctx context.Context, name string) (Unit, error) {
	out, err := output(ctx, "systemctl", "show", name,
		"--property=LoadState,ActiveState,SubState,UnitFileState,MainPID,FragmentPath,DropInPaths,StatusText")
	if err != nil {
		return Unit{}, err
	}
	return parseUnit(out), nil
}

func parseUnit(show string) Unit {
	var u Unit
	for line := range strings.Lines(show) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "LoadState":
			u.Loaded, u.Masked = value == "loaded", value == "masked"
		case "ActiveState":
			u.Active = value
		case "SubState":
			u.Sub = value
		case "UnitFileState":
			u.Enabled = strings.HasPrefix(value, "enabled")
		case "MainPID":
			u.PID, _ = strconv.Atoi(value) // systemd writes 0 for none
		case "FragmentPath":
			u.File = value
		case "DropInPaths":
			u.DropIns = strings.Fields(value)
		case "StatusText":
			u.Status = value
		}
	}
	return u
}

var exposureLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)Overall exposure level for \S+: ([0-9.]+) `)
})

// Exposure returns the figure of `systemd-analyze security`, 0 (best) to 10. With a
// root directory it reads the unit there, else systemd's loaded unit.
func Exposure(ctx context.Context, root, unit string) (float64, error) {
	args := []string{"security", "--no-pager"}
	if root != "" {
		args = append(args, "--offline=true", "--root="+root)
	}
	out, err := output(ctx, "systemd-analyze", append(args, unit)...)
	if err != nil {
		return 0, err
	}
	return parseExposure(out)
}

func parseExposure(out string) (float64, error) {
	m := exposureLine().FindStringSubmatch(out)
	if m == nil {
		return 0, errors.New("missing overall exposure in the output of systemd-analyze")
	}
	return strconv.ParseFloat(m[1], 64)
}

// Capabilities returns the capabilities of the service's processes, by a unit and its
// drop-ins in systemd's order.
func Capabilities(files ...[]byte) []string {
	var all []string
	for _, f := range files {
		for line := range strings.Lines(string(f)) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "AmbientCapabilities=")
			switch {
			case !ok:
			case value == "": // an empty assignment clears earlier ones
				all = nil
			default:
				all = append(all, strings.Fields(value)...)
			}
		}
	}
	return all
}
