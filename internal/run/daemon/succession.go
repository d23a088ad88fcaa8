package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"longhaul/internal/carry/handover"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/carry/usable"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// Timeouts of the steps of an upgrade.
const (
	ReadyPatience   = 30 * time.Second // for the new process to read its configuration
	ServingPatience = 10 * time.Second // for each process, for a step of the handover
)

// inheritance is the state that passes to the successor, beside the sockets.
type inheritance struct {
	ControlSocket string         `json:"control_socket,omitempty"` // of the old process before the handover
	Older         []olderProcess `json:"elders,omitempty"`         // the old process itself is the last; the key is that of earlier programs
	Drained       []string       `json:"drained,omitempty"`        // tunnels
	Hops          []hops.Memory  `json:"hops,omitempty"`
	Names         []names.Memory `json:"names,omitempty"`
	Pairs         []olderPair    `json:"pairs,omitempty"`        // of all processes with flows of pairs
	Links         []linkMemory   `json:"links,omitempty"`        // of near tunnels whose pair has stood
	TrustedList   string         `json:"trusted_list,omitempty"` // the name of this relay's, see listName
	States        usable.Memory  `json:"states,omitzero"`

	Intercepted []intercept.Tunnel `json:"intercepted,omitempty"` // that may have flows
	Dialers     []intercept.Dialer `json:"dialers,omitempty"`     // likewise
	Cleared     bool               `json:"cleared,omitempty"`     // the operator has taken the rules of interception back
}

// introduction is the message of a successor that is ready.
type introduction struct {
	Version       string `json:"version"`
	ControlSocket string `json:"control_socket,omitempty"` // of the successor, once it serves
}

// Upgraded is the answer of POST /v1/upgrade.
type Upgraded struct {
	OldPID        int     `json:"old_pid"`
	OldVersion    string  `json:"old_version"`
	NewPID        int     `json:"new_pid"`
	NewVersion    string  `json:"new_version"`
	Seconds       float64 `json:"seconds"`
	FlowsLeft     int64   `json:"flows_left"`               // in the old process
	ControlSocket string  `json:"control_socket,omitempty"` // of the old process after the handover
}

// upgradeRequest asks the daemon's loop for an upgrade.
type upgradeRequest struct {
	ctx     context.Context // ends when the client disconnects
	program string          // empty: the path that started this process
	within  time.Duration   // for the flows left in this process; negative: no bound
	answer  chan upgradeAnswer
}

type upgradeAnswer struct {
	Upgraded
	err error
}

func (o *orders) upgrade(ctx context.Context, arguments url.Values) (any, error) {
	r := upgradeRequest{ctx: ctx, program: arguments.Get("binary"), within: -1, answer: make(chan upgradeAnswer, 1)}
	var err error
	if r.within, err = drainTimeout(arguments, r.within); err != nil {
		return nil, err
	}
	if os.Getpid() == 1 {
		return nil, remedy.New(errors.New("this relay is the first process of its container, which ends with it"), "replace the container instead")
	}
	if err := o.life.enter(upgrading); err != nil {
		return nil, err
	}
	select {
	case o.upgrades <- r:
	case <-o.ending:
		return nil, remedy.New(errors.New("the relay is stopping"), "start it again")
	}
	a := <-r.answer
	return a.Upgraded, a.err
}

