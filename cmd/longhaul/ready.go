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

	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

// maxHealth bounds the answer of a health check, in bytes.
const maxHealth = 4 << 10

func newReady(env *env) *cobra.Command {
	var (
		asJSON         bool
		remote, ignore string
		timeout        = 2 * time.Second
		chosen         relayChoice
	)
	cmd := &cobra.Command{
		Use:   "ready [TUNNEL]",
		Short: "Report by exit code whether the relay serves new flows",
		Long: `ready asks the running relay whether it serves new flows of a tunnel, or of
every tunnel: it listens, is not draining, is at no limit, its event loops
answer, and its pair or a hop is up, or was not tried yet. keepalived's check
scripts can run it.

Exit codes: 0 ready, 1 not ready or no relay, 2 wrong command line.`,
		Example: `  longhaul ready
  longhaul ready to-site-b --ignore shedding,hops
  longhaul ready --http 10.10.10.20:9463 --timeout 500ms`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(remedy.New(fmt.Errorf("%s takes one tunnel, got %d", cmd.CommandPath(), len(args)),
					"see "+cmd.CommandPath()+" --help"))
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	chosen.register(flags)
	flags.StringVar(&remote, "http", "", "ask this `ADDRESS:PORT` of http_listen or health_listen")
	flags.StringVar(&ignore, "ignore", "", "ignore `WHAT`: shedding, hops, host, or several")
	flagvalue.AddDuration(flags, &timeout, "timeout", "longest wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target := "/readyz"
		if len(args) == 1 {
			target += "/" + url.PathEscape(args[0])
		}
		if _, err := daemon.ParseIgnored(ignore); err != nil {
			return usageError(remedy.New(err, "choose from "+daemon.Ignorable))
		}
		if ignore != "" {
			target += "?ignore=" + ignore
		}
		if timeout <= 0 {
			return usageError(remedy.New(fmt.Errorf("invalid --timeout %v", timeout),
				"give a time such as 500ms or 2s"))
		}
		if remote != "" {
			if _, err := netip.ParseAddrPort(remote); err != nil {
				return usageError(remedy.New(fmt.Errorf("invalid address or port %q", remote),
					"write it like 127.0.0.1:9463 or [::1]:9463"))
			}
			if chosen.isGiven() {
				return usageError(remedy.New(errors.New("choose --http, or --control-socket or --name"),
					"leave one of them out"))
			}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		status, reason, err := askHealth(ctx, env, remote, chosen, target)
		if err == nil && status == http.StatusServiceUnavailable && strings.HasSuffix(reason, "is draining") {
			// A process may be replaced between its accept and its answer. Its successor has the socket.
			status, reason, err = askHealth(ctx, env, remote, chosen, target)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = remedy.New(fmt.Errorf("the relay did not answer within %v", timeout),
				"see its log and longhaul status")
		}
		switch {
		case err == nil && status == http.StatusNotFound && strings.HasPrefix(reason, "404"):
			err = remedy.New(errors.New("the server there is no relay"), "give the address of http_listen")
		case err == nil && status == http.StatusBadRequest && strings.HasSuffix(reason, "to an HTTPS server."):
			err = remedy.New(errors.New("http_listen speaks TLS there"), "ask an address of health_listen, or leave --http out")
		case err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable && status != http.StatusNotFound:
			err = remedy.New(fmt.Errorf("the answer was %d: %s", status, reason),
				"the server may be a relay of another version, or no relay")
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
	Reason string `json:"reason,omitempty"` // if not ready
}

// askHealth asks over HTTP if it has an address, or else through the control socket.
// It returns the status and the line of the answer.
func askHealth(ctx context.Context, env *env, remote string, chosen relayChoice, target string) (status int, line string, err error) {
	var body []byte
	if remote != "" {
		status, body, err = httpd.Get(ctx, remote, target, maxHealth)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = remedy.New(fmt.Errorf("no answer at %s", remote), "start longhaul relay with http_listen: "+remote)
		}
	} else {
		status, body, err = getFromRelay(ctx, env, chosen, target)
	}
	return status, strings.TrimSpace(string(body)), err
}

// getFromRelay asks the chosen relay, or else the one with the default name. If that
// does not run, it asks the only other. A second relay must not make check scripts
// fail or wait.
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
