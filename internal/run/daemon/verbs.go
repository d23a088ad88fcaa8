package daemon

import (
	"context"
	"net/url"

	"longhaul/internal/run/control"
	"longhaul/internal/words/remedy"
)

// verbs are the requests that a running relay accepts on its control socket.
var verbs = map[string]func(*daemon, context.Context, url.Values) (any, error){
	"drain":   (*daemon).drainVerb,
	"resume":  (*daemon).resumeVerb,
	"reload":  (*daemon).reloadVerb,
	"stop":    (*daemon).stopVerb,
	"upgrade": (*daemon).upgradeVerb,
	"finish":  (*daemon).finishVerb,  // from the process that has taken over
	"summary": (*daemon).summaryVerb, // the same, and from longhaul stop
	"check":   (*daemon).checkVerb,
	"events":  (*daemon).eventsVerb,
}

// handlers are what the control socket answers.
func (d *daemon) handlers() control.Handlers {
	all := control.Handlers{Status: func() any { return d.status() }, Do: d.do}
	checks := d.readiness().handler()
	for _, target := range healthTargets {
		all.More = append(all.More, control.Endpoint{Pattern: target, Handler: checks})
	}
	return all
}

// do carries out a verb. The client gets an error's hint.
func (d *daemon) do(ctx context.Context, verb string, arguments url.Values) (any, error) {
	carryOut := verbs[verb]
	if carryOut == nil {
		return nil, control.ErrUnknownVerb
	}
	d.logVerb(ctx, verb, arguments)
	answer, err := carryOut(d, ctx, arguments)
	if fix := remedy.Of(err); fix != "" {
		return nil, &control.Refusal{Problem: err.Error(), Hint: fix}
	}
	return answer, err
}

// logVerb logs the client of a verb that changes the relay, done or refused.
func (d *daemon) logVerb(ctx context.Context, verb string, arguments url.Values) {
	switch verb {
	case "drain", "resume", "reload", "stop", "upgrade", "finish":
	default:
		return
	}
	var fields []any
	for _, key := range []string{"name", "wait", "binary", "drain_timeout", "within"} {
		if arguments.Has(key) {
			fields = append(fields, key, arguments.Get(key))
		}
	}
	peer := control.PeerOf(ctx)
	d.log.Info("asked to "+verb, append(fields, "uid", peer.UID, "pid", peer.PID)...)
}
