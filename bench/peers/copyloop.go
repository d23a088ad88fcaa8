package peers

import (
	"context"
	"io"
	"net"
	"sync"
)

// CopyLoopCommand is the first argument by which a benchmark becomes the copy
// loop itself; the two addresses follow.
const CopyLoopCommand = "copy-loop"

// CopyLoop is the relay that every Go programmer writes first, in its careful
// form: two io.Copy for each connection, and each passes an end of stream on.
// It returns when the context is done.
func CopyLoop(ctx context.Context, listen, target string) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go forward(ctx, c.(*net.TCPConn), target)
	}
}

func forward(ctx context.Context, client *net.TCPConn, target string) {
	defer client.Close()
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer c.Close()
	server := c.(*net.TCPConn)
	pass := func(to, from *net.TCPConn) {
		io.Copy(to, from)
		to.CloseWrite()
	}
	var both sync.WaitGroup
	both.Go(func() { pass(server, client) })
	both.Go(func() { pass(client, server) })
	both.Wait()
}
