package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// Bounds of the time of `reload --confirm`.
const (
	minConfirm = time.Second
	maxConfirm = 24 * time.Hour
)

// CheckConfirm returns why a reload cannot wait that long to be confirmed, or nil.
func CheckConfirm(within time.Duration) error {
	if within < minConfirm || within > maxConfirm {
		return remedy.New(fmt.Errorf("the time to confirm cannot be %s", units.FormatDuration(within)),
			fmt.Sprintf("use %s to %s", units.FormatDuration(minConfirm), units.FormatDuration(maxConfirm)))
	}
	return nil
}

// The states of a configuration that is not simply in force.
const (
	Unconfirmed  = "unconfirmed"   // in force until somebody confirms it, or the time is over
	RolledBack   = "rolled-back"   // the one before is in force in its place
	CannotReturn = "cannot-return" // it was not confirmed, and the one before cannot be put into force

	confirmed = "confirmed" // simply in force; the first state of usable.Judge
)

// Confirmation is what has become of a `reload --confirm`. A reload that succeeds ends it.
type Confirmation struct {
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // when an unconfirmed one is rolled back
	File  string    `json:"file"`           // has the configuration before, also for the next start
}

// confirmation keeps the configuration to which the relay goes back, in memory and in a file, until a
// reload succeeds. The main loop calls its methods.
//
//	confirmed ──reload --confirm──▶ unconfirmed ──time is over, or a new start──▶ rolled-back, or
//	    ▲                               │                                         cannot-return
//	    └────────────reload─────────────┴──────────────────────────────────────────────┘
type confirmation struct {
	log  *slog.Logger
	note func(kind, tunnel, name, state, detail string)
	file stateFile

	base  *config.Config // to go back to, or gone back to; nil: confirmed
	timer *time.Timer    // until the relay goes back, or tries it again
	why   string         // the last time was in vain

	mu  sync.Mutex
	now *Confirmation // for the status; nil: confirmed
}

// status is what has become of a reload that had to be confirmed; nil: nothing to say.
func (c *confirmation) status() *Confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *confirmation) enter(state string, until time.Time, detail string) {
	c.note(flow.EventConfiguration, "", "", state, detail)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = nil
	if state != confirmed {
		c.now = &Confirmation{State: state, Since: time.Now(), Until: until, File: c.file.path}
	}
}

// begin writes down the configuration in force, before another one takes its place. If that had to be
// confirmed itself, the one before it stays the one to go back to.
func (c *confirmation) begin(inForce *config.Config, next config.Files) error {
	base := c.base
	if base == nil {
		base = inForce
	}
	if err := c.file.write(unconfirmed{Files: base.Files, Tried: next.Digest()}); err != nil {
		fix := "let the relay write in " + filepath.Dir(c.file.path) + ", or reload without --confirm"
		switch {
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			fix = "make room in " + filepath.Dir(c.file.path) + ", or reload without --confirm"
		case c.file.noPlace(err):
			fix = "give the relay a directory for its state: STATE_DIRECTORY, or StateDirectory= of a unit; or reload without --confirm"
		}
		return remedy.New(fmt.Errorf("write down the configuration to go back to: %w", err), fix)
	}
	c.base = base
	return nil
}

// failed is for a configuration that was not put into force after begin.
func (c *confirmation) failed() {
	if c.status() == nil {
		c.base = nil
		if err := c.file.remove(); err != nil {
			c.log.Error("cannot remove the configuration before: the next start goes back to it", "file", c.file.path, "error", err)
		}
	}
}

// wait begins the time in which the new configuration must be confirmed.
func (c *confirmation) wait(within time.Duration) {
	c.stop()
	c.timer = time.NewTimer(within)
	until := time.Now().Add(within)
	c.enter(Unconfirmed, until, "goes back at "+until.Format(time.RFC3339)+" unless longhaul reload confirms it")
	c.log.Info("the new configuration waits to be confirmed", "until", until, "confirm", "longhaul reload")
}

// over is when an unconfirmed configuration must be rolled back; nil: never.
func (c *confirmation) over() <-chan time.Time {
	if c.timer == nil {
		return nil
	}
	return c.timer.C
}

func (c *confirmation) stop() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// confirm ends the wait: the configuration in force is that of the files, and stays. The error is why the
// next start would still go back; then the wait goes on.
func (c *confirmation) confirm() error {
	if err := c.file.remove(); err != nil { // also one that a reload before could not remove
		return remedy.New(fmt.Errorf("the configuration is in force, but cannot be confirmed: %w", err), "remove "+c.file.path+", and reload again")
	}
	if c.base == nil && c.status() == nil {
		return nil
	}
	c.stop()
	c.base, c.why = nil, ""
	c.enter(confirmed, time.Time{}, "a reload has confirmed it")
	c.log.Info("the configuration is confirmed")
	return nil
}

