// Package peers starts longhaul and the relays that it is compared with, each
// set up as its documentation suggests to someone who wants nothing but bytes
// forwarded.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Relay is a program that forwards TCP connections.
type Relay struct {
	Name string
	Note string // how it is set up, where that is worth a remark

	Watched bool // by who reads MetricsPort and DashboardPort
	Newest  bool // FetchNewest unpacks it

	// Prepare finds or builds the program in dir. It returns ErrMissing,
	// wrapped, where it is not installed.
	Prepare func(ctx context.Context, dir string) (Program, error)
}

// Program is a relay that can be run.
type Program struct {
	Version string
	// Command is the command line that forwards as the setup says, in the
	// foreground. It may write its configuration to dir.
	Command  func(dir string, s Setup) ([]string, error)
	Longhaul bool // it has longhaul's other commands
}

// Setup is what a relay is asked to do.
type Setup struct {
	Listen, Target Address
	Threads        int    // that move bytes; 0 leaves it to the program
	ControlSocket  string // of longhaul; "": none
	MaxFlows       int    // that must be possible at the same time; 0 leaves it to the program
}

// Address is a TCP address.
type Address struct {
	Host string
	Port int
}

// String is the address in the form host:port.
func (a Address) String() string { return fmt.Sprintf("%s:%d", a.Host, a.Port) }

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("not installed")

// The relays. Timeouts are long enough not to matter. Where an option improves
// on how connections end, there is a second relay with it.
var (
	HAProxy         = Relay{Name: "haproxy", Prepare: prepareHAProxy(find, "")}
	HAProxyNolinger = Relay{Name: "haproxy-nolinger", Note: "option nolinger", Prepare: prepareHAProxy(find, "option nolinger")}
	Nginx           = Relay{Name: "nginx", Prepare: prepareNginx(find, "")}
	NginxHalfClose  = Relay{Name: "nginx-half-close", Note: "proxy_half_close on", Prepare: prepareNginx(find, "proxy_half_close on;")}
	Socat           = Relay{Name: "socat", Prepare: prepareSocat(find)}
	SocatT          = Relay{Name: "socat-t", Note: "-t 3600", Prepare: prepareSocat(find, "-t", "3600")}
	GoCopyLoop      = Relay{Name: "go-copy-loop", Note: "two io.Copy, CloseWrite after each", Prepare: prepareCopyLoop}
)

// The newest of them that Debian's archive has, see FetchNewest.
var (
	NewestHAProxy = Relay{Name: "haproxy-newest", Newest: true, Prepare: prepareHAProxy(newest, "")}
	NewestNginx   = Relay{Name: "nginx-newest", Newest: true, Prepare: prepareNginx(newest, "")}
	NewestSocat   = Relay{Name: "socat-newest", Newest: true, Prepare: prepareSocat(newest)}
)

// Longhaul is the relay of this tree, or the given binary.
func Longhaul(binary string) Relay {
	return Relay{Name: "longhaul", Prepare: func(ctx context.Context, dir string) (Program, error) {
		return prepareLonghaul(ctx, dir, binary, "", "--log-level", "error")
	}}
}

// Unmonitored is the relay of this tree, built so that its monitor does nothing.
func Unmonitored(name string, more ...string) Relay {
	return Relay{Name: name, Prepare: func(ctx context.Context, dir string) (Program, error) {
		return prepareLonghaul(ctx, dir, "", "-X longhaul/internal/run/daemon.monitoring=off", more...)
	}}
}

// Monitored is the relay of this tree with all of its monitoring: metrics, a
// history, the dashboard.
func Monitored(name string, more ...string) Relay {
	return Relay{Name: name, Watched: true, Prepare: func(ctx context.Context, dir string) (Program, error) {
		p, err := prepareLonghaul(ctx, dir, "", "", more...)
		command := p.Command
		p.Command = func(dir string, s Setup) ([]string, error) {
			argv, err := command(dir, s)
			return append(argv, "--history", filepath.Join(dir, "history.db"),
				"--dashboard", Address{s.Listen.Host, DashboardPort}.String()), err
		}
		return p, err
	}}
}

// Where a Watched relay has its metrics and its dashboard, on the host that it
// listens on.
const (
	MetricsPort   = 9463
	DashboardPort = 9464
)

func prepareLonghaul(ctx context.Context, dir, binary, ldflags string, more ...string) (Program, error) {
	version := "of " + binary
	if binary == "" {
		version = "this tree"
		binary = filepath.Join(dir, "longhaul")
		build := exec.CommandContext(ctx, "go", "build", "-ldflags", ldflags, "-o", binary, "longhaul/cmd/longhaul")
		if out, err := build.CombinedOutput(); err != nil {
			return Program{}, fmt.Errorf("build longhaul: %w\n%s", err, out)
		}
	}
	return Program{Version: version, Longhaul: true, Command: func(_ string, s Setup) ([]string, error) {
		argv := []string{binary, "relay", "--listen", s.Listen.String(), "--forward", s.Target.String(), "--control-socket", cmp.Or(s.ControlSocket, "off"),
			"--http-listen", Address{s.Listen.Host, MetricsPort}.String()}
		argv = append(argv, more...)
		if s.Threads > 0 {
			argv = append(argv, "--workers", strconv.Itoa(s.Threads))
		}
		return argv, nil
	}}, nil
}

