package daemon

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// serviceManager notifies systemd of the relay's state. Without systemd
// (NOTIFY_SOCKET) its calls do nothing.
type serviceManager struct {
	log      *slog.Logger
	watchdog time.Duration // 0: systemd does not watch
	notify   func(state string) error

	mu     sync.Mutex
	silent bool // systemd listens to another process
}

func newServiceManager(log *slog.Logger) *serviceManager {
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read the watchdog's settings: it is off", "error", err)
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

// reloading must be followed by ready, whether or not the reload succeeds. For
// systemd an upgrade is a reload; the successor sends ready.
func (s *serviceManager) reloading(status string) {
	s.send(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec() + "STATUS=" + status)
}

// passOn makes systemd listen to another process and watch that. It is the last
// message of this one.
func (s *serviceManager) passOn(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(fmt.Sprintf("MAINPID=%d", pid))
	s.silent = true
}

// begin is the first message of a successor to systemd.
func (s *serviceManager) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = false
}

func (s *serviceManager) status(status string) { s.send("STATUS=" + status) }

// stopping announces the drain. systemd kills a unit after TimeoutStopSec unless the
// unit asks for more time.
func (s *serviceManager) stopping(status string) {
	s.send(sd.SdNotifyStopping + "\nSTATUS=" + status)
	s.extend()
}

// drainExtension is the time that each message of a drain asks for.
const drainExtension = 30 * time.Second

func (s *serviceManager) extend() {
	s.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", drainExtension.Microseconds()))
}

func (s *serviceManager) alive() { s.send(sd.SdNotifyWatchdog) }

// heartbeat updates the status line and notifies systemd's watchdog. line waits until
// the event loops answer. The returned function ends it.
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
		// A stuck loop blocks line: no beat is sent then, and systemd acts.
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
