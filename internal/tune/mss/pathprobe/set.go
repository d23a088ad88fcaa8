package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"longhaul/internal/sys/pathmtu"
	"longhaul/internal/tune/mss"
	"longhaul/internal/words/remedy"
)

// Outcome is the result of [Set].
type Outcome struct {
	Rule     mss.Rule  `json:"rule"`
	Changed  bool      `json:"changed"` // false: already so
	Replaced *mss.Rule `json:"replaced,omitempty"`
	Hook     string    `json:"hook"`             // how the program is attached: "tcx" or "clsact"
	Probed   string    `json:"probed,omitempty"` // address that answered packets of this size
	Notes    []string  `json:"notes,omitempty"`  // dropped rules, a simpler alternative
}

// Set adds a rule if packets of its size get through. A nil probe means no probe.
// probing, unless nil, is called before packets are sent.
func Set(ctx context.Context, host *mss.Host, rule mss.Rule, probe *Probe, probing func(*Probe)) (Outcome, error) {
	o := mss.SetOptions{Arrives: probe != nil && probe.From}
	if err := host.CheckSet(rule, o); err != nil {
		return Outcome{}, err
	}
	outcome := Outcome{Rule: rule}
	if probe != nil {
		if probing != nil {
			probing(probe)
		}
		if err := probe.require(ctx); err != nil {
			if ctx.Err() != nil {
				return Outcome{}, errors.New("interrupted, no change made")
			}
			return Outcome{}, err
		}
		outcome.Probed = probe.Address.String()
	}
	result, err := host.Set(ctx, rule, o)
	if err != nil {
		return Outcome{}, err
	}
	outcome.Changed, outcome.Replaced, outcome.Hook = result.Changed, result.Replaced, result.Hook
	for _, r := range result.Dropped {
		if r != rule {
			outcome.Notes = append(outcome.Notes, fmt.Sprintf("dropped a rule that was no longer in force: %s  %s", r.Device, r.Text()))
		}
	}
	if rule.Action == mss.Raise && rule.From.IsValid() && !forwards(rule.From.Addr().Is6()) {
		outcome.Notes = append(outcome.Notes, fmt.Sprintf("this host forwards nothing: longhaul route set --to %s --advmss %d does the same for its own connections, with no BPF", rule.From, rule.MSS))
	}
	return outcome, nil
}

// forwards reports whether this host forwards packets.
func forwards(ipv6 bool) bool {
	path := "/proc/sys/net/ipv4/ip_forward"
	if ipv6 {
		path = "/proc/sys/net/ipv6/conf/all/forwarding"
	}
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(b)) != "0"
}

// maxFailures is the number of failed probes in a row after which a rule is removed.
// Each probe is several packets.
const maxFailures = 1

// Watch probes until the path no longer carries the size, which is an error, or the
// context ends. Then it removes the rule and restores the one that it replaced. note
// is called when the host stops answering, and when it answers again.
func (o Outcome) Watch(ctx context.Context, host *mss.Host, probe *Probe, every time.Duration, note func(string)) error {
	failures, silent := 0, false
	for {
		select {
		case <-ctx.Done():
			return o.revert(ctx, host)
		case <-time.After(every):
		}
		result, err := probe.run(ctx)
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return errors.Join(err, o.revert(ctx, host))
		}
		if silent != (result.Verdict == pathmtu.Silent) {
			silent = !silent
			if silent {
				note(fmt.Sprintf("%s no longer answers; the rule stays", probe.Address))
			} else {
				note(fmt.Sprintf("%s answers again", probe.Address))
			}
		}
		if result.Verdict != pathmtu.TooBig {
			failures = 0
			continue
		}
		if failures++; failures <= maxFailures {
			continue
		}
		if err := o.revert(ctx, host); err != nil {
			return err
		}
		return remedy.New(fmt.Errorf("packets of %d bytes no longer get %s: the rule is removed", probe.Bytes, probe),
			"connections that began under it may hang: reconnect them")
	}
}

// revert takes the host's claim on the rule back, even after the context has ended.
func (o Outcome) revert(ctx context.Context, host *mss.Host) error {
	return host.UndoRule(context.WithoutCancel(ctx), o.Rule)
}