func prepareHAProxy(where locate, option string) func(context.Context, string) (Program, error) {
	return func(ctx context.Context, _ string) (Program, error) {
		program, err := where(ctx, "haproxy", "haproxy", "-v")
		return Program{Version: program.version, Command: func(dir string, s Setup) ([]string, error) {
			var global strings.Builder
			if s.Threads > 0 {
				fmt.Fprintf(&global, "    nbthread %d\n", s.Threads)
			}
			if s.MaxFlows > 0 {
				// It counts descriptors before it starts: without a bound of
				// its own it reserves two for the pipe of every fourth flow.
				fmt.Fprintf(&global, "    maxconn %d\n    maxpipes 32\n", s.MaxFlows)
			}
			config, err := writeConfig(dir, "haproxy.cfg", `
global
%sdefaults
    mode tcp
    option splice-auto
    `+option+`
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen relay
    bind %s
    server target %s
`, &global, s.Listen, s.Target)
			return append(slices.Clone(program.argv), "-db", "-q", "-f", config), err
		}}, err
	}
}

// nginxStreamModule is where Debian's libnginx-mod-stream puts the module.
const nginxStreamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

func prepareNginx(where locate, option string) func(context.Context, string) (Program, error) {
	return func(ctx context.Context, _ string) (Program, error) {
		program, err := where(ctx, "nginx", "nginx", "-v")
		module := filepath.Join(program.root, nginxStreamModule)
		if err != nil {
			return Program{}, err
		}
		if _, err := os.Stat(module); err != nil {
			return Program{}, fmt.Errorf("%w: its stream module is missing (Debian package libnginx-mod-stream)", ErrMissing)
		}
		return Program{Version: program.version, Command: func(dir string, s Setup) ([]string, error) {
			processes, connections := "", ""
			if s.Threads > 0 {
				processes = fmt.Sprintf("worker_processes %d;", s.Threads)
			}
			if s.MaxFlows > 0 {
				connections = fmt.Sprintf("worker_connections %d;", 2*s.MaxFlows+16)
			}
			config, err := writeConfig(dir, "nginx.conf", `
load_module `+module+`;
daemon off;
pid %s;
error_log stderr error;
%s
events { %s }
stream {
    server {
        listen %s;
        proxy_pass %s;
        proxy_connect_timeout 5s;
        proxy_timeout 1h;
        `+option+`
    }
}
`, filepath.Join(dir, "nginx.pid"), processes, connections, s.Listen, s.Target)
			return append(slices.Clone(program.argv), "-e", "stderr", "-p", dir, "-c", config), err
		}}, nil
	}
}

func prepareSocat(where locate, options ...string) func(context.Context, string) (Program, error) {
	return func(ctx context.Context, _ string) (Program, error) {
		program, err := where(ctx, "socat", "socat", "-V")
		return Program{Version: program.version, Command: func(_ string, s Setup) ([]string, error) {
			return append(slices.Concat(program.argv, options),
				fmt.Sprintf("TCP-LISTEN:%d,bind=%s,reuseaddr,fork,backlog=128", s.Listen.Port, s.Listen.Host),
				"TCP:"+s.Target.String()), nil
		}}, err
	}
}

func prepareCopyLoop(context.Context, string) (Program, error) {
	self, err := os.Executable()
	return Program{Version: "this program", Command: func(_ string, s Setup) ([]string, error) {
		if s.Threads > 0 {
			return []string{"/usr/bin/env", "GOMAXPROCS=" + strconv.Itoa(s.Threads), self, CopyLoopCommand, s.Listen.String(), s.Target.String()}, nil
		}
		return []string{self, CopyLoopCommand, s.Listen.String(), s.Target.String()}, nil
	}}, err
}

// versionNumber finds the version in what programs say about themselves.
var versionNumber = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)+`)

// find locates an installed program, in the administrator's directories too.
func find(ctx context.Context, name, debianPackage string, versionArgs ...string) (l located, err error) {
	var path string
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
		if path, err = exec.LookPath(candidate); err == nil {
			break
		}
	}
	if err != nil {
		return l, fmt.Errorf("%w (Debian package %s)", ErrMissing, debianPackage)
	}
	l.argv = []string{path}
	l.version, err = askVersion(ctx, l.argv, versionArgs...)
	return l, err
}

func askVersion(ctx context.Context, argv []string, args ...string) (string, error) {
	argv = slices.Concat(argv, args)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask for a version with %s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(strings.ToLower(line), "version") {
			return versionNumber.FindString(line), nil
		}
	}
	return "unknown", nil
}

func writeConfig(dir, name, format string, args ...any) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(fmt.Sprintf(format, args...)), 0o644)
}

// Fetch has the go command fetch and compile what longhaul of this tree is
// built from. A program that builds it inside a namespace without a network
// calls this before.
func Fetch(ctx context.Context) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", os.DevNull, "longhaul/cmd/longhaul")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build longhaul: %w\n%s", err, out)
	}
	return nil
}
