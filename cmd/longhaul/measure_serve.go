package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"longhaul/internal/find/measure"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func (f *measureFlags) runServer(cmd *cobra.Command, env *env) error {
	if err := f.completeLimits(cmd); err != nil {
		return usageError(err)
	}
	address, err := f.listenAddress(cmd)
	if err != nil {
		return usageError(err)
	}
	if err := restartInNamespace(f.namespace); err != nil {
		return err
	}
	var tokens []measure.Token
	if f.tokens != "" {
		if tokens, err = measure.ReadTokenFile(f.tokens); err != nil {
			return usageError(err)
		}
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return explainListen(address, err)
	}
	to := ""
	if len(tokens) > 0 {
		to = " to " + display.Plural(len(tokens), "token")
	}
	fmt.Fprintf(env.stderr, "serving tests on %s%s; Ctrl-C ends it\n", l.Addr(), to)
	name := func(client net.Addr, p measure.Parameters) string {
		if len(tokens) > 0 && p.Longhaul != nil && p.Longhaul.Token != "" {
			return client.String() + " (" + p.Longhaul.Token + ")"
		}
		return client.String()
	}
	server := &measure.Server{
		Version: version(),
		Tokens:  tokens,
		Limits:  f.limits,
		Started: func(client net.Addr, p measure.Parameters) {
			long := fmt.Sprintf("%d s", p.Time)
			if p.Time == 0 {
				long = display.Quantity(p.Bytes) + "B"
			}
			fmt.Fprintf(env.stderr, "test from %s: %s, %s\n", name(client, p), display.Plural(p.Parallel, "stream"), long)
		},
		Ended: func(client net.Addr, p measure.Parameters, moved measure.Moved, err error) {
			for _, one := range []struct {
				verb  string
				bytes int64
			}{{"received", moved.ReceivedBytes}, {"sent", moved.SentBytes}} {
				if seconds := moved.Elapsed.Seconds(); seconds > 0 && one.bytes > 0 {
					fmt.Fprintf(env.stderr, "test from %s: %s %sB in %.1f s: %s\n", name(client, p), one.verb,
						display.Quantity(one.bytes), seconds, display.Rate(float64(one.bytes)*8/seconds))
				}
			}
			switch {
			case errors.Is(err, measure.ErrInterrupted):
				fmt.Fprintf(env.stderr, "longhaul: the test from %s was interrupted\n", name(client, p))
			case err != nil:
				fmt.Fprintf(env.stderr, "longhaul: the test from %s failed: %v\n", name(client, p), err)
			}
		},
	}
	return server.Serve(ctx, l)
}

// listenAddress returns ADDRESS:PORT of --listen and --port.
func (f *measureFlags) listenAddress(cmd *cobra.Command) (string, error) {
	if f.listen == "" {
		return net.JoinHostPort("", strconv.Itoa(int(f.port))), nil
	}
	if host, _, err := net.SplitHostPort(f.listen); err == nil && host == "" {
		if cmd.Flags().Changed("port") {
			return "", remedy.New(fmt.Errorf("two ports: --listen %s and --port %d", f.listen, f.port), "leave one of them out")
		}
		return f.listen, nil
	}
	return f.address(cmd, f.listen)
}

// explainListen returns the error of a socket that cannot listen, with its hint.
func explainListen(address string, err error) error {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return remedy.New(fmt.Errorf("find the address of %s: %s", dns.Name, dns.Err), "give an address of this host")
	case errors.Is(err, syscall.EADDRINUSE):
		return remedy.New(fmt.Errorf("listen on %s: the port is in use", address),
			"choose another one with --port; an iperf3 -s may have this one")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return remedy.New(fmt.Errorf("listen on %s: this host has no such address", address), "leave --listen out for all addresses")
	case errors.Is(err, syscall.EACCES):
		return remedy.New(fmt.Errorf("listen on %s: permission denied", address), "choose a port from 1024, or run this as root")
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

// completeLimits parses the limits of clients' tests.
func (f *measureFlags) completeLimits(cmd *cobra.Command) error {
	var window int64
	if err := readSize(f.maxWindow, "max-window", &window); err != nil {
		return err
	}
	f.limits.WindowBytes = int(window)
	for name, zero := range map[string]bool{
		"max-time": f.limits.Duration == 0, "max-streams": f.limits.Streams == 0, "max-window": window == 0,
	} {
		if zero && cmd.Flags().Changed(name) {
			return remedy.New(fmt.Errorf("--%s 0 allows no test", name), "leave it out for the default")
		}
	}
	return f.limits.Check()
}
