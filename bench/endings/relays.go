package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// relay is a program that forwards TCP connections.
type relay struct {
	name string
	note string // how it is set up, where that is worth a remark

	// prepare finds or builds the program in dir. It returns errMissing,
	// wrapped, where it is not installed.
	prepare func(ctx context.Context, dir string) (program, error)
}

// program is a relay that can be run.
type program struct {
	version string
	// command is the command line that forwards from one address to another,
	// in the foreground. It may write its configuration to dir.
	command func(dir string, listen, target address) ([]string, error)
}

// address is a TCP address.
type address struct {
	host string
	port int
}

func (a address) String() string { return fmt.Sprintf("%s:%d", a.host, a.port) }

var errMissing = errors.New("not installed")

// copyLoopCommand makes this program a relay itself.
const copyLoopCommand = "copy-loop"

// allRelays are the relays compared. Each is set up as its documentation
// suggests to someone who wants nothing but bytes forwarded, with timeouts
// long enough not to matter; where an option improves on an ending, there is
// a second row with it.
func allRelays(longhaul string) []relay {
	return []relay{
		{name: "longhaul", prepare: func(ctx context.Context, dir string) (program, error) { return prepareLonghaul(ctx, dir, longhaul) }},
		{name: "haproxy", prepare: prepareHAProxy("")},
		{name: "haproxy-nolinger", note: "option nolinger", prepare: prepareHAProxy("option nolinger")},
		{name: "nginx", prepare: prepareNginx("")},
		{name: "nginx-half-close", note: "proxy_half_close on", prepare: prepareNginx("proxy_half_close on;")},
		{name: "socat", prepare: prepareSocat()},
		{name: "socat-t", note: "-t 3600", prepare: prepareSocat("-t", "3600")},
		{name: "go-copy-loop", note: "two io.Copy, CloseWrite after each", prepare: prepareCopyLoop},
	}
}

func prepareLonghaul(ctx context.Context, dir, binary string) (program, error) {
	if binary == "" {
		binary = filepath.Join(dir, "longhaul")
		build := exec.CommandContext(ctx, "go", "build", "-o", binary, "longhaul/cmd/longhaul")
		if out, err := build.CombinedOutput(); err != nil {
			return program{}, fmt.Errorf("build longhaul: %w\n%s", err, out)
		}
	}
	return program{version: "this tree", command: func(_ string, listen, target address) ([]string, error) {
		return []string{binary, "relay", "--listen", listen.String(), "--forward", target.String(), "--control-socket", "off", "--log-level", "error"}, nil
	}}, nil
}

func prepareHAProxy(option string) func(context.Context, string) (program, error) {
	return func(ctx context.Context, _ string) (program, error) {
		path, version, err := find(ctx, "haproxy", "haproxy", "-v")
		return program{version: version, command: func(dir string, listen, target address) ([]string, error) {
			config, err := writeConfig(dir, "haproxy.cfg", `
defaults
    mode tcp
    option splice-auto
    `+option+`
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen relay
    bind %s
    server target %s
`, listen, target)
			return []string{path, "-db", "-q", "-f", config}, err
		}}, err
	}
}

// nginxStreamModule is where Debian's libnginx-mod-stream puts the module.
const nginxStreamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

func prepareNginx(option string) func(context.Context, string) (program, error) {
	return func(ctx context.Context, _ string) (program, error) {
		path, version, err := find(ctx, "nginx", "nginx", "-v")
		if err != nil {
			return program{}, err
		}
		if _, err := os.Stat(nginxStreamModule); err != nil {
			return program{}, fmt.Errorf("%w: its stream module is missing (Debian package libnginx-mod-stream)", errMissing)
		}
		return program{version: version, command: func(dir string, listen, target address) ([]string, error) {
			config, err := writeConfig(dir, "nginx.conf", `
load_module `+nginxStreamModule+`;
daemon off;
pid %s;
error_log stderr error;
events { }
stream {
    server {
        listen %s;
        proxy_pass %s;
        proxy_connect_timeout 5s;
        proxy_timeout 1h;
        `+option+`
    }
}
`, filepath.Join(dir, "nginx.pid"), listen, target)
			return []string{path, "-e", "stderr", "-p", dir, "-c", config}, err
		}}, nil
	}
}

func prepareSocat(options ...string) func(context.Context, string) (program, error) {
	return func(ctx context.Context, _ string) (program, error) {
		path, version, err := find(ctx, "socat", "socat", "-V")
		return program{version: version, command: func(_ string, listen, target address) ([]string, error) {
			return append(append([]string{path}, options...),
				fmt.Sprintf("TCP-LISTEN:%d,bind=%s,reuseaddr,fork,backlog=128", listen.port, listen.host),
				"TCP:"+target.String()), nil
		}}, err
	}
}

func prepareCopyLoop(context.Context, string) (program, error) {
	self, err := os.Executable()
	return program{version: "this program", command: func(_ string, listen, target address) ([]string, error) {
		return []string{self, copyLoopCommand, listen.String(), target.String()}, nil
	}}, err
}

// versionNumber finds the version in what programs say about themselves.
var versionNumber = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)+`)

// find looks a program up, in the administrator's directories too, and asks
// for its version.
func find(ctx context.Context, name, debianPackage string, versionArgs ...string) (path, version string, err error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
		if path, err = exec.LookPath(candidate); err == nil {
			break
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("%w (Debian package %s)", errMissing, debianPackage)
	}
	out, err := exec.CommandContext(ctx, path, versionArgs...).CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(strings.ToLower(line), "version") {
			return path, versionNumber.FindString(line), nil
		}
	}
	return path, "unknown", nil
}

func writeConfig(dir, name, format string, args ...any) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(fmt.Sprintf(format, args...)), 0o644)
}
