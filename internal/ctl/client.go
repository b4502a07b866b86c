package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/report"
)

// ErrNotRunning says that no daemon answers on the socket.
var ErrNotRunning = errors.New("gpulab is not running on this machine; start it with `gpulab init`")

// ErrNotAllowed says that only root may open the socket.
var ErrNotAllowed = errors.New("only root may do this; run it with sudo")

// Client talks to the daemon on this machine. It implements Daemon.
type Client struct{ http *http.Client }

var _ Daemon = (*Client)(nil)

// NewClient returns a client for the socket; nothing is opened yet.
func NewClient(socket string) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (c *Client) do(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	return c.send(ctx, method, path, body)
}

func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://gpulab"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, ErrNotRunning
	case errors.Is(err, fs.ErrPermission):
		return nil, ErrNotAllowed
	case err != nil:
		return nil, fmt.Errorf("talking to gpulab: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		p := Problem{Message: resp.Status}
		_ = json.NewDecoder(resp.Body).Decode(&p)
		return nil, &p
	}
	return resp, nil
}

// call sends in and decodes the answer.
func call[T any](ctx context.Context, c *Client, method, path string, in any) (T, error) {
	var out T
	resp, err := c.do(ctx, method, path, in)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, fmt.Errorf("gpulab's answer could not be read: %w", err)
	}
	return out, nil
}

// Status implements Daemon.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, "GET", "/v1/status", nil)
}

// Metrics implements Daemon.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, "GET", "/v1/metrics", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("gpulab's answer could not be read: %w", err)
	}
	return nil
}

// Charts implements Daemon.
func (c *Client) Charts(ctx context.Context) ([]Chart, error) {
	return call[[]Chart](ctx, c, "GET", "/v1/charts", nil)
}

// AdminLink implements Daemon.
func (c *Client) AdminLink(ctx context.Context) (Link, error) {
	return call[Link](ctx, c, "POST", "/v1/admin-link", nil)
}

// AddUser implements Daemon.
func (c *Client) AddUser(ctx context.Context, u NewUser) (UserWithLink, error) {
	return call[UserWithLink](ctx, c, "POST", "/v1/users", u)
}

// PasswordLink implements Daemon.
func (c *Client) PasswordLink(ctx context.Context, handle string) (UserWithLink, error) {
	return call[UserWithLink](ctx, c, "POST", "/v1/users/"+url.PathEscape(handle)+"/password-link", nil)
}

// LendGPU implements Daemon.
func (c *Client) LendGPU(ctx context.Context, which string, anyway bool) (gpu.GPU, error) {
	return call[gpu.GPU](ctx, c, "POST", "/v1/gpus/"+url.PathEscape(which)+"/lend", lendGPU{anyway})
}

// Usage implements Daemon.
func (c *Client) Usage(ctx context.Context, f history.Filter, by history.By) ([]history.Usage, error) {
	return call[[]history.Usage](ctx, c, "POST", "/v1/usage", usageQuestion{f, by})
}

// Report implements Daemon.
func (c *Client) Report(ctx context.Context, weeks int) (report.Report, error) {
	return call[report.Report](ctx, c, "GET", "/v1/report?weeks="+strconv.Itoa(weeks), nil)
}

// CheckGPU implements Daemon.
func (c *Client) CheckGPU(ctx context.Context) (string, error) {
	return call[string](ctx, c, "POST", "/v1/gpus/check", nil)
}

// WatchBoot implements Daemon.
func (c *Client) WatchBoot(ctx context.Context, fn func(Boot) error) error {
	resp, err := c.do(ctx, "GET", "/v1/boot", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var b Boot
		if err := dec.Decode(&b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("gpulab went away: %w", err)
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}
