// Package mss changes the maximum segment size that TCP connections through this host
// announce. It raises the MSS if a path carries more than one end assumes, and clamps
// it if the path carries less. A BPF program at the tc hooks of a device rewrites
// forwarded and local connections, without a kernel module.
//
// The program is the same for all rules, which are one table. The table in force is the only entry of a map
// of maps, so a change takes effect in one step, for both hooks, and loads no program. A program for each
// rule would run them all for every packet. The links stand before other programs on the device, whose
// verdicts would hide SYNs.
//
// Rules outlive the command that set them. Pins on the BPF filesystem hold them, in
// one directory for each device of each network namespace:
//
//	/sys/fs/bpf/longhaul/mss/NAMESPACE-DEVICE/   by ledger.Here and index
//	    mss_tables    the rules in force
//	    mss_counters  their counters
//	    egress        links: made last, removed first
//	    ingress
//
// So a crash at any point leaves either rules in force, or a directory without a link.
// [Host.List] shows the latter as not in force, and the next change clears or
// completes it. The owners of rules are in the [ledger]. On a kernel without tcx links
// (before Linux 6.6) the program is a filter of the clsact qdisc.
package mss

//go:generate ../../../bpf/build mss

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/sys/bpffs"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/sorted"
)

// Host is this machine, in the calling thread's network namespace. Its methods
// may be called from several processes at once.
type Host struct {
	BPFFS  string // mount point of the BPF filesystem
	Ledger string // directory of the ledger
	By     ledger.By
	DryRun bool // only say what would change
	// Clsact attaches programs as filters even on kernels with links.
	Clsact bool
}

// NewHost returns this machine. by claims what is changed.
func NewHost(by ledger.By) *Host {
	return &Host{BPFFS: bpffs.DefaultRoot, Ledger: ledger.DefaultDir, By: by}
}

// Errors that callers distinguish. Each comes wrapped.
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

// SetResult is the result of [Host.Set].
type SetResult struct {
	Changed  bool // false: already so
	Replaced *Rule
	Hook     string // how the program is attached: "tcx" or "clsact"
	// Dropped are rules that were no longer in force, because the device was
	// recreated or the program was removed.
	Dropped []Rule
}

// SetOptions are the options of [Host.Set] besides the rule.
type SetOptions struct {
	// Arrives: a probe received full packets. The MTU of the device, which bounds
	// only sent packets, is then no bound for the value.
	Arrives bool
}

// CheckSet returns the error that [Host.Set] would return, without a change.
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
	if err := needPrivilege(); err != nil {
		return device{}, err
	}
	if (rule.Action == ClampToRoute || rule.Action == ClampToPMTU) && !lookupReturnsMTU() {
		return device{}, &kernel.ErrUnsupported{
			Feature: "clamping to the MTU of a route",
			Needs:   "a kernel whose bpf_fib_lookup returns it (Linux 5.12): clamp to a number of bytes",
		}
	}
	return d, nil
}

// Set adds a rule, or replaces the rule for the same data, and claims it. The error is
// an [*kernel.ErrUnsupported] if the kernel or the privilege does not allow it.
func (h *Host) Set(ctx context.Context, rule Rule, o SetOptions) (SetResult, error) {
	d, err := h.checkSet(rule, o)
	if err != nil {
		return SetResult{}, err
	}
	namespace, err := ledger.Here()
	if err != nil {
		return SetResult{}, err
	}
	a := attachment{dirName(namespace, d.index), namespace, d.index, true}
	if h.DryRun {
		return h.wouldSet(a, rule)
	}
	if err := h.pins().Mount("a device of another network namespace is reached with --netns"); err != nil {
		return SetResult{}, err
	}
	book, err := ledger.Open(h.Ledger, false)
	if err != nil {
		return SetResult{}, err
	}
	defer book.Close()
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return SetResult{}, err
	}
	defer unlock()
	if err := h.repair(book); err != nil {
		return SetResult{}, err
	}
	return h.setAndRecord(book, d, a, rule)
}

