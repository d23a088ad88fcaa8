//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"longhaul/internal/run/control"
	"longhaul/internal/words/remedy"
)

// relayChoice selects the relay of a command.
type relayChoice struct{ socket, name string }

func (c *relayChoice) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.name, "name", "", "`NAME` of the relay, where several run")
	flags.StringVar(&c.socket, "control-socket", "", "`FILE` that is the relay's control socket (default: the usual place)")
}

// isGiven reports whether the command line names a relay.
func (c *relayChoice) isGiven() bool { return c.socket != "" || c.name != "" }

// errSeveral is returned if a command needs one relay and several run.
var errSeveral = errors.New("several relays run here")

// path returns the control socket of the chosen relay, or else of the only one.
func (c *relayChoice) path(ctx context.Context, env *env) (string, error) {
	paths, err := c.paths(ctx, env)
	switch {
	case err != nil:
		return "", err
	case len(paths) > 1:
		dir := control.Directory(env.getenv)
		names := make([]string, len(paths))
		for i, path := range paths {
			names[i] = control.NameIn(dir, path)
		}
		return "", remedy.New(fmt.Errorf("%w: %s", errSeveral, strings.Join(names, ", ")),
			"choose one with --name NAME")
	}
	return paths[0], nil
}

// paths returns the control sockets of the chosen relay, or else of all, the default
// name first. If none runs it returns the default path.
func (c *relayChoice) paths(ctx context.Context, env *env) ([]string, error) {
	dir := control.Directory(env.getenv)
	switch {
	case c.socket != "" && c.name != "":
		return nil, usageError(remedy.New(errors.New("choose one of --name and --control-socket"),
			"leave one of them out"))
	case c.socket != "":
		return []string{c.socket}, nil
	case c.name != "":
		path := control.PathIn(dir, c.name)
		if control.NameIn(dir, path) != c.name {
			return nil, usageError(remedy.New(fmt.Errorf("invalid relay name %q", c.name),
				"longhaul status lists the running relays"))
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			if err := relayOfRoot(dir, c.name); err != nil {
				return nil, err
			}
			if err := noRelayNamed(ctx, dir, c.name); err != nil {
				return nil, err
			}
		}
		return []string{path}, nil
	}
	// In an unreadable directory at most one relay can be asked.
	names, _ := control.Running(ctx, dir)
	if len(names) == 0 {
		if err := relayOfRoot(dir, ""); err != nil {
			return nil, err
		}
		names = []string{control.DefaultName}
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = control.PathIn(dir, name)
	}
	return paths, nil
}

// noRelayNamed is the error of a name that no running relay has, while others run; nil if none runs.
func noRelayNamed(ctx context.Context, dir, name string) error {
	names, _ := control.Running(ctx, dir) // an unreadable directory is another user's
	names = slices.DeleteFunc(names, func(name string) bool {
		_, err := control.PIDOf(ctx, control.PathIn(dir, name))
		return errors.Is(err, control.ErrNotRunning)
	})
	if len(names) == 0 {
		return nil
	}
	fix := "choose one of these: " + strings.Join(names, ", ")
	if meant := remedy.Nearest(name, names); meant != "" && len(names) > 1 {
		fix = "did you mean " + meant + "? These run: " + strings.Join(names, ", ")
	}
	return remedy.New(fmt.Errorf("%w by the name %s", control.ErrNotRunning, name), fix)
}

// relayOfRoot returns the error for a user without a relay of this name, or of any
// name if it is empty, while root or the service has one. dir is the user's directory.
func relayOfRoot(dir, name string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	paths, _ := control.RootSockets() // without them the usual error is true as well
	paths = slices.DeleteFunc(paths, func(path string) bool {
		return filepath.Dir(path) == dir || name != "" && control.NameIn(filepath.Dir(path), path) != name
	})
	if len(paths) == 0 {
		return nil
	}
	what := "relay"
	if name != "" {
		what += " " + name
	}
	return remedy.New(fmt.Errorf("you run no %s; root's runs at %s, and only root may ask it", what, strings.Join(paths, " ")),
		"run this command with sudo")
}

// tellRelay sends the chosen relay a verb and returns the JSON of its answer.
func tellRelay(ctx context.Context, env *env, chosen relayChoice, verb string, arguments url.Values) ([]byte, error) {
	path, err := chosen.path(ctx, env)
	if err != nil {
		return nil, err
	}
	body, err := control.Do(ctx, path, verb, arguments)
	return body, controlError(err)
}

// askRelay fetches the status of the chosen relay.
func askRelay(ctx context.Context, env *env, chosen relayChoice) ([]byte, error) {
	path, err := chosen.path(ctx, env)
	if err != nil {
		return nil, err
	}
	body, err := control.Status(ctx, path)
	return body, controlError(err)
}

// controlError adds the hint to an error of the control socket.
func controlError(err error) error {
	var refusal *control.Refusal
	var silent *control.SilentError
	switch {
	case errors.As(err, &silent) && silent.Stopped:
		return remedy.New(err, fmt.Sprintf("let it go on: kill -CONT %d", silent.PID))
	case errors.As(err, &silent):
		return remedy.New(err, "see whether its host is overloaded (uptime), and the relay's log")
	case errors.Is(err, control.ErrNotRunning):
		return remedy.New(err,
			"start longhaul relay, or choose a running one with --name NAME or --control-socket FILE")
	case errors.Is(err, control.ErrForbidden):
		return remedy.New(err, "run this as the relay's user or as root")
	case errors.As(err, &refusal) && refusal.Hint != "":
		return remedy.New(err, refusal.Hint)
	}
	return err
}
