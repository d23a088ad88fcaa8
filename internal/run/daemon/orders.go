package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"longhaul/internal/run/config"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// Reload is the outcome of a reload.
type Reload struct {
	At           time.Time `json:"at"`
	OK           bool      `json:"ok"`
	Error        string    `json:"error,omitempty"` // with its hint
	Hint         string    `json:"hint,omitempty"`
	Mistakes     []Mistake `json:"mistakes,omitempty"` // of the configuration
	Warnings     []Mistake `json:"warnings,omitempty"`
	Added        []string  `json:"added,omitempty"` // tunnels
	Changed      []string  `json:"changed,omitempty"`
	Removed      []string  `json:"removed,omitempty"`
	Unchanged    int       `json:"unchanged"`
	Settings     []string  `json:"settings,omitempty"`      // other settings that have changed
	NeedsRestart []string  `json:"needs_restart,omitempty"` // those that wait for a restart
	Restored     []string  `json:"restored,omitempty"`      // what other programs had removed from this host
	Files        []string  `json:"files,omitempty"`         // that were read, if there are several; absolute

	// Until is when the relay goes back unless another reload confirms this one; zero: never.
	Until time.Time `json:"until,omitzero"`

	DryRun      bool                `json:"dry_run,omitempty"` // nothing was changed
	Differences []config.Difference `json:"differences,omitempty"`
}

// Mistake is a mistake in a configuration, or a setting that is rarely intended.
type Mistake struct {
	File    string `json:"file,omitempty"` // absolute
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Flag    string `json:"flag,omitempty"`
	Problem string `json:"problem"`
	Fix     string `json:"fix"`
}

// mistakesOf describes mistakes for clients in any directory.
func mistakesOf(all []*config.Error) (out []Mistake) {
	for _, e := range all {
		m := Mistake{File: e.At.File, Line: e.At.Line, Column: e.At.Column, Flag: e.At.Flag, Problem: e.Problem, Fix: e.Fix}
		if absolute, err := filepath.Abs(m.File); m.File != "" && err == nil {
			m.File = absolute
		}
		out = append(out, m)
	}
	return out
}

// Errors returns mistakes as the configuration reports them.
func Errors(all []Mistake) config.Errors {
	var out config.Errors
	for _, m := range all {
		at := config.Position{File: m.File, Line: m.Line, Column: m.Column, Flag: m.Flag}
		out = append(out, &config.Error{At: at, Problem: m.Problem, Fix: m.Fix})
	}
	return out
}

// Err returns why the reload failed: [config.Errors] for a bad configuration.
func (r *Reload) Err() error {
	switch {
	case r.OK:
		return nil
	case len(r.Mistakes) > 0:
		return Errors(r.Mistakes)
	case r.Hint != "":
		return remedy.New(errors.New(strings.TrimSuffix(r.Error, "; "+r.Hint)), r.Hint)
	}
	return errors.New(r.Error)
}

// String returns the outcome of a reload that succeeded, in lines.
func (r *Reload) String() string {
	var b strings.Builder
	for _, part := range []struct {
		what string
		all  []string
	}{
		{"added", r.Added}, {"removed", r.Removed}, {"changed", r.Changed}, {"changed settings", r.Settings}, {"set again", r.Restored},
	} {
		if len(part.all) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", part.what, strings.Join(part.all, ", "))
		}
	}
	tunnels := display.Plural(r.Unchanged, "tunnel")
	if b.Len() == 0 {
		b.WriteString("no change: " + tunnels + " as before\n")
	} else {
		fmt.Fprintf(&b, "unchanged: %s\n", tunnels)
	}
	if len(r.NeedsRestart) > 0 {
		fmt.Fprintf(&b, "waiting for a restart: %s\n", strings.Join(r.NeedsRestart, ", "))
	}
	b.WriteString(FilesText(r.Files))
	tunnel := ""
	for _, d := range r.Differences {
		if d.Tunnel != tunnel {
			tunnel = d.Tunnel
			fmt.Fprintf(&b, "%s:\n", tunnel)
		}
		fmt.Fprintf(&b, "  %s\n", display.Fold(display.Shorten(d.String(), maxDifference), 76, 4))
	}
	if r.DryRun {
		b.WriteString("dry run: nothing was changed\n")
	}
	if !r.Until.IsZero() {
		fmt.Fprintf(&b, "unconfirmed: the relay goes back at %s, unless longhaul reload confirms\n", r.Until.Local().Format(time.DateTime))
	}
	return b.String()
}

// maxDifference is how many characters of a difference are shown. JSON has them all.
const maxDifference = 400