// setAndRecord is Set under both locks.
func (h *Host) setAndRecord(book *ledger.Book, d device, a attachment, rule Rule) (result SetResult, err error) {
	existed, err := h.pins().Exists(a.dir)
	if err != nil {
		return SetResult{}, err
	}
	var dropped []Rule
	if existed {
		var dead bool
		if dropped, dead, err = h.dropDead(a); err != nil {
			return SetResult{}, err
		}
		existed = !dead
	}
	if !existed {
		h.forgetDevice(book, a)
	}
	now, err := h.ruleFor(a, rule)
	if err != nil {
		return SetResult{}, err
	}
	restore := book.Snapshot()
	e := h.recordSet(book, a, rule, now)
	if err := book.Save(); err != nil {
		return SetResult{}, err
	}
	if result, err = h.install(d, a, rule); err != nil {
		restore()
		return SetResult{}, errors.Join(err, book.Save())
	}
	result.Dropped = dropped
	e.Pending = nil
	return result, book.Save()
}

// wouldSet returns the outcome of Set without a change.
func (h *Host) wouldSet(a attachment, rule Rule) (SetResult, error) {
	now, err := h.ruleFor(a, rule)
	if err != nil {
		return SetResult{}, err
	}
	result := SetResult{Changed: now == nil || *now != rule}
	if result.Changed {
		result.Replaced = now
	}
	return result, nil
}

// needPrivilege returns an error if the process lacks privilege. Reading the rules in
// force needs CAP_SYS_ADMIN.
func needPrivilege() error {
	return kernel.CheckBPF(feature, kernel.BPF, kernel.NetAdmin, kernel.SysAdmin)
}

// install puts a rule in force, in place of the rule for the same data. The caller holds
// the lock.
func (h *Host) install(d device, a attachment, rule Rule) (result SetResult, err error) {
	existed, err := h.pins().Exists(a.dir)
	if err != nil {
		return SetResult{}, err
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
		return SetResult{}, fmt.Errorf("%w: undo some of %s", ErrFull, d.name)
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

// Status is a rule with its counters.
type Status struct {
	Rule
	ID        uint32 `json:"id"`
	Namespace uint64 `json:"-"`
	// Matched counts the SYNs that matched the rule, Rewritten those whose MSS it
	// changed. It does not change a SYN with the wanted MSS, or a signed one.
	Matched   uint64 `json:"matched"`
	Rewritten uint64 `json:"rewritten"`
	// The last changed SYN.
	LastOld int           `json:"last_old,omitempty"`
	LastNew int           `json:"last_new,omitempty"`
	LastAgo time.Duration `json:"-"`
	// Hook is how the program is attached, "tcx" or "clsact". It is empty if the
	// rule is not in force; Problem then has the reason.
	Hook    string `json:"hook,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Claims are those in the ledger, the one in force last.
	Claims []ledger.Claim `json:"claims,omitempty"`
}

// List lists the rules of this network namespace, by device and in order of precedence.
func (h *Host) List() ([]Status, error) {
	attachments, err := h.attachments(false)
	if err != nil || len(attachments) == 0 {
		return nil, err
	}
	if err := needPrivilege(); err != nil {
		return nil, err
	}
	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, a := range attachments {
		some, err := h.show(a)
		if err != nil {
			return nil, err
		}
		for i := range some {
			if e := book.Find(key(a, some[i].Rule)); e != nil {
				some[i].Claims = e.Claims
			}
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

// attachments returns the attachments of this network namespace, or all of them.
func (h *Host) attachments(all bool) ([]attachment, error) {
	if !h.pins().Mounted() {
		return nil, nil
	}
	here, err := ledger.Here()
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
	sorted.By(list, func(a, b attachment) int { return a.index - b.index })
	return list, nil
}
