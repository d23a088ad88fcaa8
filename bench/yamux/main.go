// Command yamuxtunnel carries TCP connections over one connection with yamux, as the
// usual multiplexing tunnels do: a rival of `go run ./bench/pairs stripes`.
//
//	yamuxtunnel far ADDRESS TARGET     takes the tunnel, and dials the target for each stream
//	yamuxtunnel near ADDRESS FAR       takes clients, and opens a stream for each
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/hashicorp/yamux"
)

// streamWindow is enough for any path of the lab: yamux's own of 256 KiB would be the
// limit before the path is.
const streamWindow = 32 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "yamuxtunnel:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 || args[0] != "near" && args[0] != "far" {
		return fmt.Errorf("usage: yamuxtunnel near|far LISTEN FORWARD")
	}
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.LogOutput = os.Stderr
	listener, err := net.Listen("tcp4", args[1])
	if err != nil {
		return err
	}
	if args[0] == "near" {
		return near(listener, args[2], config)
	}
	return far(listener, args[2], config)
}

// near opens a stream for each client. The tunnel is made for the first one.
func near(clients net.Listener, to string, config *yamux.Config) error {
	var tunnel *yamux.Session
	for {
		client, err := clients.Accept()
		if err != nil {
			return err
		}
		if tunnel == nil || tunnel.IsClosed() {
			conn, err := net.Dial("tcp4", to)
			if err != nil {
				return err
			}
			if tunnel, err = yamux.Client(conn, config); err != nil {
				return err
			}
		}
		stream, err := tunnel.Open()
		if err != nil {
			client.Close()
			continue
		}
		go carry(client, stream)
	}
}

// far dials the target for each stream.
func far(tunnels net.Listener, target string, config *yamux.Config) error {
	for {
		conn, err := tunnels.Accept()
		if err != nil {
			return err
		}
		tunnel, err := yamux.Server(conn, config)
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := tunnel.Accept()
				if err != nil {
					return
				}
				go func() {
					conn, err := net.Dial("tcp4", target)
					if err != nil {
						stream.Close()
						return
					}
					carry(conn, stream)
				}()
			}
		}()
	}
}

// carry copies both ways until both have ended. A stream of yamux ends as a whole when it
// is closed for writing, but still reads.
func carry(conn, stream net.Conn) {
	defer conn.Close()
	defer stream.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, err := io.Copy(stream, conn)
		stream.Close()
		if err != nil {
			conn.Close()
		}
	})
	both.Go(func() {
		_, err := io.Copy(conn, stream)
		if err != nil {
			conn.Close()
			return
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	both.Wait()
}