// FilesText has a line for each file of a configuration that was read; empty if it was one.
func FilesText(paths []string) string {
	if len(paths) < 2 {
		return ""
	}
	return "read: " + strings.Join(paths, "\nread: ") + "\n"
}

// filesOf lists the files of a configuration with several for clients in any directory.
func filesOf(c *config.Config) (all []string) {
	if len(c.Files) < 2 {
		return nil
	}
	for _, path := range c.Files.Paths() {
		if absolute, err := filepath.Abs(path); err == nil {
			path = absolute
		}
		all = append(all, path)
	}
	return all
}

// reloadRequest asks the daemon's loop for a reload.
type reloadRequest struct {
	dryRun  bool          // only say what it would do
	confirm time.Duration // go back after it; 0: never
	answer  chan *Reload
}

// orders are what clients of the control socket ask of the main loop.
type orders struct {
	life   *life
	getenv func(string) string

	upgrades  chan upgradeRequest
	reloads   chan reloadRequest
	finishing chan finishRequest
	ending    chan struct{} // closed when the relay stops
}

func newOrders(l *life, getenv func(string) string) *orders {
	return &orders{l, getenv, make(chan upgradeRequest), make(chan reloadRequest), make(chan finishRequest), make(chan struct{})}
}

func (o *orders) reload(ctx context.Context, _ url.Values) (any, error) {
	return o.ask(ctx, reloadRequest{})
}

// dryRun and confirm are verbs of their own: an older relay would take no notice of an argument.
func (o *orders) dryRun(ctx context.Context, _ url.Values) (any, error) {
	return o.ask(ctx, reloadRequest{dryRun: true})
}

func (o *orders) confirm(ctx context.Context, arguments url.Values) (any, error) {
	within, err := time.ParseDuration(arguments.Get("within"))
	if err == nil {
		err = CheckConfirm(within)
	}
	if err != nil {
		return nil, err
	}
	return o.ask(ctx, reloadRequest{confirm: within})
}