// pending reports whether a configuration waits to be confirmed, and until when.
func (c *confirmation) pending() (until time.Time, waits bool) {
	if now := c.status(); now != nil && now.State == Unconfirmed {
		return now.Until, true
	}
	return time.Time{}, false
}

// unconfirmed is the content of the file.
type unconfirmed struct {
	Files config.Files `json:"files"` // of the configuration to go back to
	Tried string       `json:"tried"` // digest of the files that were not confirmed
}

// maxStateBytes bounds the file: the texts of a configuration, which JSON has in base64.
const maxStateBytes = 8 << 20

// stateFile has the configuration to go back to, for a process that comes after this one. Flags are not in
// it: a new process has its own.
type stateFile struct{ path string }

// stateFileOf is the file for a configuration file, and for the relay of a user with several; its path is
// empty if there is no directory for it.
func stateFileOf(configFile string, flags []config.Flag, getenv func(string) string) stateFile {
	dir := identity.Directory(getenv)
	absolute, err := filepath.Abs(configFile)
	if dir == "" || configFile == "" || err != nil {
		return stateFile{}
	}
	for _, f := range flags {
		if f.Key == "name" || f.Key == "control_socket" {
			absolute += "\x00" + f.Key + "\x00" + strings.Join(f.Values, "\x00")
		}
	}
	sum := sha256.Sum256([]byte(absolute))
	return stateFile{filepath.Join(filepath.Dir(dir), "unconfirmed-"+hex.EncodeToString(sum[:8])+".json")}
}

var errNoStateDirectory = errors.New("there is no directory for the state of this relay")

// write replaces the file as a whole: a process that ends in the midst leaves the old one, or none.
func (f stateFile) write(u unconfirmed) error {
	for _, step := range f.writing(u) {
		if err := step(); err != nil {
			if f.path != "" {
				_ = os.Remove(f.path + newSuffix)
			}
			return err
		}
	}
	return nil
}

// newSuffix ends the name of a state file that is being written.
const newSuffix = ".new"

// noPlace reports whether an error of write means that there is no directory for the file.
func (f stateFile) noPlace(err error) bool {
	info, missing := os.Stat(filepath.Dir(f.path))
	return errors.Is(err, errNoStateDirectory) || missing != nil || !info.IsDir()
}

// writing are the steps of write.
func (f stateFile) writing(u unconfirmed) []func() error {
	if f.path == "" {
		return []func() error{func() error { return errNoStateDirectory }}
	}
	var temp *os.File
	next := f.path + newSuffix
	return []func() error{
		func() error { return os.MkdirAll(filepath.Dir(f.path), 0o700) },
		func() (err error) {
			_ = os.Remove(next) // of a process that ended in the midst
			temp, err = os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			return err
		},
		func() error { // all that has the descriptor, which must not outlive an error
			err := json.NewEncoder(temp).Encode(u)
			if err == nil {
				err = temp.Sync()
			}
			return errors.Join(err, temp.Close())
		},
		func() error { return os.Rename(next, f.path) },
		func() error { return syncDirectory(f.path) },
	}
}

// remove removes the file for good.
func (f stateFile) remove() error {
	if err := os.Remove(f.path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return syncDirectory(f.path)
}

// syncDirectory has the disk take the names in a file's directory.
func syncDirectory(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// read returns the content; nil without a file.
func (f stateFile) read() (*unconfirmed, error) {
	if f.path == "" {
		return nil, nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // another user's
			return nil, nil
		}
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxStateBytes+1))
	if err != nil {
		return nil, err
	}
	var u unconfirmed
	if len(text) > maxStateBytes {
		return nil, fmt.Errorf("it has more than %d bytes", maxStateBytes)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&u); err != nil {
		return nil, err
	}
	return &u, nil
}

