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
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxReply bounds a reply: a status with 100 000 flows has about 60 MB.
const maxReply = 256 << 20

// statusPatience is how long a status may take.
const statusPatience = 30 * time.Second

// ErrNotRunning is returned when nobody answers on the socket.
var ErrNotRunning = errors.New("no relay answers here")

// ErrForbidden is returned when the socket belongs to another user.
var ErrForbidden = errors.New("the control socket belongs to another user")

// ErrGone is returned when the relay ended before it answered.
var ErrGone = errors.New("the relay ended before it answered")

// Status fetches the JSON of GET /v1/status from the socket at path.
func Status(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	return ask(ctx, path, http.MethodGet, "status", nil)
}

// Do has the relay carry out a verb and returns the JSON that it answers. It
// waits for as long as ctx lasts; when ctx ends the relay learns it. What the
// relay refuses is a [*Refusal].
func Do(ctx context.Context, path, verb string, arguments url.Values) ([]byte, error) {
	return ask(ctx, path, http.MethodPost, verb, arguments)
}

func ask(ctx context.Context, path, method, what string, arguments url.Values) ([]byte, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	defer transport.CloseIdleConnections()
	// The host is a placeholder: the address is the socket's path.
	req, err := http.NewRequestWithContext(ctx, method, "http://longhaul/v1/"+url.PathEscape(what), strings.NewReader(arguments.Encode()))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil, fmt.Errorf("%s: %w", path, hungUp(path, err))
	case err != nil:
		return nil, fmt.Errorf("%s: the relay did not answer: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("%s: the relay's answer was cut short: %w", path, err)
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
			return nil, &Refusal{"the running relay does not know " + what, "it is of an older version: restart it with this one"}
		}
	}
	return nil, fmt.Errorf("%s: the relay answered %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
}

// hungUp tells why there was no answer: a relay that does not trust the caller
// says nothing at all.
func hungUp(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return ErrForbidden
	}
	var socket unix.Stat_t
	if unix.Stat(path, &socket) == nil && os.Geteuid() != 0 && int(socket.Uid) != os.Geteuid() {
		return ErrForbidden
	}
	return ErrGone
}
