package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"longhaul/internal/run/control"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	nettest.AtOnce(8) // most of them wait for other programs
	testscript.Main(m, map[string]func(){"longhaul": main, "longhaul-activated": activatedMain, "longhaul-watched": watchedMain, "longhaul-linked": linkedMain, "longhaul-panics": topPanicsMain})
}

// TestScripts runs the end-to-end specs of testdata/script: the real program,
// over real connections. The commands that they have beyond testscript's own:
//
//	start NAME ARG...       run longhaul in the background; its output goes to NAME.out and NAME.err
//	signal NAME SIGNAL      send it a signal
//	exits NAME CODE         wait for it to end, with this exit code
//	adopt NAME SOCKET       give a name to the relay that answers there, which an upgrade started
//	logs NAME REGEX         wait for its stderr to match
//	code CODE ARG...        run longhaul to its end, with this exit code, or one of A|B
//	until REGEX ARG...      run longhaul until its stdout or stderr matches
//	port VAR...             find free ports
//	echo VAR                start a target that sends back what it gets, NAME:PORT in VAR
//	greeter VAR TEXT        start a server that says a text to whoever connects, and no more
//	receiver VAR            start an HTTP server that takes rows by POST, and shows all by GET
//	talk ADDRESS TEXT       send a text and an end through; the reply must be the same
//	refused ADDRESS         a connection must be refused, or reset at once
//	hold NAME ADDRESS       open a connection, and see that it echoes
//	alive NAME              the held connection must still echo
//	reset NAME              the held connection must have been reset
//	http CODE METHOD URL    ask over HTTP; what comes is in out, its header in head
//	fetches REGEX URL       ask over HTTP until what comes matches
//	release NAME            end the held connection cleanly, and see the peer's end
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script")
}

// runScripts runs the specs of a directory.
func runScripts(t *testing.T, dir string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Values[worldKey{}] = &world{programs: map[string]*program{}, held: map[string]*net.TCPConn{}}
			// A short path: the control socket's has at most 107 bytes.
			run, err := os.MkdirTemp("", "lh")
			if err != nil {
				return err
			}
			e.Defer(func() {
				killWhoHas("XDG_RUNTIME_DIR=" + run) // relays that upgrades started
				os.RemoveAll(run)
			})
			e.Setenv("RUN", run)
			e.Setenv("SOCKET", filepath.Join(run, "s"))
			packaging, err := filepath.Abs("../../packaging")
			if err != nil {
				return err
			}
			e.Setenv("PACKAGING", packaging)
			records, err := filepath.Abs("../../internal/find/doctor/testdata")
			if err != nil {
				return err
			}
			e.Setenv("RECORDS", records)
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "namespaces":
				return nettest.CanMakeNamespaces()
			case "machine-root":
				return nettest.MachineRoot()
			}
			return false, errors.New("unknown condition " + name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": cmdStart, "adopt": cmdAdopt, "signal": cmdSignal, "exits": cmdExits, "logs": cmdLogs, "code": cmdCode, "until": cmdUntil,
			"port": cmdPort, "echo": cmdEcho, "greeter": cmdGreeter, "receiver": cmdReceiver, "talk": cmdTalk, "refused": cmdRefused,
			"http": cmdHTTP, "fetches": cmdFetches, "hold": cmdHold, "alive": cmdAlive, "reset": cmdReset, "release": cmdRelease,
		},
	})
}

// patience bounds every wait of a script. None that passes comes near it.
const patience = time.Minute

// world is what a script has running.
type world struct {
	programs map[string]*program
	held     map[string]*net.TCPConn
}

type worldKey struct{}

type program struct {
	process *os.Process
	stderr  string
	ended   chan struct{}
	state   *os.ProcessState // once it has ended
}

// wait takes note of the program's end.
func (p *program) wait() {
	p.state, _ = p.process.Wait()
	close(p.ended)
}

