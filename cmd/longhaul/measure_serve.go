package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/measure"
	"longhaul/internal/remedy"
)

func (f *measureFlags) runServer(cmd *cobra.Command, env *env) error {
	var tokens []measure.Token
	if f.tokens != "" {
		var err error
		if tokens, err = measure.ReadTokenFile(f.tokens); err != nil {
			return usageError(err)
		}
	}
	if err := f.completeLimits(cmd); err != nil {
		return usageError(err)
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(f.listen, strconv.Itoa(int(f.port))))
	if err != nil {
		return remedy.New(fmt.Errorf("listen for tests: %w", err),
			"choose another port with --port; an iperf3 -s may have this one")
	}
	to := ""
	if len(tokens) > 0 {
		to = " to " + display.Plural(len(tokens), "token")
	}
	fmt.Fprintf(env.stderr, "serving tests on %s%s\n", l.Addr(), to)
	server := &measure.Server{
		Version: version(),
		Tokens:  tokens,
		Limits:  f.limits,
		Started: func(client net.Addr, p measure.Parameters) {
			who, long := client.String(), fmt.Sprintf("%d s", p.Time)
			if len(tokens) > 0 {
				who += " (" + p.Longhaul.Token + ")"
			}
			if p.Time == 0 {
				long = display.Quantity(p.Bytes) + "B"
			}
			fmt.Fprintf(env.stderr, "test from %s: %s, %s\n", who, display.Plural(p.Parallel, "stream"), long)
		},
		Ended: func(client net.Addr, _ measure.Parameters, err error) {
			if err != nil {
				fmt.Fprintf(env.stderr, "longhaul: the test from %s failed: %v\n", client, err)
			}
		},
	}
	return server.Serve(ctx, l)
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
