// Command top measures what longhaul top costs beside many connections: its
// live view, refreshed each second in a pseudo terminal.
//
//	go run ./bench/top --connections 10000 --time 30s
//	go run ./bench/top -- --filter receiver-window
//
// Arguments are those of longhaul top.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/sys/pty"
)

func main() { kit.Command("top", run) }

// bench is what to measure.
type bench struct {
	kit.Longhaul
	connections int
	time        time.Duration
	bytes       int      // that each pair of them sends a second
	args        []string // for longhaul top
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("top", flag.ContinueOnError)
	b := bench{Longhaul: kit.Longhaul{Flags: flags}}
	flags.IntVar(&b.connections, "connections", 10_000, "how many, both ends of each pair counted")
	flags.DurationVar(&b.time, "time", 30*time.Second, "how long to watch them")
	flags.IntVar(&b.bytes, "bytes", 1000, "that each pair sends a second; 0: all are idle")
	b.Check = func() error {
		b.args = flags.Args()
		if b.connections < 2 || b.time < time.Second || b.bytes < 0 {
			return errors.New("--connections takes 2 or more, --time 1s or more, --bytes 0 or more")
		}
		return nil
	}
	return b.Run(ctx, args, stdout, stderr, func() error { return b.run(ctx, stdout) })
}

func (b *bench) run(ctx context.Context, stdout io.Writer) error {
	pairs := b.connections / 2
	clients, err := connect(ctx, pairs)
	if err != nil {
		return fmt.Errorf("make %d connections: %w", b.connections, err)
	}
	if b.bytes > 0 {
		go send(clients, b.bytes)
	}
	listed, err := b.count(ctx)
	if err != nil {
		return err
	}
	if listed < 2*pairs {
		return fmt.Errorf("of %d connections longhaul top lists %d", 2*pairs, listed)
	}
	used, memory, err := b.watch(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d connections, %d bytes a second through each pair, %v: %.1f %% of a core, %d MB resident at most\n",
		listed, b.bytes, b.time, 100*used.Seconds()/b.time.Seconds(), memory>>20)
	fmt.Fprintf(stdout, "Linux %s\n", peers.KernelVersion())
	return nil
}

// connect makes pairs of connected sockets. What comes in is read; they end
// with this process.
func connect(ctx context.Context, pairs int) ([]net.Conn, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	clients := make([]net.Conn, pairs)
	for i := range clients {
		if clients[i], err = dialer.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
			return nil, err
		}
		server, err := l.Accept()
		if err != nil {
			return nil, err
		}
		go io.Copy(io.Discard, server)
	}
	return clients, nil
}

// send writes to every connection once a second, spread over it.
func send(clients []net.Conn, size int) {
	data := make([]byte, size)
	const steps = 20
	ticker := time.NewTicker(time.Second / steps)
	for step := 0; ; step = (step + 1) % steps {
		<-ticker.C
		for _, c := range clients[len(clients)*step/steps : len(clients)*(step+1)/steps] {
			c.Write(data) // one that fails is counted as idle
		}
	}
}

// count is how many connections are listed.
func (b *bench) count(ctx context.Context) (int, error) {
	table, err := exec.CommandContext(ctx, b.Binary, "top", "--once").Output()
	if err != nil {
		return 0, fmt.Errorf("longhaul top --once: %w", err)
	}
	return bytes.Count(table, []byte("127.0.0.1:")) / 2, nil
}

// watch runs the live view, and returns its processor time and its memory at
// most, in bytes.
func (b *bench) watch(ctx context.Context) (used time.Duration, memory int64, err error) {
	screen, terminal, err := pty.Open()
	if err != nil {
		return 0, 0, err
	}
	defer screen.Close()
	if err := pty.Resize(terminal, 80, 24); err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, b.Binary, append([]string{"top", "--interval", "1s"}, b.args...)...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, os.Stderr
	err = cmd.Start()
	terminal.Close()
	if err != nil {
		return 0, 0, err
	}
	go io.Copy(io.Discard, screen)
	select {
	case <-time.After(b.time):
		_, err = screen.Write([]byte("q"))
	case <-ctx.Done():
		err = ctx.Err()
		cmd.Process.Kill()
	}
	if ended := cmd.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		return 0, 0, fmt.Errorf("longhaul top: %w", err)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), usage.Maxrss << 10, nil
}
