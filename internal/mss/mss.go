// Package mss changes the maximum segment size that TCP connections through
// this host announce: raised where a path carries more than one end believes,
// clamped where it carries less. A BPF program at the tc hooks of a device does
// it, for forwarded and for local connections, with no kernel module.
//
// What is set outlives the command that set it. It is held by pins on the BPF
// filesystem, in one directory for each device of each network namespace:
//
//	/sys/fs/bpf/longhaul/mss/NAMESPACE-DEVICE/   by cookie and index
//	    mss_tables    the rules in force
//	    mss_counters  what they did
//	    egress        links: made last, removed first
//	    ingress
//
// So a crash at any point leaves either rules in force, or a directory without
// a link, which [Host.Show] shows as not in force and which the next change
// clears or completes. Where the kernel has no tcx links (before Linux 6.6) the
// program is a filter of the clsact qdisc instead.
package mss

//go:generate ../../bpf/build mss

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/bpffs"
	"longhaul/internal/kernel"
)

// Host is this machine, in the calling thread's network namespace. Its methods
// may be called from several processes at once.
type Host struct {
	BPFFS string // where the BPF filesystem is, or is to be mounted
	// Clsact has programs attached as filters even where there are links.
	Clsact bool
}

// NewHost is this machine.
func NewHost() *Host { return &Host{BPFFS: bpffs.DefaultRoot} }

// Errors that callers tell apart. Each comes wrapped in a sentence.
var (
	ErrNoDevice = errors.New("no such device")
	ErrFull     = fmt.Errorf("a device takes up to %d rules", maxRules)
)

const feature = "rewriting the MSS"

func (h *Host) pins() bpffs.Dir { return bpffs.Dir{Root: h.BPFFS, Feature: "mss"} }

func dirName(namespace uint64, index int) string { return fmt.Sprintf("%d-%d", namespace, index) }

func parseDirName(name string) (namespace uint64, index int, ok bool) {
	first, second, _ := strings.Cut(name, "-")
	namespace, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	index, err = strconv.Atoi(second)
	return namespace, index, err == nil
}

// SetResult is what became of a [Host.Set].
type SetResult struct {
	Changed  bool // false: already so
	Replaced *Rule
	Hook     string // how the program is attached: "tcx" or "clsact"
	// Dropped are rules that were no longer in force, because the device was
	// deleted and made anew, or the program was removed.
	Dropped []Rule
}

// SetOptions are what [Host.Set] is told besides the rule.
type SetOptions struct {
	// Arrives: full packets were seen to arrive, so that the MTU of the
	// device, which bounds what it sends, is no bound for the value.
	Arrives bool
}

// CheckSet says what would keep [Host.Set] from putting a rule into force,
// without doing anything.
func (h *Host) CheckSet(rule Rule, o SetOptions) error {
	_, err := h.checkSet(rule, o)
	return err
}

func (h *Host) checkSet(rule Rule, o SetOptions) (device, error) {
	if err := rule.Check(); err != nil {
		return device{}, err
	}
	d, err := findDevice(rule.Device)
	if err != nil {
		return device{}, err
	}
	if err := rule.checkOn(d); err != nil && !o.Arrives {
		return device{}, err
	}
	return d, needPrivilege()
}

// Set puts a rule into force, in place of one for the same data if there is
// one. The error is an [*kernel.ErrUnsupported] where the kernel or the
// privilege does not allow it.
func (h *Host) Set(ctx context.Context, rule Rule, o SetOptions) (SetResult, error) {
	d, err := h.checkSet(rule, o)
	if err != nil {
		return SetResult{}, err
	}
	if err := h.pins().Mount("a device of another network namespace is reached with --netns"); err != nil {
		return SetResult{}, err
	}
	namespace, err := kernel.NetNSCookie()
	if err != nil {
		return SetResult{}, err
	}
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return SetResult{}, err
	}
	defer unlock()
	return h.set(d, attachment{dirName(namespace, d.index), namespace, d.index, true}, rule)
}

// needPrivilege says what the process lacks. CAP_SYS_ADMIN is needed to read
// back which rules are in force.
func needPrivilege() error {
	return kernel.CheckBPF(feature, kernel.BPF, kernel.NetAdmin, kernel.SysAdmin)
}

