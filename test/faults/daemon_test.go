package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/control"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// daemon is a `longhaul relay` that runs with a configuration file.
type daemon struct {
	t          *testing.T
	cmd        *exec.Cmd
	log        *logText
	dir        string
	exited     chan struct{}
	supervisor *supervisor
}

// supervision says what stands between the relay and the kernel.
type supervision uint8

const (
	unsupervised supervision = iota
	clockSupervised
	errorsSupervised
	ordinaryUser // nothing does, but the relay runs as nobody
	firstProcess // nothing does, but the relay is the first process of a PID namespace
	stateful     // nothing does, but the relay has its folder as its state directory
)

// nobody is the uid and gid of ordinaryUser.
const nobody = 65534

// startDaemon starts a relay on a host, nil for the test's own, and waits until
// it listens. It is killed when the test ends. The text SOCKET in the
// configuration stands for the path of its control socket.
func startDaemon(t *testing.T, host *hosts.Host, how supervision, config string) *daemon {
	t.Helper()
	return startProgram(t, nettest.Longhaul(t), host, how, config)
}

func startProgram(t *testing.T, program string, host *hosts.Host, how supervision, config string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "lh") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return launchProgram(t, program, host, how, dir, config)
}

// restartDaemon starts a relay that has ended again, as it was.
func restartDaemon(t *testing.T, host *hosts.Host, was *daemon) *daemon {
	t.Helper()
	<-was.exited
	config, err := os.ReadFile(was.file())
	if err != nil {
		t.Fatal(err)
	}
	return launchDaemon(t, host, unsupervised, was.dir, string(config))
}

func launchDaemon(t *testing.T, host *hosts.Host, how supervision, dir, config string) *daemon {
	t.Helper()
	return launchProgram(t, nettest.Longhaul(t), host, how, dir, config)
}

func launchProgram(t *testing.T, program string, host *hosts.Host, how supervision, dir, config string) *daemon {
	t.Helper()
	d := &daemon{t: t, log: &logText{filepath.Join(dir, "log")}, dir: dir, exited: make(chan struct{})}
	d.write(config)
	d.cmd = exec.Command(program, "relay", "--config", d.file())
	stderr, err := os.Create(d.log.path)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	d.cmd.Stderr = stderr
	start := d.cmd.Start
	switch {
	case how == ordinaryUser:
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		for _, path := range []string{d.dir, d.file()} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	case how == stateful:
		d.cmd.Env = append(os.Environ(), "STATE_DIRECTORY="+d.dir)
	case how == firstProcess:
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	case how != unsupervised:
		start = func() error {
			d.supervisor = supervise(t, d.cmd, how == errorsSupervised)
			return nil
		}
	case host != nil:
		start = func() error { return host.Start(d.cmd) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.exited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay's log:\n%s", d.log)
		}
		_ = d.cmd.Process.Kill()
		<-d.exited
		if d.supervisor != nil {
			<-d.supervisor.served
		}
	})
	d.expectLog(`msg="relay started"`)
	return d
}

func (d *daemon) file() string   { return filepath.Join(d.dir, "longhaul.yaml") }
func (d *daemon) socket() string { return filepath.Join(d.dir, "s") }

func (d *daemon) write(config string) {
	d.t.Helper()
	writeFile(d.t, d.file(), strings.ReplaceAll(config, "SOCKET", d.socket()))
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// expectLog waits until the log matches.
func (d *daemon) expectLog(pattern string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	nettest.Eventually(d.t, patience, func() bool {
		select {
		case <-d.exited:
			return true
		default:
			return re.MatchString(d.log.String())
		}
	}, func() string { return "the log does not say " + pattern + "\n" + d.log.String() })
	if !re.MatchString(d.log.String()) {
		d.t.Fatalf("the relay ended (%v), and the log does not say %s\n%s", d.cmd.ProcessState, pattern, d.log)
	}
}

// expectAsleep waits until every thread of the relay is asleep in a row of looks. One
// that goes on without work is running, or waits for a CPU, most of the time.
func (d *daemon) expectAsleep(when string) {
	d.t.Helper()
	const looks = 20
	asleep := 0
	nettest.Repeatedly(d.t, patience, func() bool {
		if asleep++; !d.asleep() {
			asleep = 0
		}
		return asleep == looks
	}, func() string { return when + ": a relay that has nothing to do does not sleep" })
}

// asleep says whether every thread of the relay waits for something.
func (d *daemon) asleep() bool {
	threads, err := procfs.AllThreads(d.cmd.Process.Pid)
	nettest.Must(d.t, err)
	for _, thread := range threads {
		stat, err := thread.Stat()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		nettest.Must(d.t, err)
		if stat.State != "S" {
			return false
		}
	}
	return len(threads) > 0
}

func (d *daemon) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}

// reload gives the relay a configuration and waits until the log says how that
// went.
func (d *daemon) reload(config string) {
	d.t.Helper()
	d.write(config)
	before := d.log.count("msg=reloaded")
	d.signal(syscall.SIGHUP)
	nettest.Eventually(d.t, patience, func() bool { return d.log.count("msg=reloaded") > before },
		func() string { return "the relay does not reload\n" + d.log.String() })
}

// expectExit waits for the relay's end and checks its exit status.
func (d *daemon) expectExit(status int) {
	d.t.Helper()
	select {
	case <-d.exited:
	case <-time.After(patience):
		d.t.Fatalf("the relay does not end\n%s", d.log)
	}
	if got := d.cmd.ProcessState.ExitCode(); got != status {
		d.t.Errorf("exit status %d, want %d\n%s", got, status, d.log)
	}
}

