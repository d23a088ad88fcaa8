package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// Target is where a service is: one of its SRV records (RFC 2782).
type Target struct {
	Host     string `json:"host"` // in lower case, without a final dot; always a full name
	Port     uint16 `json:"port"`
	Priority uint16 `json:"priority"` // the lowest is used first
	Weight   uint16 `json:"weight"`   // of its share among targets of its priority; 0: the least
}

// parseService returns the domain of a name with SRV records, _NAME._tcp.DOMAIN (RFC 2782), and
// whether the name has that form.
func parseService(name string) (domain string, ok bool) {
	service, domain, ok := strings.Cut(name, "._tcp.")
	service, underscored := strings.CutPrefix(service, "_")
	domain = strings.TrimSuffix(domain, ".")
	ok = ok && underscored && isLabel(service) && len(service) < maxLabelBytes && !strings.Contains(service, "_")
	for label := range strings.SplitSeq(domain, ".") {
		ok = ok && isLabel(label)
	}
	return domain, ok
}

// maxLabelBytes bounds a label of a name (RFC 1035, section 2.3.4).
const maxLabelBytes = 63

// isLabel reports whether a label has letters, digits, hyphens and underscores only.
func isLabel(s string) bool {
	for _, b := range []byte(s) {
		if (b < '0' || b > '9') && (b|0x20 < 'a' || b|0x20 > 'z') && b != '-' && b != '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxLabelBytes
}

// maxNameBytes bounds a name without its final dot (RFC 1035, section 2.3.4).
const maxNameBytes = 253

// CheckService returns the error of a name that is no service's.
func CheckService(name string) error {
	if _, ok := parseService(name); !ok || len(name) > maxNameBytes {
		return remedy.New(fmt.Errorf("invalid service %q", printable.String(name)), "write it like _longhaul._tcp.example.net")
	}
	return nil
}

// ServiceDomain is the domain of a service, in lower case.
func ServiceDomain(name string) string {
	domain, _ := parseService(name)
	return strings.ToLower(domain)
}

// LookupService returns the targets of a service, by priority, then the heaviest first, then by name and
// port: in the same order for the same records. Records that lead nowhere are left out: those with the
// target "." or port 0, and those whose target is no host name. A target twice counts as its first one.
// The errors are those of [net.Resolver.LookupSRV].
func LookupService(ctx context.Context, r *net.Resolver, name string) ([]Target, error) {
	_, records, err := r.LookupSRV(ctx, "", "", strings.TrimSuffix(name, ".")+".")
	if err != nil && len(records) == 0 { // with records, it is about others that are left out
		return nil, err
	}
	return targetsOf(records), nil
}

func targetsOf(records []*net.SRV) []Target {
	var all []Target
	for _, s := range records {
		t := Target{strings.ToLower(strings.TrimSuffix(s.Target, ".")), s.Port, s.Priority, s.Weight}
		if t.Port != 0 && isHostName(t.Host) {
			all = append(all, t)
		}
	}
	sorted.By(all, func(a, b Target) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Weight, a.Weight), strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	type place struct {
		host string
		port uint16
	}
	known := map[place]bool{}
	return slices.DeleteFunc(all, func(t Target) bool {
		at := place{t.Host, t.Port}
		twice := known[at]
		known[at] = true
		return twice
	})
}

// isHostName reports whether a name may have addresses. One that ends in a number is an address, or its
// misspelling (RFC 1123, section 2.1), which an SRV record cannot have.
func isHostName(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if name == "" || len(name) > maxNameBytes || strings.Trim(last, "0123456789") == "" {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// noTargets is why a query about a service gave no target.
type noTargets struct {
	state flow.ServiceState
	text  string
}

func (e *noTargets) Error() string { return e.text }

// systemServices asks the name servers of this host. The error is a *noTargets.
func systemServices(ctx context.Context, name string) (Answer, error) {
	var heard overheard
	targets, err := LookupService(ctx, heard.resolver(), name)
	switch {
	case isNotFound(err) && heard.code() == dnsmessage.RCodeNameError:
		return Answer{}, &noTargets{flow.ServiceNoName, "the name does not exist (NXDOMAIN)"}
	case isNotFound(err):
		return Answer{}, &noTargets{flow.ServiceNoRecords, "the name has no SRV records"}
	case err != nil:
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			err = errors.New(dns.Err)
		}
		return Answer{}, &noTargets{flow.ServiceNoAnswer, printable.String(err.Error())}
	case len(targets) == 0:
		return Answer{}, &noTargets{flow.ServiceNoTarget, "its SRV records lead nowhere, such as to the target \".\""}
	}
	return Answer{Targets: targets, TTL: heard.ttl()}, nil
}

const (
	maxTargets     = 256              // that are kept of a service
	serviceTimeout = 30 * time.Second // of a query; the resolver has its own for each server
)

// Service is what the cache has of a service.
type Service struct {
	flow.Service
	// Targets are those of the last answer that had some, in the order of [LookupService], and at most 256.
	// The list is empty before the first answer, and once the last one is a day old.
	Targets []Target
}

// followed is the state of a service. Its answers are those of [Cache.Follow].
type followed struct {
	Service
	answered time.Duration // Answered, of the monotonic clock
	first    chan struct{} // closed after the first query; nil: it is not followed
}

// Follow asks for the targets of a service, and again whenever the answer expires, once a second at most,
// until stop is called. Unlike an address, an answer with targets stays in force while later ones have none,
// whatever they say: a service that is withdrawn by mistake must not take its users along. It does so for
// a day. After each query that changes what [Cache.Service] returns it calls changed, which must not block
// or call the cache. first is closed after the first query.
func (n *Cache) Follow(name string, changed func()) (first <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(n.ctx)
	n.mu.Lock()
	s := n.services[name]
	if s == nil || s.tooOld() {
		s = &followed{Service: Service{Service: flow.Service{Name: name, State: flow.ServiceAsking, Since: time.Now()}}}
		n.services[name] = s
	}
	known := make(chan struct{})
	s.first = known
	n.mu.Unlock()
	n.running.Go(func() {
		for ask := n.askService(ctx, s, name, changed); ; ask = n.askService(ctx, s, name, changed) {
			select {
			case <-time.After(ask):
			case <-ctx.Done():
				return
			}
		}
	})
	return known, func() { // a query that waits for a silent server may last seconds longer; Close waits for it
		n.mu.Lock()
		defer n.mu.Unlock()
		cancel()
		s.first = nil
		for name, s := range n.services { // those that no answer of serves any more
			if s.first == nil && (len(s.Targets) == 0 || s.tooOld()) {
				delete(n.services, name)
			}
		}
	}
}

// askService asks once. It returns the time until the next query.
func (n *Cache) askService(ctx context.Context, s *followed, name string, changed func()) time.Duration {
	within, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	found, err := n.resolveService(within, name)
	n.mu.Lock()
	if ctx.Err() != nil { // another one may follow the service by now
		n.mu.Unlock()
		return 0
	}
	differs := s.take(found, err, monotime.Now())
	again := s.again()
	select {
	case <-s.first:
	default:
		close(s.first)
		differs = true
	}
	n.mu.Unlock()
	if differs {
		changed()
	}
	return again
}

// tooOld reports whether the last answer is too old to serve.
func (s *followed) tooOld() bool { return s.Targets != nil && monotime.Now() >= s.answered+maxStale }

// take takes the result of a query. It reports whether more than the times has changed.
func (s *followed) take(found Answer, err error, now time.Duration) (differs bool) {
	was := s.State
	switch {
	case err == nil:
		all := found.Targets
		differs = !slices.Equal(s.Targets, all[:min(len(all), maxTargets)]) || s.Found != len(all)
		s.Targets, s.Found = all[:min(len(all), maxTargets)], len(all)
		s.answered, s.Answered, s.TTL = now, time.Now(), units.Seconds(kept(found.TTL))
		s.State, s.Error = flow.ServiceAnswered, ""
	case s.tooOld():
		s.Targets, s.Found, differs = nil, 0, true
		fallthrough
	default:
		s.State, s.Error = flow.ServiceNoAnswer, err.Error()
		if why := (*noTargets)(nil); errors.As(err, &why) {
			s.State = why.state
		}
	}
	if s.State != was {
		s.Since, differs = time.Now(), true
	}
	return differs
}

// again is the time until the next query: until the answer expires. While there is none, it comes within
// the time of an answer that names no TTL.
func (s *followed) again() time.Duration {
	switch ttl := time.Duration(s.TTL); {
	case s.State == flow.ServiceAnswered:
		return ttl
	case ttl == 0:
		return failedTTL
	default:
		return min(ttl, defaultTTL)
	}
}

// Service returns what is known of a service that is followed, or was within a day.
func (n *Cache) Service(name string) Service {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.services[name]; s != nil && (s.first != nil || !s.tooOld()) {
		return s.Service
	}
	return Service{Service: flow.Service{Name: name, State: flow.ServiceAsking}}
}
