package daemon

import (
	"context"
	"log/slog"
	"net/url"

	"longhaul/internal/run/control"
	"longhaul/internal/words/remedy"
)

// verbs are the requests that a running relay accepts on its control socket.
type verbs struct {
	log *slog.Logger
	all map[string]func(context.Context, url.Values) (any, error)
}

// handlers are what the control socket answers.
func (d *daemon) handlers() control.Handlers {
	drains := &drains{log: d.log, relay: d.relay, discovery: d.discovery, rules: d.rules, older: &d.past.older, life: &d.life}
	v := verbs{d.log, map[string]func(context.Context, url.Values) (any, error){
		"drain":    drains.drain,
		"resume":   drains.resume,
		"reload":   d.orders.reload,
		"stop":     d.orders.stop,
		"upgrade":  d.orders.upgrade,
		"finish":   d.orders.finish, // from the process that has taken over
		"summary":  d.summary,       // the same, and from longhaul stop
		"observed": d.observed,      // from a process that this one has taken over from
		"check":    d.check,
		"trace":    d.tracer.named,
		"events":   d.states.events,
	}}
	all := control.Handlers{Status: func() any { return d.status() }, Do: v.do}
	checks := d.readiness().handler()
	for _, target := range healthTargets {
		all.More = append(all.More, control.Endpoint{Pattern: target, Handler: checks})
	}
	return all
}

// do carries out a verb. The client gets an error's hint.
func (v verbs) do(ctx context.Context, verb string, arguments url.Values) (any, error) {
	carryOut := v.all[verb]
	if carryOut == nil {
		return nil, control.ErrUnknownVerb
	}
	v.note(ctx, verb, arguments)
	answer, err := carryOut(ctx, arguments)
	if fix := remedy.Of(err); fix != "" {
		return nil, &control.Refusal{Problem: err.Error(), Hint: fix}
	}
	return answer, err
}

// note logs the client of a verb that changes the relay, done or refused.
func (v verbs) note(ctx context.Context, verb string, arguments url.Values) {
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
	v.log.Info("asked to "+verb, append(fields, "uid", peer.UID, "pid", peer.PID)...)
}