// upgrade has the relay replaced by a program, empty for its own, and returns
// the number of the process that follows.
func (d *daemon) upgrade(program string) (pid int, err error) {
	d.t.Helper()
	arguments := url.Values{}
	if program != "" {
		arguments.Set("binary", program)
	}
	body, err := control.Do(d.t.Context(), d.socket(), "upgrade", arguments)
	if err != nil {
		return 0, err
	}
	var answer struct {
		PID int `json:"new_pid"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, err
	}
	d.t.Cleanup(func() { // it is a child of this process
		_ = syscall.Kill(answer.PID, syscall.SIGKILL)
		_, _ = syscall.Wait4(answer.PID, nil, 0, nil)
	})
	return answer.PID, nil
}

// daemonStatus is what the cases need of `longhaul status --json`.
type daemonStatus struct {
	PID     int      `json:"pid"`
	Missing []string `json:"missing"`
	Older   []struct {
		PID      int    `json:"pid"`
		Socket   string `json:"control_socket"`
		FlowsNow *int64 `json:"flows_now"`
	} `json:"older_processes"`
	Process struct {
		Goroutines    int   `json:"goroutines"`
		Descriptors   int   `json:"descriptors"`
		ResidentBytes int64 `json:"resident_bytes"`
	} `json:"process"`
	LastReload *struct {
		OK    bool   `json:"ok"`
		Error string `json:"error"`
	} `json:"last_reload"`
	Lacks []struct {
		What string `json:"what"`
	} `json:"lacks"`
	AcceptPaused bool  `json:"accept_paused"`
	PipesOpen    int   `json:"pipes_open"`
	FlowsNow     int64 `json:"flows_now"`
	Memory       struct {
		LimitBytes int64 `json:"limit_bytes"`
		UsedBytes  int64 `json:"used_bytes"`
		Short      bool  `json:"short"`
	} `json:"memory"`
	Pairs     *flow.Pairs     `json:"pairs"`
	Resources resourcesStatus `json:"resources"`
	Tunnels   []tunnelStatus  `json:"tunnels"`
	Flows     []flowStatus    `json:"flows"`
}

type flowStatus struct {
	Name      flow.Name `json:"name"`
	Peer      string    `json:"peer"`
	Tunnel    string    `json:"tunnel"`
	Client    string    `json:"client"`
	Listen    string    `json:"listen"`
	Target    string    `json:"target"`
	State     string    `json:"state"`
	BytesUp   int64     `json:"bytes_up"`
	BytesDown int64     `json:"bytes_down"`
	ClientLeg legStatus `json:"client_leg"`
	TargetLeg legStatus `json:"target_leg"`
}

type legStatus struct {
	Side        string `json:"side"` // lan or wan
	Destination string `json:"destination"`
}

type tunnelStatus struct {
	Name       string   `json:"name"`
	Listen     []string `json:"listen"`
	FlowsNow   int64    `json:"flows_now"`
	FlowsTotal int64    `json:"flows_total"`
	Denied     int64    `json:"denied_total"`
	Limited    int64    `json:"limited_total"`
	Shed       int64    `json:"shed_total"`
	Relayed    int64    `json:"relayed_total"`

	State     string             `json:"state"`
	Usability flow.Usability     `json:"usability"`
	Bypass    *flow.Bypass       `json:"bypass"`
	Host      []flow.HostProblem `json:"host"`
	Hops      []flow.Hop         `json:"hops"`

	AcceptQueues []struct {
		Waiting int `json:"waiting"`
		Limit   int `json:"limit"`
		Dropped int `json:"dropped_total"`
	} `json:"accept_queues"`
	Refused int64 `json:"refused_total"`
	Errors  int64 `json:"errors_total"`
	Checks  int64 `json:"checks_total"`

	Ended []flow.Ended `json:"ended"`
}

func (d *daemon) status() daemonStatus {
	d.t.Helper()
	var s daemonStatus
	nettest.Eventually(d.t, patience, func() bool {
		s = daemonStatus{}
		body, err := control.Status(d.t.Context(), d.socket())
		if late := (*control.SilentError)(nil); errors.As(err, &late) && !late.Stopped {
			s.Missing = append(s.Missing, "an answer")
			return false // on a busy machine it may take long to start
		}
		if err == nil {
			err = json.Unmarshal(body, &s)
		}
		if err != nil {
			d.t.Fatalf("status: %v\n%s", err, d.log)
		}
		return len(s.Missing) == 0 // on a busy machine parts may be late
	}, func() string { return fmt.Sprintf("the status lacks %q", s.Missing) })
	return s
}

func (s daemonStatus) tunnel(name string) tunnelStatus {
	for _, t := range s.Tunnels {
		if t.Name == name {
			return t
		}
	}
	return tunnelStatus{}
}

// command runs another longhaul command to its end.
func command(t *testing.T, args ...string) (output string, status int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), nettest.Longhaul(t), args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		status = exit.ExitCode()
	}
	return string(out), status
}

// logText is a log that tests can wait for. It is a file, and not a pipe: a
// relay that follows another in an upgrade writes to it as well, and the end of
// the first is to be seen before the other's.
type logText struct{ path string }

func (l *logText) String() string {
	text, _ := os.ReadFile(l.path)
	return string(text)
}

func (l *logText) count(text string) int { return strings.Count(l.String(), text) }