// set does what Set does, under the lock.
func (h *Host) set(d device, a attachment, rule Rule) (result SetResult, err error) {
	existed, err := h.pins().Exists(a.dir)
	if err != nil {
		return SetResult{}, err
	}
	if existed {
		var dead bool
		if result.Dropped, dead, err = h.dropDead(a); err != nil {
			return SetResult{}, err
		}
		existed = !dead
	}
	if err := os.MkdirAll(h.pins().Path(a.dir), 0o700); err != nil {
		return SetResult{}, fmt.Errorf("make the directory of pins: %w", err)
	}
	if !existed {
		defer func() {
			if err != nil {
				err = errors.Join(err, h.remove(a))
			}
		}()
	}
	p, err := loadProgram(h.pins().Path(a.dir), d)
	if err != nil {
		return SetResult{}, err
	}
	defer p.Close()

	rules, err := p.rules(d.name)
	if err != nil {
		return SetResult{}, err
	}
	next := numbered{id: 1, rule: rule}
	for _, n := range rules {
		next.id = max(next.id, n.id+1)
	}
	result.Changed = true
	i := slices.IndexFunc(rules, func(n numbered) bool { return n.rule.sameData(rule) })
	switch {
	case i >= 0 && rules[i].rule == rule:
		result.Changed = false
	case i >= 0:
		replaced := rules[i].rule
		result.Replaced = &replaced
		rules[i] = next
	case len(rules) == maxRules:
		return SetResult{}, fmt.Errorf("%w: clear some of %s", ErrFull, d.name)
	default:
		rules = append(rules, next)
	}
	if result.Changed {
		if err := p.put(rules); err != nil {
			return SetResult{}, err
		}
	}
	result.Hook, err = h.attach(a, d, p)
	return result, err
}

// Status is a rule and what it did.
type Status struct {
	Rule
	ID        uint32 `json:"id"`
	Namespace uint64 `json:"-"`
	// Matched are the SYNs that the rule was for, Rewritten those whose MSS it
	// changed. It changes none that is as wanted already, or that is signed.
	Matched   uint64 `json:"matched"`
	Rewritten uint64 `json:"rewritten"`
	// The last one that it changed.
	LastOld int           `json:"last_old,omitempty"`
	LastNew int           `json:"last_new,omitempty"`
	LastAgo time.Duration `json:"-"`
	// Hook is how the program is attached, "tcx" or "clsact". It is empty if
	// the rule is not in force, which Problem explains.
	Hook    string `json:"hook,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Show lists the rules of this network namespace, or of all, by device and in
// the order in which they are tried.
func (h *Host) Show(all bool) ([]Status, error) {
	attachments, err := h.attachments(all)
	if err != nil || len(attachments) == 0 {
		return nil, err
	}
	if err := needPrivilege(); err != nil {
		return nil, err
	}
	var list []Status
	for _, a := range attachments {
		some, err := h.show(a)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// attachment is a directory of pins.
type attachment struct {
	dir       string
	namespace uint64
	index     int
	here      bool
}

// attachments are those of this network namespace, or all of them.
func (h *Host) attachments(all bool) ([]attachment, error) {
	if !h.pins().Mounted() {
		return nil, nil
	}
	here, err := kernel.NetNSCookie()
	if err != nil {
		return nil, err
	}
	names, err := h.pins().Names()
	if err != nil {
		if os.IsPermission(err) {
			return nil, needPrivilege()
		}
		return nil, err
	}
	var list []attachment
	for _, name := range names {
		namespace, index, ok := parseDirName(name)
		if ok && (all || namespace == here) {
			list = append(list, attachment{name, namespace, index, namespace == here})
		}
	}
	slices.SortFunc(list, func(a, b attachment) int { return a.index - b.index })
	return list, nil
}

// ClearResult is what a [Host.Clear] removed.
type ClearResult struct {
	Rules []Rule `json:"rules"`
	// Leftovers are devices for which something was attached or pinned
	// without a rule, by a command that did not come to its end.
	Leftovers int `json:"leftovers,omitempty"`
}

// Clear removes the rules of this network namespace for which which says so,
// and with the last rule of a device all that was attached to it. If all, it
// looks at the rules of other network namespaces, too.
func (h *Host) Clear(ctx context.Context, all bool, which func(Rule, uint32) bool) (ClearResult, error) {
	var result ClearResult
	attachments, err := h.attachments(all)
	if err != nil || len(attachments) == 0 {
		return result, err
	}
	if err := needPrivilege(); err != nil {
		return result, err
	}
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return result, err
	}
	defer unlock()
	if attachments, err = h.attachments(all); err != nil {
		return result, err
	}
	for _, a := range attachments {
		if err := h.clear(a, which, &result); err != nil {
			return result, err
		}
	}
	return result, nil
}

// clear does what Clear does to one device, under the lock.
func (h *Host) clear(a attachment, which func(Rule, uint32) bool, result *ClearResult) error {
	name := a.deviceName()
	p, err := openMaps(h.pins().Path(a.dir))
	var rules []numbered
	if err == nil {
		defer p.Close()
		rules, err = p.rules(name)
	}
	if err != nil {
		// Made by another version, or never completed: it can only go as a
		// whole.
		if which(Rule{Device: name}, 0) {
			result.Leftovers++
			return h.remove(a)
		}
		return nil
	}
	var keep []numbered
	for _, n := range rules {
		if which(n.rule, n.id) {
			result.Rules = append(result.Rules, n.rule)
		} else {
			keep = append(keep, n)
		}
	}
	switch {
	case len(keep) == 0:
		if len(rules) == 0 {
			result.Leftovers++
		}
		return h.remove(a)
	case len(keep) < len(rules):
		return p.put(keep)
	}
	return nil
}