// killWhoHas kills the processes that have a variable in their environment.
func killWhoHas(variable string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		pid, notAProcess := strconv.Atoi(e.Name())
		if err != nil || notAProcess != nil || pid == os.Getpid() {
			continue
		}
		for _, one := range strings.Split(string(environ), "\x00") {
			if one == variable {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func need(ts *testscript.TestScript, neg bool, args []string, n int) {
	if neg || len(args) < n {
		ts.Fatalf("wrong use of a command: see TestScripts")
	}
}

// eventually polls cond until it holds.
func eventually(ts *testscript.TestScript, cond func() bool, format string, args ...any) {
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf(format, args...)
		}
	}
}

func longhaul(ts *testscript.TestScript, args []string) *exec.Cmd {
	path, err := exec.LookPath(filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], "longhaul"))
	ts.Check(err)
	cmd := exec.Command(path, args...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "XDG_RUNTIME_DIR="+ts.Getenv("RUN"), "STATE_DIRECTORY="+ts.Getenv("STATE_DIRECTORY"),
		"RUNTIME_DIRECTORY="+ts.Getenv("RUNTIME_DIRECTORY"))
	return cmd
}

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	cmd := longhaul(ts, args[1:])
	p := &program{stderr: ts.MkAbs(args[0] + ".err"), ended: make(chan struct{})}
	// What follows it in an upgrade writes to the same file.
	f, err := os.OpenFile(p.stderr, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	ts.Check(err)
	defer f.Close()
	cmd.Stderr = f
	out, err := os.OpenFile(ts.MkAbs(args[0]+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	ts.Check(err)
	defer out.Close()
	cmd.Stdout = out
	ts.Check(cmd.Start())
	p.process = cmd.Process
	go p.wait()
	ts.Defer(func() {
		p.process.Kill()
		<-p.ended
		if b, err := os.ReadFile(p.stderr); err == nil {
			ts.Logf("[stderr of %s]\n%s", args[0], b)
		}
	})
	worldOf(ts).programs[args[0]] = p
}

func cmdAdopt(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	body, err := control.Status(context.Background(), args[1])
	ts.Check(err)
	var status struct {
		PID int `json:"pid"`
	}
	ts.Check(json.Unmarshal(body, &status))
	p := &program{ended: make(chan struct{})}
	// An upgrade makes it a child of who started the first one: of this process.
	p.process, err = os.FindProcess(status.PID)
	ts.Check(err)
	go p.wait()
	ts.Defer(func() {
		p.process.Kill()
		<-p.ended
	})
	worldOf(ts).programs[args[0]] = p
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	sig, ok := map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}[args[1]]
	if !ok {
		ts.Fatalf("unknown signal %s", args[1])
	}
	ts.Check(worldOf(ts).programs[args[0]].process.Signal(sig))
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	p := worldOf(ts).programs[args[0]]
	select {
	case <-p.ended:
	case <-time.After(patience):
		ts.Fatalf("%s did not end", args[0])
	}
	checkCode(ts, p.state.ExitCode(), args[1])
}

func checkCode(ts *testscript.TestScript, got int, want string) {
	if !slices.Contains(strings.Split(want, "|"), strconv.Itoa(got)) {
		ts.Fatalf("exit code %d, want %s", got, want)
	}
}

func cmdLogs(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	re := regexp.MustCompile("(?m)" + args[1])
	p := worldOf(ts).programs[args[0]]
	eventually(ts, func() bool {
		b, _ := os.ReadFile(p.stderr)
		return re.Match(b)
	}, "%s does not log %q", args[0], args[1])
}

func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	cmd := longhaul(ts, args[1:])
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	// Scripts compare these with cmp and grep.
	ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("err"), stderr.Bytes(), 0o644))
	ts.Logf("[out]\n%s[err]\n%s", stdout.String(), stderr.String())
	checkCode(ts, cmd.ProcessState.ExitCode(), args[0])
}

func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	re := regexp.MustCompile("(?m)" + args[0])
	var stdout, stderr bytes.Buffer
	eventually(ts, func() bool {
		stdout.Reset()
		stderr.Reset()
		cmd := longhaul(ts, args[1:])
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // what it says is what counts
		return re.Match(stdout.Bytes()) || re.Match(stderr.Bytes())
	}, "no match for %q", args[0])
	ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o644))
}

func cmdFetches(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	re := regexp.MustCompile("(?m)" + args[0])
	client := http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	eventually(ts, func() bool {
		resp, err := client.Get(args[1])
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && re.Match(body)
	}, "no match for %q", args[0])
}

func cmdPort(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	for _, name := range args {
		port, err := nettest.FreePort(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		ts.Check(err)
		ts.Setenv(name, strconv.Itoa(int(port)))
	}
}

func cmdEcho(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	target(ts, args[0], tcpserver.Echo)
}

func cmdGreeter(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	target(ts, args[0], func(conn net.Conn) {
		io.WriteString(conn, args[1])
		io.Copy(io.Discard, conn)
	})
}

func cmdReceiver(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	var mu sync.Mutex
	var rows []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodGet {
			_, _ = w.Write(rows)
			return
		}
		z, err := gzip.NewReader(r.Body)
		var more []byte
		if err == nil {
			more, err = io.ReadAll(z)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rows = append(rows, more...)
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL)
}

// target starts a server that serves every connection in the same way, and puts
// its address into a variable.
func target(ts *testscript.TestScript, variable string, serve func(net.Conn)) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	ts.Check(err)
	stop := tcpserver.Serve(l, serve)
	ts.Defer(func() {
		for _, c := range worldOf(ts).held {
			c.Close()
		}
		for _, p := range worldOf(ts).programs {
			p.process.Kill()
		}
		stop()
	})
	ts.Setenv(variable, l.Addr().String())
}

func dial(address string) (*net.TCPConn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	d.Timeout = patience
	c, err := d.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn), nil
}

func cmdTalk(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	c, err := dial(args[0])
	ts.Check(err)
	defer c.Close()
	_, err = io.WriteString(c, args[1])
	ts.Check(err)
	ts.Check(c.CloseWrite())
	got, err := io.ReadAll(c)
	if err != nil || string(got) != args[1] {
		ts.Fatalf("reply %q, %v", got, err)
	}
}

func cmdRefused(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	c, err := dial(args[0])
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
		ts.Fatalf("%s is not refused: %v", args[0], err)
	}
}

func echoes(c *net.TCPConn) error {
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func cmdHold(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2)
	c, err := dial(args[1])
	ts.Check(err)
	worldOf(ts).held[args[0]] = c
	ts.Check(echoes(c))
}

func cmdHTTP(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, args[1], args[2], nil)
	ts.Check(err)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	var head bytes.Buffer
	ts.Check(resp.Header.Write(&head))
	ts.Check(os.WriteFile(ts.MkAbs("out"), body, 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("head"), head.Bytes(), 0o644))
	ts.Logf("[head]\n%s[out]\n%s", head.Bytes(), body)
	checkCode(ts, resp.StatusCode, args[0])
}

func cmdAlive(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	ts.Check(echoes(worldOf(ts).held[args[0]]))
}

func cmdReset(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	c := worldOf(ts).held[args[0]]
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		ts.Fatalf("%s was not reset: %v", args[0], err)
	}
}

func cmdRelease(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1)
	c := worldOf(ts).held[args[0]]
	defer c.Close()
	ts.Check(c.CloseWrite())
	c.SetDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		ts.Fatalf("%s ends with %d bytes, %v", args[0], n, err)
	}
}
