package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/words/remedy"
)

// forwardRules knows what the host's own forward rules would do with the connections that
// the tunnels take, and which pass those rules.
type forwardRules struct {
	log    *slog.Logger
	getenv func(string) string

	mu      sync.Mutex
	shown   map[string][]flow.ForwardRules // by tunnel; readers keep it, so it never changes
	said    map[string]string              // of the log, by tunnel and family
	kept    int                            // configurations that this process has had in force
	looking bool
	next    time.Time // of the next look
}

const (
	// forwardRulesBeat is the least time between two looks at the rules.
	forwardRulesBeat = 10 * time.Second
	// forwardRulesShare bounds the time that looking takes: one part in as many.
	forwardRulesShare = 200
)

// check looks at the rules for a configuration. On a first start it refuses tunnels whose
// connections the host would reject, unless their file says that this is meant. succeeds:
// this process takes over from another one.
func (r *forwardRules) check(host ruler, wanted intercept.Options, succeeds bool) ([]intercept.ForwardVerdict, error) {
	if len(wanted.Tunnels) == 0 {
		return nil, nil
	}
	verdicts, err := host.ForwardRules(wanted)
	if err != nil {
		r.log.Warn("cannot read the host's forward rules, which intercepted connections pass", "error", err)
		return nil, nil
	}
	r.mu.Lock()
	first := r.kept == 0
	r.mu.Unlock()
	if !first || succeeds {
		return verdicts, nil
	}
	if has, err := host.HasRecord(wanted.Relay); err == nil && has || r.ranBefore() {
		return verdicts, nil
	}
	for _, v := range verdicts {
		if v.Rejects() {
			if err := v.Problem(); err != nil {
				return nil, err
			}
		}
	}
	return verdicts, nil
}

// ranName is a file in the service's directory of a relay that has intercepted.
const ranName = "intercepted"

// ranBefore reports whether a process of this service has intercepted here, or may have:
// older releases left a history, and nothing else.
func (r *forwardRules) ranBefore() bool {
	dir := stateDirectory(r.getenv)
	if dir == "" {
		return false
	}
	for _, name := range []string{ranName, HistoryName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// keep puts a look at the rules into force.
func (r *forwardRules) keep(verdicts []intercept.ForwardVerdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept++
	r.next = time.Now().Add(forwardRulesBeat)
	r.tell(verdicts)
	if dir := stateDirectory(r.getenv); dir != "" && len(verdicts) > 0 {
		f, err := os.OpenFile(filepath.Join(dir, ranName), os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			r.log.Warn("cannot note that this relay intercepts: its next start is as its first", "error", err)
		}
	}
}

// tell logs what has changed. The caller holds mu.
func (r *forwardRules) tell(verdicts []intercept.ForwardVerdict) {
	shown, said := map[string][]flow.ForwardRules{}, map[string]string{}
	for _, v := range verdicts {
		key, line, problem := v.Tunnel+" "+v.Family, "", v.Problem()
		if problem != nil {
			line = problem.Error()
		}
		shown[v.Tunnel] = append(shown[v.Tunnel], flow.ForwardRules{
			Family: v.Family, Outcome: string(v.Outcome), Detail: v.String(), Problem: line, Fix: remedy.Of(problem),
		})
		if said[key] = line; r.said[key] == line {
			continue
		}
		switch {
		case v.Rejects() && problem != nil:
			r.log.Warn(line, "tunnel", v.Tunnel, "remedy", remedy.Of(problem))
		case problem != nil:
			r.log.Info(line, "tunnel", v.Tunnel, "remedy", remedy.Of(problem))
		default:
			r.log.Info("what the tunnel takes, this host's forward rules accept, or the file lets it pass", "tunnel", v.Tunnel, "family", v.Family)
		}
	}
	r.said, r.shown = said, shown
}

// isDue reports whether to look at the rules again, which [forwardRules.look] then must, with
// what the relay intercepts from now on.
func (r *forwardRules) isDue(now time.Time) (of int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	due = !r.looking && !now.Before(r.next)
	r.looking = r.looking || due
	return r.kept, due
}

// look looks at the rules for what a configuration intercepts.
func (r *forwardRules) look(host ruler, wanted intercept.Options, of int) {
	began := time.Now()
	verdicts, err := host.ForwardRules(wanted)
	took := time.Since(began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looking = false; of != r.kept { // by a reload, which has looked itself
		return
	}
	r.next = time.Now().Add(max(forwardRulesBeat, forwardRulesShare*took))
	if err == nil {
		r.tell(verdicts)
	} else if r.shown = nil; r.said[""] != err.Error() {
		r.said = map[string]string{"": err.Error()}
		r.log.Warn("cannot read this host's forward rules, which intercepted connections pass", "error", err)
	}
}

// add fills in what the rules say of the tunnels.
func (r *forwardRules) add(tunnels []flow.Tunnel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range tunnels {
		tunnels[n].ForwardRules = r.shown[tunnels[n].Name]
	}
}
