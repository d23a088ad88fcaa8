package relay

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
)

// childRole is the environment variable that makes the test binary a child of a
// test. The child is a relay process that can be killed or limited. Its value
// is the number of workers; childFiles limits the child's open files.
const (
	childRole  = "LONGHAUL_RELAY_TEST_WORKERS"
	childFiles = "LONGHAUL_RELAY_TEST_FILES"
)

// child is the child's main function. It relays to its first argument, prints
// its listening address, and ends when its standard input does. The second
// argument is the address to listen on.
func child(role string) int {
	err := func() error {
		if len(os.Args) < 2 {
			return fmt.Errorf("usage: TARGET [LISTEN]")
		}
		to, err := netip.ParseAddrPort(os.Args[1])
		if err != nil {
			return err
		}
		workers, err := strconv.Atoi(role)
		if err != nil {
			return err
		}
		if files, err := strconv.ParseUint(os.Getenv(childFiles), 10, 64); err == nil {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
				return err
			}
		}
		from := freePort
		if len(os.Args) > 2 {
			if from, err = netip.ParseAddrPort(os.Args[2]); err != nil {
				return err
			}
		}
		r, err := Start(Options{Workers: workers, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}, []Tunnel{{
			Name:    "child",
			Listen:  []netip.AddrPort{from},
			Forward: []hops.Target{{Host: to.Addr().String(), Port: to.Port()}},
		}})
		if err != nil {
			return err
		}
		defer r.Close()
		fmt.Println(r.Snapshot().Tunnels[0].Listen[0])
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a relay in a separate process.
type process struct {
	cmd  *exec.Cmd
	addr netip.AddrPort
	log  *logText
}

func startProcess(t testing.TB, to net.Listener, files int) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], addrOf(to).String()), log: &logText{}}
	p.cmd.Env = append(os.Environ(), childRole+"=2")
	if files > 0 {
		p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("%s=%d", childFiles, files))
	}
	p.cmd.Stderr = p.log
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = p.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		p.addr, err = netip.ParseAddrPort(strings.TrimSpace(line))
	}
	if err != nil {
		t.Fatalf("the relay did not start: %v\n%s", err, p.log)
	}
	return p
}

// kill ends the process as kill -9 does.
func (p *process) kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
}
