package link

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Link carries packets between two ports, with separate settings for each
// direction. Its methods may be called from several goroutines.
type Link struct {
	ports   [2]Port
	workers [2]*worker // by Direction

	mu       sync.Mutex // guards the fields below, and orders changes
	settings [2]Settings
	state    linkState
}

type linkState uint8

const (
	linkNew linkState = iota
	linkRunning
	linkClosed
)

// New makes a link between two ports and takes ownership of them. It carries
// nothing until Start.
func New(a, b Port, ab, ba Settings) (*Link, error) {
	if err := errors.Join(inDirection(AToB, ab.Validate()), inDirection(BToA, ba.Validate())); err != nil {
		return nil, err
	}
	l := &Link{ports: [2]Port{a, b}, settings: [2]Settings{AToB: ab, BToA: ba}}
	for _, dir := range []Direction{AToB, BToA} {
		w, err := newWorker(l.ports[dir], l.ports[dir.reverse()], l.settings[dir], l.queueLimit(dir))
		if err != nil {
			l.closeWakes()
			return nil, fmt.Errorf("link %s to %s: %w", a.Name(), b.Name(), err)
		}
		l.workers[dir] = w
	}
	return l, nil
}

func inDirection(dir Direction, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%v %w", dir, err)
}

func (l *Link) queueLimit(dir Direction) int {
	return l.settings[dir].QueueLimitBytes(l.settings[dir.reverse()].Delay)
}

// Start starts carrying packets, with one thread per direction. A second call
// changes nothing.
func (l *Link) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkNew {
		return
	}
	l.state = linkRunning
	for _, w := range l.workers {
		go w.run()
	}
}

// Set changes the settings of one direction, before Start or while the link
// runs. When it returns, they apply to every packet that the bottleneck has not
// yet served; packets beyond it keep their delivery. A shorter delay does not
// reorder packets. The generators of the random choices continue, unless Seed
// changes.
func (l *Link) Set(dir Direction, s Settings) error {
	if dir > BToA {
		return fmt.Errorf("direction %d: choose %d (%v) or %d (%v)", dir, AToB, AToB, BToA, BToA)
	}
	if err := inDirection(dir, s.Validate()); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkClosed {
		return errors.New("the link is closed: make a new one")
	}
	delayChanged := l.settings[dir].Delay != s.Delay
	l.settings[dir] = s
	l.apply(dir)
	if delayChanged { // the other direction's bandwidth-delay product also changes
		l.apply(dir.reverse())
	}
	return nil
}

// Change changes the settings of both directions, like Set.
func (l *Link) Change(change func(*Settings)) error {
	var errs []error
	for _, dir := range []Direction{AToB, BToA} {
		s := l.Settings(dir)
		change(&s)
		errs = append(errs, l.Set(dir, s))
	}
	return errors.Join(errs...)
}

func (l *Link) apply(dir Direction) {
	w := l.workers[dir]
	if l.state == linkRunning {
		w.set(l.settings[dir], l.queueLimit(dir))
	} else {
		w.pipe.set(monotonic(), l.settings[dir], l.queueLimit(dir))
	}
}

// Settings returns the latest settings of a direction.
func (l *Link) Settings(dir Direction) Settings {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settings[dir]
}

// Counters returns the counters of one direction, at most a fraction of a
// millisecond old while packets flow. After Close they are final.
func (l *Link) Counters(dir Direction) Counters { return l.workers[dir].counters() }

// CPUTime is the CPU time of both directions' threads. It includes the hosts'
// kernels while they process a delivered packet, up to the socket's queue.
func (l *Link) CPUTime() time.Duration {
	return l.workers[AToB].cpuTime() + l.workers[BToA].cpuTime()
}

// Close stops both directions, drops packets in flight, and removes the devices
// of both ports. A second call changes nothing.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkClosed {
		return nil
	}
	if l.state == linkRunning {
		for _, w := range l.workers {
			w.halt()
		}
	}
	l.state = linkClosed
	for _, w := range l.workers {
		w.from.drops() // read once more before the device is removed
	}
	// Close the ports after the threads that use their descriptors have ended.
	err := errors.Join(l.ports[0].Close(), l.ports[1].Close())
	l.closeWakes()
	return err
}

func (l *Link) closeWakes() {
	for _, w := range l.workers {
		if w != nil {
			unix.Close(w.wakeFD)
		}
	}
}
