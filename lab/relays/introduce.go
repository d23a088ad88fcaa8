package relays

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"

	"longhaul/lab/hosts"
)

// Peer is one of two hosts of a pair.
type Peer struct {
	Host *hosts.Host
	Name string // that the other one gives it
	Keys string // directory of its keys
}

// Introduce makes two hosts peers, as operators do: one invites at an address of its
// own, the other joins there.
func Introduce(ctx context.Context, program string, inviter, joiner Peer, at string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	invite := exec.CommandContext(ctx, program, "pair", "invite", joiner.Name, "--as", inviter.Name, "--serve", at, "--dir", inviter.Keys)
	out, err := invite.StdoutPipe()
	if err != nil {
		return err
	}
	var said lockedBuffer
	invite.Stderr = &said
	if err := inviter.Host.Start(invite); err != nil {
		return err
	}
	line, err := invitation(out)
	if err == nil {
		err = join(ctx, program, joiner, inviter.Name, line)
	}
	if err != nil {
		cancel() // the inviter waits for the joiner
	}
	if waitErr := invite.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("longhaul pair invite: %w\n%s", waitErr, said.String()))
	}
	return err
}

func join(ctx context.Context, program string, joiner Peer, as, line string) error {
	cmd := exec.CommandContext(ctx, program, "pair", "join", line, "--as", as, "--dir", joiner.Keys)
	var said lockedBuffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := joiner.Host.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("longhaul pair join on %s: %w\n%s", joiner.Host.Name, err, said.String())
	}
	return nil
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
