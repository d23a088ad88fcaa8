package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"syscall"
	"time"

	"longhaul/internal/httpd"
)

// maxReply bounds a reply: a status with 100 000 flows has about 60 MB.
const maxReply = 256 << 20

// ErrNotRunning is returned when nobody answers on the socket.
var ErrNotRunning = errors.New("no relay answers here")

// ErrForbidden is returned when the socket belongs to another user.
var ErrForbidden = errors.New("the control socket belongs to another user")

// Status fetches the JSON of GET /v1/status from the socket at path.
func Status(ctx context.Context, path string) ([]byte, error) {
	status, body, err := Get(ctx, path, "/v1/status")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: the relay answered %d %s: %s", path, status, http.StatusText(status), strings.TrimSpace(string(body)))
	}
	if err != nil {
		return nil, err
	}
	return body, nil
}

// Get fetches a target from the socket at path, with its HTTP status.
func Get(ctx context.Context, path, target string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	status, body, err = httpd.Get(ctx, "unix", path, target, maxReply)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return 0, nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, httpd.ErrCut):
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// A relay that does not trust the caller hangs up without a word.
		return 0, nil, fmt.Errorf("%s: %w", path, ErrForbidden)
	case err != nil:
		return 0, nil, fmt.Errorf("%s: the relay did not answer: %w", path, err)
	}
	return status, body, nil
}
