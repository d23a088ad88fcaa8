package daemon

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// serviceManager tells systemd how the relay is. Without systemd
// (NOTIFY_SOCKET) every call does nothing.
type serviceManager struct {
	log      *slog.Logger
	watchdog time.Duration // 0: systemd does not watch
	notify   func(state string) error

	mu     sync.Mutex
	silent bool // another process is the one that systemd listens to
}

func newServiceManager(log *slog.Logger) *serviceManager {
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog is off: its settings cannot be read", "error", err)
	}
	return &serviceManager{log: log, watchdog: interval, notify: notifySystemd}
}

func notifySystemd(state string) error {
	_, err := sd.SdNotify(false, state)
	return err
}

func (s *serviceManager) send(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(state)
}

func (s *serviceManager) sendLocked(state string) {
	if s.silent {
		return
	}
	if err := s.notify(state); err != nil {
		s.log.Warn("cannot notify systemd", "error", err)
	}
}

func (s *serviceManager) ready(status string) {
	s.send(sd.SdNotifyReady + "\nSTATUS=" + status)
}

// reloading must be followed by ready, whether or not the reload succeeds. An
// upgrade is a reload to systemd; the process that follows says ready.
func (s *serviceManager) reloading(status string) {
	s.send(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec() + "STATUS=" + status)
}

// passOn makes another process the one that systemd listens to and watches, and
// is the last that it hears of this one.
func (s *serviceManager) passOn(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(fmt.Sprintf("MAINPID=%d", pid))
	s.silent = true
}

// begin is the first that systemd hears of a process that was passed on to.
func (s *serviceManager) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = false
}

func (s *serviceManager) status(status string) { s.send("STATUS=" + status) }

// stopping announces the drain. systemd kills a unit after TimeoutStopSec
// unless it is told that more time is needed.
func (s *serviceManager) stopping(status string) {
	s.send(sd.SdNotifyStopping + "\nSTATUS=" + status)
	s.extend()
}

// drainExtension is how much more time each message of a drain asks for.
const drainExtension = 30 * time.Second

func (s *serviceManager) extend() {
	s.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", drainExtension.Microseconds()))
}

func (s *serviceManager) alive() { s.send(sd.SdNotifyWatchdog) }

// heartbeat tells systemd's watchdog that the event loops answer, for which line
// waits, and keeps the status line current. The returned function ends it.
func (s *serviceManager) heartbeat(line func() string) (stop func()) {
	interval := 10 * time.Second
	if s.watchdog > 0 {
		interval = s.watchdog / 2
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		// A loop that is stuck holds the question up as well: then no beat is
		// sent, and systemd acts.
		var answer chan string
		for {
			select {
			case <-done:
				return
			case status := <-answer:
				answer = nil
				s.status(status)
				if s.watchdog > 0 {
					s.alive()
				}
			case <-tick.C:
				if answer == nil {
					answer = make(chan string, 1)
					go func(answer chan<- string) { answer <- line() }(answer)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
