package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"longhaul/internal/measure"
)

func (f *measureFlags) runServer(cmd *cobra.Command, env *env) error {
	var tokens []measure.Token
	if f.tokens != "" {
		var err error
		if tokens, err = readTokens(f.tokens); err != nil {
			return usageError(err)
		}
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(f.listen, strconv.Itoa(int(f.port))))
	if err != nil {
		return &hintError{fmt.Errorf("cannot listen: %w", err), "choose another port with --port; an iperf3 -s may have this one"}
	}
	to := ""
	if len(tokens) > 0 {
		to = " to " + plural(len(tokens), "token")
	}
	fmt.Fprintf(env.stderr, "serving tests on %s%s\n", l.Addr(), to)
	server := &measure.Server{
		Version: version(),
		Tokens:  tokens,
		Started: func(client net.Addr, p measure.Parameters) {
			who, long := client.String(), fmt.Sprintf("%d s", p.Time)
			if len(tokens) > 0 {
				who += " (" + p.Longhaul.Token + ")"
			}
			if p.Time == 0 {
				long = quantity(p.Bytes) + "B"
			}
			fmt.Fprintf(env.stderr, "test from %s: %s, %s\n", who, plural(p.Parallel, "stream"), long)
		},
		Ended: func(client net.Addr, _ measure.Parameters, err error) {
			if err != nil {
				fmt.Fprintf(env.stderr, "longhaul: the test from %s failed: %v\n", client, err)
			}
		},
	}
	return server.Serve(ctx, l)
}
