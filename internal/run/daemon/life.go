package daemon

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

// life is how far a relay's life is, and the configuration in force. The main loop changes most of it,
// and others read it.
type life struct {
	mu         sync.Mutex
	config     *config.Config // the main loop reads it without mu
	reload     *Reload        // the last one; nil: never reloaded
	stage      stage
	successor  int // the process that has taken over
	replacedAt time.Time
	endsAt     time.Time // when flows are reset; zero: never

	confirmation confirmation // of the configuration in force
}

// stage is the stage of the daemon's life.
type stage int

const (
	serving stage = iota
	upgrading
	replaced
	stopping
)

// enter moves to another stage, or returns why it cannot.
func (l *life) enter(next stage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.busyLocked(); err != nil && next == upgrading {
		return err
	}
	l.stage = next
	return nil
}

// busy returns why the stage cannot change.
func (l *life) busy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busyLocked()
}

func (l *life) busyLocked() error {
	switch l.stage {
	case upgrading:
		return remedy.New(errors.New("an upgrade is under way"), "try again when it is done")
	case replaced:
		return remedy.New(fmt.Errorf("process %d has taken over from this one, which only finishes its flows", l.successor), "ask that one: leave --control-socket out, or name its own")
	case stopping:
		return remedy.New(errors.New("the relay is stopping"), "start it again")
	}
	return nil
}

// isReplaced reports whether another process has taken over.
func (l *life) isReplaced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage == replaced
}

// replace notes that another process has taken over.
func (l *life) replace(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stage, l.successor, l.replacedAt = replaced, by, time.Now()
}

// inForce is the configuration.
func (l *life) inForce() *config.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.config
}

// reloaded notes a reload, and the configuration if another one is in force now.
func (l *life) reloaded(outcome *Reload, c *config.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reload = outcome
	if c != nil {
		l.config = c
	}
}

func (l *life) lastReload() *Reload {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reload
}