// upgrade starts a successor of this process. It returns false if that failed and
// nothing has changed, with the signal that interrupted it, if any.
func (d *daemon) upgrade(ctx context.Context, signals <-chan os.Signal, r upgradeRequest) (done bool, stop os.Signal) {
	if err := d.life.confirmation.refuseUpgrade(); err != nil {
		_ = d.life.enter(serving)
		r.answer <- upgradeAnswer{err: err}
		return false, nil
	}
	began := time.Now()
	raising, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	d.manager.reloading("upgrading")

	type outcome struct {
		successor *handover.Successor
		about     introduction
		err       error
	}
	ended := make(chan outcome, 1)
	go func() {
		successor, about, err := d.raise(raising, r.program)
		ended <- outcome{successor, about, err}
	}()
	hangup := false
	var o outcome
	for waiting := true; waiting; {
		select {
		case o = <-ended:
			waiting = false
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				hangup = true
				continue
			}
			stop = sig
			cancel()
		}
	}
	if o.err != nil {
		if err := d.relay.Reclaim(); err != nil {
			d.log.Error("cannot restore a listener after a failed upgrade", "error", remedy.Line(err))
		}
		d.rules.reclaim()
		_ = d.life.enter(serving)
		d.manager.ready(d.statusLine())
		d.log.Error("upgrade failed, this process serves on", "error", remedy.Line(o.err))
		r.answer <- upgradeAnswer{err: failedUpgrade(o.err)}
		if hangup && stop == nil {
			d.log.Info("reloading", "signal", syscall.SIGHUP.String())
			d.reload(ctx, 0)
		}
		return false, stop
	}
	// The successor accepts: the upgrade can no longer be undone.
	a := Upgraded{OldPID: os.Getpid(), OldVersion: d.Version, NewPID: o.successor.PID(), NewVersion: o.about.Version}
	d.passOnTo(o.about.ControlSocket)
	d.handOver(o.successor)
	if hangup {
		_ = syscall.Kill(a.NewPID, syscall.SIGHUP)
	}
	a.FlowsLeft, a.ControlSocket = d.relay.Flows(), d.control.aside()
	a.Seconds = display.Round(time.Since(began).Seconds(), 1e3)
	d.log.Info("upgraded: another process has taken over", "pid", a.NewPID, "version", a.NewVersion, "flows", a.FlowsLeft, "seconds", a.Seconds)
	r.answer <- upgradeAnswer{Upgraded: a}
	return true, stop
}

// raise starts the successor and returns when it accepts.
func (d *daemon) raise(ctx context.Context, program string) (s *handover.Successor, about introduction, err error) {
	p := handover.Program{Path: d.program, Args: slices.Clone(os.Args), Env: successorEnvironment(os.Environ()), Log: os.Stderr}
	if program != "" {
		p.Path, p.Args[0] = program, program
	}
	d.states.overview() // a change that nobody has seen is not the next process's
	bequest := inheritance{Drained: d.relay.Drained(), Hops: d.relay.Hops(), Names: d.relay.Names(),
		Older: d.past.older.living(), Links: d.pairs.links(), States: d.states.judge.Memory(), TrustedList: d.pairs.nameOfList()}
	inForce, cleared := d.rules.hold()
	bequest.Intercepted, bequest.Dialers, bequest.Cleared = inForce.Tunnels, inForce.Dialers, cleared
	if bequest.Pairs, err = d.pairs.bequeath(); err != nil {
		return nil, about, err
	}
	if c := d.control; c.server != nil {
		if err := c.server.StepAside(c.path); err != nil {
			return nil, about, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, c.server.StepBack(c.path))
			}
		}()
		bequest.ControlSocket = c.path
		bequest.Older = append(bequest.Older, olderProcess{os.Getpid(), c.aside()})
	}
	state, err := json.Marshal(bequest)
	if err != nil {
		return nil, about, err
	}
	listeners, err := d.relay.Listeners()
	if err != nil {
		return nil, about, err
	}
	offer := handover.Offer{State: state}
	for _, l := range listeners {
		offer.Sockets = append(offer.Sockets, handover.Socket(l))
	}
	defer func() { handover.CloseAll(offer.Sockets) }()
	for _, site := range d.keeper.sites {
		sockets, err := site.sockets()
		if err != nil {
			return nil, about, err
		}
		offer.Sockets = append(offer.Sockets, sockets...)
	}

	ready, cancel := context.WithTimeout(ctx, ReadyPatience)
	defer cancel()
	if s, err = handover.Start(ready, p, offer, d.Stderr); err != nil {
		return nil, about, err
	}
	said, err := s.Ready(ready)
	if err != nil {
		return nil, about, err
	}
	if err := json.Unmarshal(said, &about); err != nil {
		s.Kill()
		return nil, about, fmt.Errorf("read the answer of the new process: %w", err)
	}
	d.history.leaveShipping() // before the successor begins: no sink gets records from both
	step, cancel := context.WithTimeout(ctx, ServingPatience)
	defer cancel()
	if err = s.Serve(step); err != nil {
		d.history.resumeShipping()
	}
	return s, about, err
}

// successorEnvironment returns this process's environment without systemd's variables
// for this process.
func successorEnvironment(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		switch name {
		case "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", handover.Variable:
			return true
		}
		return false
	})
}

