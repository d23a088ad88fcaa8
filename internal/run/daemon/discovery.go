package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
)

// discovery is the part of the services whose SRV records are the hops of tunnels. It fills them into the
// plan, so that the parts behind it see the hops of a file. Another answer is a change of those parts alone.
type discovery struct {
	names *names.Cache
	lines *loglimit.Limiter
	note  func(kind, tunnel, name, state, detail string) // takes a state that may have changed
	news  chan struct{}                                  // that an answer differs

	mu       sync.Mutex // guards the fields below, which status reads from other goroutines
	begun    bool       // a configuration is in force
	followed map[string]func()
	current  map[string]discovered // by tunnel
	said     map[string]flow.ServiceState
}

// discovered are the hops of a tunnel with a service, as in force.
type discovered struct {
	service string
	hops    []config.Forward
	leftOut []string // targets beyond those that a tunnel may have, the first of them
	ignored int      // further ones
}

const (
	firstAnswerPatience = 2 * time.Second // for the first answers at the start and at a reload
	rediscoverPause     = time.Second     // after a change that failed
	maxLeftOut          = 16              // that status names
)

func newDiscovery(log *slog.Logger, names *names.Cache) *discovery {
	return &discovery{names: names, lines: loglimit.New(log), note: func(_, _, _, _, _ string) {}, news: make(chan struct{}, 1),
		followed: map[string]func(){}, current: map[string]discovered{}, said: map[string]flow.ServiceState{}}
}

// differ has the main loop look at the services.
func (d *discovery) differ() {
	select {
	case d.news <- struct{}{}:
	default: // it will
	}
}

// discoveryChange is the services of a configuration before their commit.
type discoveryChange struct {
	of    *discovery
	next  map[string]discovered
	fresh map[string]func() // services that begin to be followed
}

// Prepare fills in the hops of services. Those that are new get a moment for their first answer. At a reload
// that does not go back they need one: the tunnel's hops until then would be lost for a misspelt name.
func (d *discovery) Prepare(ctx context.Context, p *plan) (Change, error) {
	change := &discoveryChange{of: d, next: map[string]discovered{}, fresh: map[string]func(){}}
	var waits []<-chan struct{}
	d.mu.Lock()
	begun := d.begun
	for i := range p.Tunnels {
		service := p.Tunnels[i].Service
		if service == "" || d.followed[service] != nil || change.fresh[service] != nil {
			continue
		}
		first, stop := d.names.Follow(service, d.differ)
		change.fresh[service] = stop
		if len(d.names.Service(service).Targets) == 0 {
			waits = append(waits, first)
		}
	}
	d.mu.Unlock()
	patience, cancel := context.WithTimeout(ctx, firstAnswerPatience)
	defer cancel()
	for _, first := range waits {
		select {
		case <-first:
		case <-patience.Done():
		}
	}
	if ctx.Err() != nil {
		change.Abort()
		return nil, context.Cause(ctx)
	}
	for service := range change.fresh {
		if s := d.names.Service(service); begun && !p.back && len(s.Targets) == 0 {
			change.Abort()
			return nil, noHops(&s.Service)
		}
	}
	c := *p.Config
	c.Tunnels = slices.Clone(c.Tunnels)
	for i := range c.Tunnels {
		if t := &c.Tunnels[i]; t.Service != "" {
			found := hopsOf(d.names.Service(t.Service).Targets)
			found.service, t.Forward = t.Service, found.hops
			change.next[t.Name] = found
		}
	}
	if len(change.next) > 0 {
		p.Config = &c // the configuration in force stays as it is
	}
	return change, nil
}

// Commit begins to show the hops, and stops to ask for services that no tunnel has.
func (c *discoveryChange) Commit() {
	d := c.of
	d.mu.Lock()
	before := d.current
	d.begun, d.current = true, c.next
	maps.Copy(d.followed, c.fresh)
	wanted := map[string]bool{}
	for _, t := range c.next {
		wanted[t.service] = true
	}
	var stops []func()
	for service, stop := range d.followed {
		if !wanted[service] {
			stops = append(stops, stop)
			delete(d.followed, service)
			delete(d.said, service)
		}
	}
	d.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	d.tell(before, c.next)
}

// Abort stops to ask for services that are new.
func (c *discoveryChange) Abort() {
	for _, stop := range c.fresh {
		stop()
	}
}

// close stops all queries.
func (d *discovery) close() {
	d.mu.Lock()
	stops := d.followed
	d.followed = map[string]func(){}
	d.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	d.lines.Close()
}

