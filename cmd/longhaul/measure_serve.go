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
	fmt.Fprintf(env.stderr, "serving tests on %s\n", l.Addr())
	server := &measure.Server{
		Version: version(),
		Tokens:  tokens,
		Started: func(client net.Addr, p measure.Parameters) {
			fmt.Fprintf(env.stderr, "test from %s: %s, %d s\n", client, plural(p.Parallel, "stream"), p.Time)
		},
		Ended: func(client net.Addr, _ measure.Parameters, err error) {
			if err != nil {
				fmt.Fprintf(env.stderr, "longhaul: the test from %s failed: %v\n", client, err)
			}
		},
	}
	return server.Serve(ctx, l)
}
