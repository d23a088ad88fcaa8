//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"longhaul/internal/control"
	"longhaul/internal/remedy"
)

// relayChoice says which relay a command is for.
type relayChoice struct{ socket, name string }

func (c *relayChoice) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.name, "name", "", "`NAME` of the relay, where several run")
	flags.StringVar(&c.socket, "control-socket", "", "`PATH` of the relay's control socket (default: the usual place)")
}

// isGiven reports whether the command line names a relay.
func (c *relayChoice) isGiven() bool { return c.socket != "" || c.name != "" }

// errSeveral is returned where a command is for one relay, and several run.
var errSeveral = errors.New("several relays run here")

// path is the control socket of the chosen relay, or else of the only one.
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
		return "", remedy.New(fmt.Errorf("%w: %s", errSeveral, strings.Join(names, ", ")), "say which with --name NAME")
	}
	return paths[0], nil
}

// paths are the control sockets of the chosen relay, or else of all, the usual
// one first. Where none runs it is the usual place.
func (c *relayChoice) paths(ctx context.Context, env *env) ([]string, error) {
	dir := control.Directory(env.getenv)
	switch {
	case c.socket != "" && c.name != "":
		return nil, usageError(remedy.New(errors.New("--name and --control-socket both say which relay"), "leave one of them out"))
	case c.socket != "":
		return []string{c.socket}, nil
	case c.name != "":
		path := control.PathIn(dir, c.name)
		if control.NameIn(dir, path) != c.name {
			return nil, usageError(remedy.New(fmt.Errorf("no relay can be named %q", c.name), "longhaul status names those that run"))
		}
		return []string{path}, nil
	}
	// A directory that cannot be read has at most one that can be asked.
	names, _ := control.Running(ctx, dir)
	if len(names) == 0 {
		names = []string{control.DefaultName}
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = control.PathIn(dir, name)
	}
	return paths, nil
}

// tellRelay has the chosen relay carry out a verb and returns the JSON that it
// answers.
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

// controlError adds what to do about an error of the control socket.
func controlError(err error) error {
	var refusal *control.Refusal
	switch {
	case errors.Is(err, control.ErrNotRunning):
		return remedy.New(err, "start longhaul relay, or say which runs with --name NAME or --control-socket PATH")
	case errors.Is(err, control.ErrForbidden):
		return remedy.New(err, "run this as the relay's user or as root")
	case errors.As(err, &refusal) && refusal.Hint != "":
		return remedy.New(err, refusal.Hint)
	}
	return err
}
