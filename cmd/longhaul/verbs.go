//go:build linux

package main

import (
	"context"
	"errors"
	"net/url"

	"longhaul/internal/control"
)

// relayVerbs are what a running relay can be asked to do through its control socket.
var relayVerbs = map[string]func(*daemon, context.Context, url.Values) (any, error){
	"drain":   (*daemon).drainVerb,
	"resume":  (*daemon).resumeVerb,
	"upgrade": (*daemon).upgradeVerb,
	"finish":  (*daemon).finishVerb,  // asked by the process that has taken over
	"summary": (*daemon).summaryVerb, // the same
	"check":   (*daemon).checkVerb,
}

// do carries out one of them. An error's hint reaches whoever asked.
func (d *daemon) do(ctx context.Context, verb string, arguments url.Values) (any, error) {
	carryOut := relayVerbs[verb]
	if carryOut == nil {
		return nil, control.ErrUnknownVerb
	}
	d.logVerb(ctx, verb, arguments)
	answer, err := carryOut(d, ctx, arguments)
	var hinted *hintError
	if errors.As(err, &hinted) {
		return nil, &control.Refusal{Problem: err.Error(), Hint: hinted.hint}
	}
	return answer, err
}

// logVerb logs who asks for what changes the relay, done or refused.
func (d *daemon) logVerb(ctx context.Context, verb string, arguments url.Values) {
	switch verb {
	case "drain", "resume", "upgrade", "finish":
	default:
		return
	}
	var fields []any
	for _, key := range []string{"name", "wait", "binary", "within"} {
		if arguments.Has(key) {
			fields = append(fields, key, arguments.Get(key))
		}
	}
	peer := control.PeerOf(ctx)
	d.log.Info("asked to "+verb, append(fields, "uid", peer.UID, "pid", peer.PID)...)
}

// tellRelay has the relay with this control socket carry out a verb and returns
// the JSON that it answers; an empty path stands for the usual place.
func tellRelay(ctx context.Context, env *env, path, verb string, arguments url.Values) ([]byte, error) {
	body, err := control.Do(ctx, controlPath(env, path), verb, arguments)
	return body, controlError(err)
}

func controlPath(env *env, path string) string {
	if path == "" {
		return control.DefaultPath(env.getenv)
	}
	return path
}

// controlError adds what to do about an error of the control socket.
func controlError(err error) error {
	var refusal *control.Refusal
	switch {
	case errors.Is(err, control.ErrNotRunning):
		return &hintError{err, "start longhaul relay, or name its socket with --control-socket PATH"}
	case errors.Is(err, control.ErrForbidden):
		return &hintError{err, "run this as the relay's user or as root"}
	case errors.As(err, &refusal) && refusal.Hint != "":
		return &hintError{err, refusal.Hint}
	}
	return err
}
