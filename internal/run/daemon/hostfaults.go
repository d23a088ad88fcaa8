package daemon

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/words/remedy"
)

// hostFaults are what this host lacks of what intercepting tunnels need, and longhaul does not set:
// interfaces and settings. Guarded by interception.mu.
type hostFaults struct {
	log      *slog.Logger
	absent   map[string]flow.HostProblem // interfaces that are not there, by name
	settings []flow.HostProblem
}

func (h *hostFaults) any() bool { return len(h.absent) > 0 || len(h.settings) > 0 }

// at are those of a tunnel that intercepts at an interface.
func (h *hostFaults) at(name string) (all []flow.HostProblem) {
	if p, ok := h.absent[name]; ok {
		all = append(all, p)
	}
	return append(all, h.settings...)
}

// lookAtInterfaces finds interfaces that tunnels intercept at and that this host does not have.
// The rules go by name, so they hold again once it is back.
func (h *hostFaults) lookAtInterfaces(tunnels []intercept.Tunnel) {
	absent := map[string]flow.HostProblem{}
	seen := map[string]bool{}
	for _, t := range tunnels {
		if seen[t.Interface] {
			continue
		}
		seen[t.Interface] = true
		state, ok := interfaceState(t.Interface)
		was, before := h.absent[t.Interface]
		switch {
		case ok && before:
			h.log.Info("the interface is back: its tunnels intercept again", "interface", t.Interface)
		case !ok:
			p := flow.HostProblem{Part: flow.HostInterface, Problem: "the interface " + t.Interface + " is " + state + ": no connection comes by it",
				Fix: "ip link show " + t.Interface, Since: time.Now(), Blocks: true}
			if before {
				p.Since = was.Since
			}
			if was.Problem != p.Problem {
				h.log.Warn(p.Problem, "interface", t.Interface, "remedy", p.Fix)
			}
			absent[t.Interface] = p
		}
	}
	h.absent = absent
}

// foundSettings notes settings of the host with which interception does not work. After an error, as of a
// process without a free descriptor, those of before stay until the next look.
func (h *hostFaults) foundSettings(problems []error, err error) {
	if err != nil {
		return
	}
	var now []flow.HostProblem
	has := func(all []flow.HostProblem, text string) int {
		return slices.IndexFunc(all, func(p flow.HostProblem) bool { return p.Problem == text })
	}
	for _, err := range problems {
		p := flow.HostProblem{Part: flow.HostSetting, Problem: err.Error(), Fix: remedy.Of(err), Since: time.Now()}
		if at := has(h.settings, p.Problem); at >= 0 {
			p.Since = h.settings[at].Since
		} else {
			h.log.Warn("a setting of this host was changed, and stays as it is: "+p.Problem, "remedy", p.Fix)
		}
		now = append(now, p)
	}
	for _, p := range h.settings {
		if has(now, p.Problem) < 0 {
			h.log.Info("a setting of this host is again as interception needs it", "before", p.Problem)
		}
	}
	h.settings = now
}

// interfaceState says whether an interface is there and up, and else how it is.
func interfaceState(name string) (state string, ok bool) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", true // unknown
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return "", true
	}
	switch err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); {
	case errors.Is(err, unix.ENODEV):
		return "gone", false
	case err != nil:
		return "", true
	case request.Uint16()&unix.IFF_UP == 0:
		return "down", false
	}
	return "", true
}