// failedUpgrade returns the client's error of a failed upgrade.
func failedUpgrade(err error) error {
	text := fmt.Sprintf("the upgrade failed, process %d serves on: %v", os.Getpid(), err)
	var failure *handover.Failure
	if errors.As(err, &failure) && failure.LastWords != "" {
		text += "; its last output:\n" + failure.LastWords
	}
	return remedy.New(errors.New(text), cmp.Or(remedy.Of(err), "fix that, and try again"))
}

// handOver leaves the service to a successor that already accepts.
func (d *daemon) handOver(successor *handover.Successor) {
	d.life.replace(successor.PID())
	// The successor answers health checks. A check that just reached this process
	// must not report its end.
	then := d.states.overview()
	d.states.judge.Tell(nil) // the rest is the successor's
	d.atHandOver.Store(&then)
	for _, site := range d.keeper.sites {
		site.leave(time.Second)
	}
	if err := d.relay.Relinquish(); err != nil {
		d.log.Error("cannot stop accepting", "error", err)
	}
	d.pairs.handOver()
	d.keeper.close() // the host is the successor's business
	// Before the successor's first message: systemd listens to one process.
	d.manager.passOn(successor.PID())
	// Until the successor has set its rules of interception, new connections need what this process listens to.
	ctx, cancel := context.WithTimeout(context.Background(), ServingPatience)
	defer cancel()
	if err := successor.Leave(ctx); err != nil {
		d.log.Warn("the new process does not say that it has begun", "error", err)
	}
	d.control.leavePlace()
}

// past is what a process has of those before it.
type past struct {
	predecessor *handover.Predecessor // while this process prepares to succeed it; else nil
	inherited   inheritance
	older       olderProcesses
}

// receive takes the sockets and the state of the predecessor, if there is one.
func (p *past) receive(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, ServingPatience)
	defer cancel()
	if p.predecessor, err = handover.Receive(ctx); p.predecessor == nil || err != nil {
		return err
	}
	if err := json.Unmarshal(p.predecessor.State, &p.inherited); err != nil {
		return fmt.Errorf("read the running relay's state: %w", err)
	}
	p.older.all = p.inherited.Older
	return nil
}

// introduce reports this process ready, and waits for the order to serve.
func (p *past) introduce(ctx context.Context, as introduction) error {
	if p.predecessor == nil {
		return nil
	}
	about, err := json.Marshal(as)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ReadyPatience)
	defer cancel()
	return p.predecessor.Ready(ctx, about)
}

// sockets are those of the relay, of HTTP and of the dashboard that the predecessor has passed on, as long
// as it may accept at them.
func (p *past) sockets() []handover.Socket {
	if p.predecessor == nil {
		return nil
	}
	return p.predecessor.Sockets
}

// listeners are these sockets for the relay, which takes its own.
func (p *past) listeners() (all []relay.Listener) {
	for _, s := range p.sockets() {
		all = append(all, relay.Listener(s))
	}
	return all
}

// takeOver runs once this process accepts. It moves the control socket to its path,
// and returns when the predecessor no longer accepts.
func (d *daemon) takeOver(ctx context.Context) {
	p := d.past.predecessor
	if p == nil {
		return
	}
	d.control.takePlace()
	ctx, cancel := context.WithTimeout(ctx, ServingPatience)
	defer cancel()
	if err := p.Serving(ctx); err != nil {
		d.log.Warn("the old process may still accept", "error", err)
	}
	d.rules.begin()
	p.Close()
	d.past.predecessor = nil
	d.relay.Sweep()
	d.manager.begin()
}

// startedAs returns the path of this program as started, with its links: an upgrade
// starts the file that is there then. If the path is unknown it returns the
// program's own file.
func startedAs() string {
	running, err := os.Stat("/proc/self/exe")
	path := os.Args[0]
	if !strings.Contains(path, "/") {
		path, _ = exec.LookPath(path)
	}
	if path, absErr := filepath.Abs(path); err == nil && absErr == nil {
		if there, err := os.Stat(path); err == nil && os.SameFile(running, there) {
			return path
		}
	}
	path, _ = os.Executable()
	return strings.TrimSuffix(path, " (deleted)") // replaced while it started
}