// look reports whether a service has other hops than those in force. It logs what services answer once
// that changes.
func (d *discovery) look() (differs bool) {
	d.lines.Flush()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, now := range d.current {
		found := hopsOf(d.names.Service(now.service).Targets)
		differs = differs || !slices.Equal(found.hops, now.hops) || !slices.Equal(found.leftOut, now.leftOut) || found.ignored != now.ignored
	}
	for service := range d.followed {
		s := d.names.Service(service)
		was, said := d.said[service]
		if s.State == flow.ServiceAsking || said && was == s.State {
			continue
		}
		d.note(flow.EventService, "", service, string(s.State), s.Error)
		if d.said[service] = s.State; !said && s.State == flow.ServiceAnswered {
			continue
		}
		attrs := []slog.Attr{slog.String("service", service), slog.String("state", string(s.State))}
		switch {
		case s.State == flow.ServiceAnswered:
			d.lines.LogBurst(serviceBurst, slog.LevelInfo, "a service has targets again", []string{"service"}, attrs...)
		case len(s.Targets) > 0:
			d.lines.LogBurst(serviceBurst, slog.LevelWarn, "a service has no targets, its last ones stay in force for a day", []string{"service"},
				append(attrs, slog.String("error", s.Error), slog.Time("answered", s.Answered))...)
		default:
			d.lines.LogBurst(serviceBurst, slog.LevelWarn, "a service has no targets, its tunnels have no hop", []string{"service"},
				append(attrs, slog.String("error", s.Error), slog.String("remedy", remedy.Of(noHops(&s.Service))))...)
		}
	}
	return differs
}

// serviceBurst is how many lines of a kind about a service are written at once.
const serviceBurst = 4

// tell logs which hops tunnels gain and lose.
func (d *discovery) tell(before, now map[string]discovered) {
	for _, tunnel := range slices.Sorted(maps.Keys(now)) {
		was, is := before[tunnel], now[tunnel]
		if slices.Equal(was.hops, is.hops) {
			continue
		}
		d.lines.LogBurst(serviceBurst, slog.LevelInfo, "the hops of a service have changed", []string{"tunnel"}, slog.String("tunnel", tunnel),
			slog.String("service", is.service), slog.Int("hops", len(is.hops)), slog.String("added", lacking(is.hops, was.hops)), slog.String("removed", lacking(was.hops, is.hops)))
	}
}

// lacking lists the first hops of all that are not among others.
func lacking(all, others []config.Forward) string {
	var names []string
	for _, f := range all {
		if !slices.ContainsFunc(others, func(o config.Forward) bool { return o.String() == f.String() }) {
			names = append(names, f.String())
		}
	}
	if more := len(names) - maxLeftOut; more > 0 {
		names = append(names[:maxLeftOut], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, " ")
}

// noHops is why a service gives no hops.
func noHops(s *flow.Service) error {
	why := s.Error
	if why == "" {
		why = "no answer yet"
	}
	return remedy.New(fmt.Errorf("the service %s has no targets: %s", s.Name, why), s.Remedy())
}

// hopsOf are the hops of a service's targets: as many of the first ones as a tunnel may have, with the ranks
// of their priorities as priorities, and with weights that keep their ratios among hops of equal priority.
// A weight of 0 is the least one. The names are complete.
func hopsOf(targets []names.Target) (d discovered) {
	rank := 0
	for i := 0; i < len(targets); {
		group := targets[i:]
		if end := slices.IndexFunc(group, func(t names.Target) bool { return t.Priority != group[0].Priority }); end > 0 {
			group = group[:end]
		}
		i, rank = i+len(group), rank+1
		weight := scaleOf(group)
		for _, t := range group {
			if len(d.hops) < config.MaxHops {
				d.hops = append(d.hops, config.Forward{Host: t.Host + ".", Ports: portrange.Range{First: t.Port, Last: t.Port}, Weight: weight(t.Weight), Priority: rank})
			} else if len(d.leftOut) < maxLeftOut {
				d.leftOut = append(d.leftOut, net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))))
			} else {
				d.ignored++
			}
		}
	}
	return d
}

// scaleOf maps the weights of targets of one priority, the heaviest of which is the first, to those of hops.
func scaleOf(group []names.Target) func(uint16) int {
	most, zero := int(group[0].Weight), group[len(group)-1].Weight == 0
	return func(w uint16) int {
		weight := int(w)
		switch {
		case most > config.MaxWeight:
			weight = int(math.Round(float64(w) * config.MaxWeight / float64(most)))
		case zero && most > 0:
			weight *= config.MaxWeight / most
		}
		return max(1, weight)
	}
}

// add shows the services of tunnels.
func (d *discovery) add(tunnels []flow.Tunnel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.current) == 0 {
		return
	}
	for i := range tunnels {
		now, has := d.current[tunnels[i].Name]
		if !has {
			continue
		}
		s := d.names.Service(now.service).Service
		s.LeftOut = now.leftOut
		tunnels[i].Service = &s
	}
}

// filled are tunnels with the hops of their services.
func (d *discovery) filled(tunnels []config.Tunnel) []config.Tunnel {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.current) == 0 {
		return tunnels
	}
	tunnels = slices.Clone(tunnels)
	for i := range tunnels {
		if t := &tunnels[i]; t.Service != "" {
			t.Forward = d.current[t.Name].hops
		}
	}
	return tunnels
}

// rediscover puts what services answer now into force. No file is read again.
func (d *daemon) rediscover(ctx context.Context) {
	if !d.discovery.look() {
		return
	}
	p := d.plan(d.life.config)
	p.onlyHops = true
	if err := change(ctx, d.leading, p); err != nil {
		d.discovery.lines.Log(slog.LevelError, "cannot take the hops of a service, those before stay", nil, slog.Any("error", err))
		time.AfterFunc(rediscoverPause, d.discovery.differ)
	}
}
