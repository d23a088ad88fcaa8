package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// maxReply bounds a reply: a status with 100 000 flows has about 60 MB.
const maxReply = 256 << 20

// ErrNotRunning is returned when nobody answers on the socket.
var ErrNotRunning = errors.New("no relay answers here")

// ErrForbidden is returned when the socket belongs to another user.
var ErrForbidden = errors.New("the control socket belongs to another user")

// Status fetches the JSON of GET /v1/status from the socket at path.
func Status(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	defer transport.CloseIdleConnections()
	// The host is a placeholder: the address is the socket's path.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://longhaul/v1/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// A relay that does not trust the caller hangs up without a word.
		return nil, fmt.Errorf("%s: %w", path, ErrForbidden)
	case err != nil:
		return nil, fmt.Errorf("%s: the relay did not answer: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("%s: the relay's answer was cut short: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the relay answered %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}
