//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/control"
	"longhaul/internal/daemon"
	"longhaul/internal/display"
	"longhaul/internal/httpd"
	"longhaul/internal/remedy"
)

// maxHealth bounds the answer of a health check, in bytes.
const maxHealth = 4 << 10

func newReady(env *env) *cobra.Command {
	var (
		asJSON         bool
		remote, ignore string
		timeout        time.Duration
		chosen         relayChoice
	)
	cmd := &cobra.Command{
		Use:   "ready [TUNNEL]",
		Short: "Say by the exit code whether the relay serves new flows",
		Long: `ready asks the running relay whether new flows of a tunnel, or of every
tunnel, are served: it listens, is not draining, sheds no flows, and its
event loops answer, and a hop can be used. It is for the check scripts of
keepalived and others.

Exit codes: 0 ready, 1 not ready or no relay there, 2 wrong command line.`,
		Example: `  longhaul ready
  longhaul ready to-site-b --ignore shedding,hops
  longhaul ready --http 10.10.10.20:9463 --timeout 500ms`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(remedy.New(fmt.Errorf("%s takes one tunnel, and got %d", cmd.CommandPath(), len(args)), "see "+cmd.CommandPath()+" --help"))
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	chosen.register(flags)
	flags.StringVar(&remote, "http", "", "ask at this `ADDRESS:PORT` of http_listen instead")
	flags.StringVar(&ignore, "ignore", "", "`WHAT` does not matter: shedding, hops, or both")
	flags.DurationVar(&timeout, "timeout", 2*time.Second, "how long the answer may take")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target := "/readyz"
		if len(args) == 1 {
			target += "/" + url.PathEscape(args[0])
		}
		if _, err := daemon.ParseIgnored(ignore); err != nil {
			return usageError(remedy.New(err, "what can be ignored: "+daemon.Ignorable))
		}
		if ignore != "" {
			target += "?ignore=" + ignore
		}
		if timeout <= 0 {
			return usageError(remedy.New(fmt.Errorf("the timeout cannot be %v", timeout), "give a time such as 500ms or 2s"))
		}
		if remote != "" {
			if _, err := netip.ParseAddrPort(remote); err != nil {
				return usageError(remedy.New(fmt.Errorf("%q is not an address with a port", remote), "write it like 127.0.0.1:9463 or [::1]:9463"))
			}
			if chosen.isGiven() {
				return usageError(remedy.New(errors.New("--http and --control-socket or --name are two ways to ask"), "leave one of them out"))
			}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		status, reason, err := askHealth(ctx, env, remote, chosen, target)
		if errors.Is(err, context.DeadlineExceeded) {
			err = remedy.New(fmt.Errorf("the relay did not answer within %v", timeout), "its log, and longhaul status, may say why")
		}
		switch {
		case err == nil && status == http.StatusNotFound && strings.HasPrefix(reason, "404"):
			err = remedy.New(errors.New("what answers is not a relay"), "give the address of http_listen")
		case err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable && status != http.StatusNotFound:
			err = remedy.New(fmt.Errorf("the answer was %d: %s", status, reason), "the relay may be of another version, or not be one")
		}
		if asJSON {
			a := readyAnswer{Ready: err == nil && status == http.StatusOK}
			switch {
			case err != nil:
				a.Reason = err.Error()
			case !a.Ready:
				a.Reason = reason
			}
			if err := display.WriteJSON(env.stdout, a); err != nil {
				return err
			}
			if !a.Ready {
				return &exitError{nil, exitFailure}
			}
			return nil
		}
		switch {
		case err != nil:
			return err
		case status != http.StatusOK:
			return &exitError{errors.New("not ready: " + reason), exitFailure}
		}
		_, err = fmt.Fprintln(env.stdout, "ready")
		return err
	}
	return cmd
}

// readyAnswer is the JSON of `longhaul ready`.
type readyAnswer struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why it is not
}

// askHealth asks over HTTP where there is an address, or else through the
// control socket, and returns the status and the line that came with it.
func askHealth(ctx context.Context, env *env, remote string, chosen relayChoice, target string) (status int, line string, err error) {
	var body []byte
	if remote != "" {
		status, body, err = httpd.Get(ctx, remote, target, maxHealth)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = remedy.New(fmt.Errorf("nobody answers at %s", remote), "start longhaul relay with http_listen: "+remote)
		}
	} else {
		status, body, err = getFromRelay(ctx, env, chosen, target)
	}
	return status, strings.TrimSpace(string(body)), err
}

// getFromRelay asks the chosen relay, or else the usual one, or, where that does
// not run, the only other: one that is started beside the usual one must not make
// check scripts fail, nor hold them up.
func getFromRelay(ctx context.Context, env *env, chosen relayChoice, target string) (status int, body []byte, err error) {
	if !chosen.isGiven() {
		usual := control.PathIn(control.Directory(env.getenv), control.DefaultName)
		status, body, err = control.Get(ctx, usual, target)
		if !errors.Is(err, control.ErrNotRunning) {
			return status, body, controlError(err)
		}
	}
	path, err := chosen.path(ctx, env)
	if err == nil {
		status, body, err = control.Get(ctx, path, target)
	}
	return status, body, controlError(err)
}
