package pairs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"longhaul/internal/lab"
)

// The names that the sites give each other.
const (
	siteA = "site-a"
	siteB = "site-b"
)

func farTunnel(way string) string {
	t := fmt.Sprintf("listen: %s, forward: %s", addressFar, addressTo)
	if way == WayPlain {
		return t
	}
	return t + ", pair_from: " + siteA
}

func nearTunnel(way string) string {
	t := fmt.Sprintf("listen: %s, forward: %s", addressNear, addressFar)
	switch way {
	case WayPlain:
		return t
	case WayClear:
		return t + ", pair: {peer: " + siteB + ", encrypt: off}"
	}
	return t + ", pair: " + siteB
}

// keys is the directory of a host's keys.
func (w *world) keys(host string) string { return filepath.Join(w.dir, "keys-"+host) }

// makeKeys introduces the two sites, as an operator does: relay-b invites, relay-a
// joins.
func (w *world) makeKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	invite := exec.CommandContext(ctx, w.Program, "pair", "invite", siteA, "--as", siteB, "--serve", addressFar, "--dir", w.keys("relay-b"))
	out, err := invite.StdoutPipe()
	if err != nil {
		return err
	}
	var said lockedBuffer
	invite.Stderr = &said
	if err := w.Host("relay-b").Start(invite); err != nil {
		return err
	}
	line, err := invitation(out)
	if err == nil {
		err = w.Longhaul(ctx, "relay-a", "pair", "join", line, "--as", siteB, "--dir", w.keys("relay-a"))
	}
	if err != nil {
		cancel() // the inviter waits for the joiner
	}
	if waitErr := invite.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("longhaul pair invite: %w\n%s", waitErr, said.String()))
	}
	return err
}

// invitation reads the line to join with.
func invitation(out io.Reader) (string, error) {
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("longhaul pair invite prints no invitation: %w", err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // it prints more, and then ends
	return strings.TrimSpace(line), nil
}

// lockedBuffer is a program's output that may be read before the program has ended.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(ctx context.Context, o Options, way string) string {
	switch way {
	case WayHAProxy:
		return lab.MissingProgram("haproxy", "haproxy")
	case WayStunnel:
		return lab.MissingProgram("stunnel4", "stunnel4")
	case WayWireGuard:
		if reason := lab.MissingProgram("wireguard-go", "wireguard-go"); reason != "" {
			return reason
		}
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			return "needs /dev/net/tun"
		}
	case WayPair, WayClear:
		return refusedBy(ctx, o.Program, way)
	}
	return ""
}

// refusedBy says why this longhaul's configuration has no such pair.
func refusedBy(ctx context.Context, program, way string) string {
	file := filepath.Join("/run", "pairs-"+way+".yaml")
	text := fmt.Sprintf("tunnels:\n  - {name: main, %s}\n", nearTunnel(way))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err.Error()
	}
	defer os.Remove(file)
	out, err := exec.CommandContext(ctx, program, "config", "check", file).CombinedOutput()
	if err == nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimPrefix(first, "longhaul: "+file+":")
}