// load loads the configuration of a start: that of the files, unless an earlier process has put them into
// force with `reload --confirm` and ended before they were confirmed. Then it is the one before. Files that
// were changed since are another intention.
func (d *daemon) load(ctx context.Context) (c *config.Config, problem error, err error) {
	d.life.confirmation.file = stateFileOf(d.ConfigFile, d.Flags, d.Getenv)
	before, problem := d.life.confirmation.file.read()
	if problem != nil {
		problem = fmt.Errorf("read %s: %w", d.life.confirmation.file.path, problem)
	}
	if before != nil {
		files, err := d.Loader.Read(d.ConfigFile)
		if err == nil && files.Digest() != before.Tried {
			if c, err := d.Loader.ParseFiles(ctx, files, d.Flags...); err == nil && d.life.confirmation.file.remove() == nil {
				return c, nil, nil
			}
		}
		switch base, loadErr := d.Loader.ParseFiles(ctx, before.Files, d.Flags...); {
		case loadErr == nil:
			d.life.confirmation.base = base
			return base, nil, nil
		default:
			problem = loadErr
		}
	}
	c, err = d.Loader.Load(ctx, d.ConfigFile, d.Flags...)
	return c, problem, err
}

var errRolledBack = remedy.New(errors.New("rolled back: the last reload --confirm was not confirmed"), "correct the files, then longhaul reload --confirm again")

// refuseUpgrade returns why no process can follow: it would go back at once. Nil: one can.
func (c *confirmation) refuseUpgrade() error {
	until, waits := c.pending()
	if !waits {
		return nil
	}
	return remedy.New(fmt.Errorf("the configuration waits until %s to be confirmed", until.Format(time.TimeOnly)),
		"confirm it first with longhaul reload, or wait until the relay has gone back")
}

// prepareStart prepares the parts for the first time. If the configuration is one to which the relay has
// gone back, and cannot be prepared any more, that of the files serves.
func (d *daemon) prepareStart(ctx context.Context) (changes, error) {
	all, err := prepare(ctx, d.parts, d.plan(d.life.config))
	if err == nil || d.life.confirmation.base == nil || d.past.predecessor != nil { // an old process serves better
		return all, err
	}
	c, loadErr := d.Loader.Load(ctx, d.ConfigFile, d.Flags...)
	if loadErr != nil {
		return nil, err
	}
	if all, loadErr = prepare(ctx, d.parts, d.plan(c)); loadErr != nil {
		return nil, err
	}
	d.life.reloaded(nil, c)
	d.cannotReturn(err)
	return all, nil
}

// sayRolledBack reports at a start that the configuration in force is not that of the files.
func (d *daemon) sayRolledBack() {
	if d.life.confirmation.base == nil || d.life.confirmation.status() != nil {
		return
	}
	d.rolledBack()
}

// rolledBack notes that the configuration before is in force.
func (d *daemon) rolledBack() {
	outcome := failedReload(time.Now(), errRolledBack)
	d.life.reloaded(outcome, nil)
	d.life.confirmation.enter(RolledBack, time.Time{}, outcome.Error)
	d.log.Error("rolled back: the last reload --confirm was not confirmed, the configuration before it is in force",
		"hint", remedy.Of(errRolledBack), "file", d.ConfigFile)
}

// returnPause is the time between attempts to go back: what is in the way may be short.
const returnPause = 5 * time.Second

// cannotReturn notes that it cannot be put into force, and that the relay tries it again.
func (d *daemon) cannotReturn(err error) {
	err = remedy.New(fmt.Errorf("the last reload --confirm was not confirmed, and the configuration before cannot be put into force: %w", err),
		"longhaul reload confirms what is in force; otherwise the relay tries again every "+units.FormatDuration(returnPause))
	if d.life.confirmation.base != nil {
		d.life.confirmation.stop()
		d.life.confirmation.timer = time.NewTimer(returnPause)
	}
	if d.life.confirmation.why == err.Error() {
		return
	}
	d.life.confirmation.why = err.Error()
	outcome := failedReload(time.Now(), err)
	d.life.reloaded(outcome, nil)
	d.life.confirmation.enter(CannotReturn, time.Time{}, outcome.Error)
	d.log.Error("cannot go back, the unconfirmed configuration stays in force", "error", err, "hint", remedy.Of(err))
}

// rollBack goes back to the configuration before, or keeps the one in force if that is impossible.
func (d *daemon) rollBack(ctx context.Context) {
	d.manager.reloading("rolling back")
	defer func() { d.manager.ready(d.statusLine()) }()
	d.life.confirmation.stop()
	base := d.life.confirmation.base
	p := d.plan(base)
	p.back = true
	if err := change(ctx, d.parts, p); err != nil {
		d.cannotReturn(err)
		return
	}
	d.life.reloaded(&Reload{OK: true}, base)
	d.life.confirmation.why = ""
	d.rolledBack()
	if files, err := d.Loader.Read(d.ConfigFile); err == nil && files.Equal(base.Files) {
		if err := d.life.confirmation.confirm(); err != nil { // the file was put back, so nothing differs
			d.log.Warn("cannot remove what a start would go back to, which is the same", "error", err)
		}
	}
}
