package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/localsocket"
	"longhaul/internal/sys/process"
)

// maxReply bounds a reply: a status with 100 000 flows has about 60 MB.
const maxReply = 256 << 20

// Bounds of a status request: all of it, and until the relay's first sign.
const (
	statusTimeout = 30 * time.Second
	signTimeout   = 3 * time.Second
)

// ErrNotRunning is returned when no process answers on the socket.
var ErrNotRunning = errors.New("no relay answers here")

// ErrForbidden is returned when the socket belongs to another user.
var ErrForbidden = errors.New("the control socket belongs to another user")

// ErrGone is returned when the relay ended before it answered.
var ErrGone = errors.New("the relay ended before it answered")

// SilentError is returned when a relay takes a connection and gives no sign of life.
type SilentError struct {
	Path    string
	PID     int  // of the relay; 0: unknown
	Stopped bool // by a signal, or by a debugger
}

func (e *SilentError) Error() string {
	if e.Stopped {
		return fmt.Sprintf("%s: process %d, the relay, is stopped", e.Path, e.PID)
	}
	return fmt.Sprintf("%s: the relay takes connections, and has given no answer for %v", e.Path, signTimeout)
}

// Status fetches the JSON of GET /v1/status from the socket at path. The error of a relay without a sign
// of life is a [*SilentError].
func Status(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	for try := 1; ; try++ {
		body, err := askAwake(ctx, path)
		// The next relay may already answer at the same path.
		if try == statusTries || !errors.Is(err, ErrGone) {
			return body, err
		}
	}
}

const statusTries = 3

// askAwake asks for a status, and gives up early if there is no sign of one: the relay says at once that it
// works on it.
func askAwake(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := &SilentError{Path: path}
	alarm := time.AfterFunc(signTimeout, func() { cancel(silent) })
	defer alarm.Stop()
	sign := &httptrace.ClientTrace{GotFirstResponseByte: func() { alarm.Stop() }}
	body, err := ask(httptrace.WithClientTrace(ctx, sign), path, http.MethodGet, "status", nil)
	if err == nil || context.Cause(ctx) != error(silent) {
		return body, err
	}
	if pid, err := PIDOf(context.WithoutCancel(ctx), path); err == nil {
		silent.PID, silent.Stopped = pid, process.Stopped(pid)
	}
	return nil, silent
}

// Do sends a verb to the relay and returns its JSON answer. It waits until ctx
// ends, which also cancels the verb. A refusal is a [*Refusal].
func Do(ctx context.Context, path, verb string, arguments url.Values) ([]byte, error) {
	return ask(ctx, path, http.MethodPost, verb, arguments)
}

func ask(ctx context.Context, path, method, what string, arguments url.Values) ([]byte, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
	}
	defer transport.CloseIdleConnections()
	target := "http://" + requestHost + "/v1/" + url.PathEscape(what)
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(arguments.Encode()))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, unanswered(ctx, path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: the relay's answer was cut short: %w", path, err)
	case len(body) > maxReply:
		return nil, fmt.Errorf("%s: the relay's answer is longer than %d bytes", path, maxReply)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusUnprocessableEntity:
		var refusal Refusal
		if json.Unmarshal(body, &refusal) == nil && refusal.Problem != "" {
			return nil, &refusal
		}
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if method == http.MethodPost {
			return nil, &Refusal{"the running relay does not know " + what,
				"it has an older version: restart it with this one"}
		}
	}
	return nil, fmt.Errorf("%s: the relay answered %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
}

// requestHost is the host of requests; the socket's path is the real address.
const requestHost = "longhaul"

// dial connects to a relay of root or of the calling user.
func dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := localsocket.CheckServer(conn.(*net.UnixConn)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// PIDOf returns the process that listens at path, 0 if it is outside the PID namespace
// of this one.
func PIDOf(ctx context.Context, path string) (int, error) {
	conn, err := dial(ctx, path)
	if err != nil {
		return 0, unanswered(ctx, path, err)
	}
	defer conn.Close()
	peer, err := localsocket.Peer(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// unanswered explains the error of a request without an answer.
func unanswered(ctx context.Context, path string, err error) error {
	var dialing *net.OpError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, localsocket.ErrForeign):
		return fmt.Errorf("%s: %w", path, ErrForbidden)
	case ctx.Err() != nil, errors.As(err, &dialing) && dialing.Op == "dial":
		return fmt.Errorf("%s: the relay did not answer: %w", path, err)
	}
	return fmt.Errorf("%s: %w", path, hungUp(path))
}

// hungUp explains why a connection ended without an answer: a relay closes the
// connections of untrusted users.
func hungUp(path string) error {
	var socket unix.Stat_t
	if unix.Stat(path, &socket) == nil && os.Geteuid() != 0 && int(socket.Uid) != os.Geteuid() {
		return ErrForbidden
	}
	return ErrGone
}

// Get fetches another target, such as /readyz, from the socket at path, and
// returns its HTTP status.
func Get(ctx context.Context, path, target string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	dialPath := func(ctx context.Context) (net.Conn, error) { return dial(ctx, path) }
	status, body, err = httpd.GetFrom(ctx, requestHost, target, maxReply, dialPath)
	if err != nil && !errors.Is(err, httpd.ErrCut) {
		return 0, nil, unanswered(ctx, path, err)
	}
	return status, body, err
}