func (o *orders) ask(ctx context.Context, r reloadRequest) (any, error) {
	if err := o.life.busy(); err != nil {
		return nil, err
	}
	r.answer = make(chan *Reload, 1)
	select {
	case o.reloads <- r:
		return <-r.answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reload loads the configuration again. An invalid one changes nothing. With a time to confirm the relay
// goes back after it, unless another reload without one has succeeded.
func (d *daemon) reload(ctx context.Context, confirm time.Duration) *Reload {
	d.manager.reloading("reloading")
	defer func() { d.manager.ready(d.statusLine()) }()

	began := time.Now()
	before := d.life.config
	after, err := d.replace(ctx, before, confirm)
	if err != nil {
		logFailedReload(d.log, err)
		outcome := failedReload(began, err)
		d.life.reloaded(outcome, nil)
		return outcome
	}
	outcome := compared(began, before, after)
	outcome.Restored = d.rules.restoredParts()
	if confirm > 0 {
		d.life.confirmation.wait(confirm)
		outcome.Until, _ = d.life.confirmation.pending()
	} else if err := d.life.confirmation.confirm(); err != nil {
		d.log.Error("the configuration is not confirmed", "error", err, "hint", remedy.Of(err))
		outcome = failedReload(began, err)
	}
	d.life.reloaded(outcome, after)
	if !outcome.OK {
		return outcome
	}

	d.log.Info("reloaded",
		"added", strings.Join(outcome.Added, ","), "changed", strings.Join(outcome.Changed, ","),
		"removed", strings.Join(outcome.Removed, ","), "unchanged", outcome.Unchanged)
	d.warn()
	if len(outcome.NeedsRestart) > 0 {
		d.log.Warn("some changed settings wait for a restart", "settings", strings.Join(outcome.NeedsRestart, ","))
	}
	return outcome
}

// replace puts the configuration of the files into force. With a time to confirm, the one before is on disk
// first: reading the new one may be what ends the process.
func (d *daemon) replace(ctx context.Context, before *config.Config, confirm time.Duration) (after *config.Config, err error) {
	if confirm > 0 {
		if d.ConfigFile == "" {
			return nil, remedy.New(errors.New("a relay made by flags has no file, so no other configuration to confirm"), "leave --confirm out")
		}
		defer func() {
			if err != nil {
				d.life.confirmation.failed()
			}
		}()
		files, err := d.Loader.Read(d.ConfigFile)
		if err != nil {
			return nil, err
		}
		if err := d.life.confirmation.begin(before, files); err != nil {
			return nil, err
		}
		after, err = d.Loader.ParseFiles(ctx, files, d.Flags...)
		if err != nil {
			return nil, err
		}
	} else if after, err = d.Loader.Load(ctx, d.ConfigFile, d.Flags...); err != nil {
		return nil, err
	}
	return after, change(ctx, d.parts, d.plan(after))
}

// tryReload says what a reload would do. It changes nothing.
func (d *daemon) tryReload(ctx context.Context) *Reload {
	began := time.Now()
	before := d.life.config
	after, err := d.Loader.Load(ctx, d.ConfigFile, d.Flags...)
	if err == nil {
		p := d.plan(after)
		p.dryRun = true
		var prepared changes
		if prepared, err = prepare(ctx, d.parts, p); err == nil {
			prepared.Abort()
		}
	}
	if err != nil {
		outcome := failedReload(began, err)
		outcome.DryRun = true
		return outcome
	}
	outcome := compared(began, before, after)
	outcome.DryRun, outcome.Differences = true, config.Differences(before, after, d.Flags...)
	return outcome
}

// compared is the outcome of a reload that succeeds.
func compared(at time.Time, before, after *config.Config) *Reload {
	changes := config.Diff(before, after)
	return &Reload{At: at, OK: true, Warnings: mistakesOf(after.Warnings), Files: filesOf(after),
		Added: changes.Added, Changed: changes.Changed, Removed: changes.Removed, Unchanged: len(changes.Unchanged),
		Settings: config.ChangedSettings(before, after), NeedsRestart: config.NeedsRestart(before, after)}
}

func failedReload(at time.Time, err error) *Reload {
	outcome := &Reload{At: at, Error: remedy.Line(err), Hint: remedy.Of(err)}
	if mistakes := (config.Errors)(nil); errors.As(err, &mistakes) {
		outcome.Mistakes = mistakesOf(mistakes)
	}
	return outcome
}

// logFailedReload logs each mistake.
func logFailedReload(log *slog.Logger, err error) {
	const text = "reload failed, the old configuration stays"
	var mistakes config.Errors
	if errors.As(err, &mistakes) {
		for _, e := range mistakes {
			log.Error(text, "at", e.At.String(), "error", e.Problem, "hint", e.Fix)
		}
		return
	}
	attributes := []any{"error", err}
	if fix := remedy.Of(err); fix != "" {
		attributes = append(attributes, "hint", fix)
	}
	log.Error(text, attributes...)
}

// Stopped is the answer of POST /v1/stop. It comes at the end of the process.
type Stopped struct {
	PID     int     `json:"pid"`
	Seconds float64 `json:"seconds"` // that the flows had
	Leftovers
}

// String returns the outcome in a line.
func (s Stopped) String() string {
	text := fmt.Sprintf("process %d stopped after %.1f s", s.PID, s.Seconds)
	if s.Reset+s.Left == 0 {
		return text + ", every flow had ended"
	}
	return text + ": " + s.Leftovers.String()
}

// stop stops the process as SIGTERM does, and returns at its end.
func (o *orders) stop(ctx context.Context, arguments url.Values) (any, error) {
	o.life.mu.Lock()
	stage, err := o.life.stage, o.life.busyLocked()
	r := finishRequest{usual: !arguments.Has("drain_timeout"), within: o.life.config.DrainTimeout, replaced: stage == replaced}
	o.life.mu.Unlock()
	if stage == upgrading {
		return nil, err
	}
	if unit, ok := ownUnit(o.getenv); ok && stage == serving {
		return nil, remedy.New(fmt.Errorf("systemd runs this relay as %s, and may start it again", cmp.Or(unit, "a service")),
			"systemctl stop "+cmp.Or(unit, "with the name of that service"))
	}
	if r.within, err = drainTimeout(arguments, r.within); err != nil {
		return nil, err
	}
	began := time.Now()
	all, err := o.askToFinish(ctx, r)
	if err != nil {
		return nil, err
	}
	return Stopped{os.Getpid(), display.Round(time.Since(began).Seconds(), 1e3), all.Leftovers}, nil
}

// drainTimeout returns the time of a request for the flows to finish, negative for no
// bound, or else the usual one.
func drainTimeout(arguments url.Values, usual time.Duration) (time.Duration, error) {
	text := arguments.Get("drain_timeout")
	if text == "" {
		return usual, nil
	}
	return time.ParseDuration(text)
}

// ownUnit reports whether systemd runs this process, and as which unit, empty if the
// control group does not tell.
func ownUnit(getenv func(string) string) (unit string, ok bool) {
	if getenv("NOTIFY_SOCKET") == "" {
		return "", false
	}
	group, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(group)) {
		if name := path.Base(strings.TrimSpace(line)); strings.HasSuffix(name, ".service") {
			return name, true
		}
	}
	return "", true
}
