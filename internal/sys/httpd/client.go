package httpd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// ErrCut is returned for an answer that was incomplete or too long.
var ErrCut = errors.New("the answer was cut short")

// Get requests a target such as /readyz from a TCP address, and returns the
// status and the body of at most limit bytes.
func Get(ctx context.Context, address, target string, limit int64) (status int, body []byte, err error) {
	return GetFrom(ctx, address, target, limit, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, "tcp", address)
	})
}

// GetFrom is [Get] over a connection from dial; host is the Host header.
func GetFrom(
	ctx context.Context, host, target string, limit int64, dial func(context.Context) (net.Conn, error),
) (status int, body []byte, err error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+target, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrCut, err)
	}
	return resp.StatusCode, body, nil
}
