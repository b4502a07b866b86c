package notebooks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// HubConfig says how to reach JupyterHub's REST API.
type HubConfig struct {
	// Address is the hub's current host:port; ok is false while it has none.
	Address func() (hostPort string, ok bool)
	// Token is gpulab's service token in the hub.
	Token string
	// Timeout bounds one call, 0 = 20 s. A start may take the hub some seconds.
	Timeout time.Duration
}

// Hub is a client of JupyterHub's REST API, as far as gpulab needs it.
type Hub struct {
	cfg    HubConfig
	client *http.Client
}

// NewHub returns a client; it connects at the first call.
func NewHub(cfg HubConfig) *Hub {
	if cfg.Timeout == 0 {
		cfg.Timeout = 20 * time.Second
	}
	return &Hub{cfg: cfg, client: &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     30 * time.Second,
		},
		// The hub's API never redirects; following one would carry the token away.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ErrHubDown says that JupyterHub could not be reached or answered with a fault
// of its own; the same call may succeed later.
var ErrHubDown = errors.New("JupyterHub does not answer")

// HubError is an answer of the hub that is not success.
type HubError struct {
	Status     int
	Message    string        // the hub's own words
	RetryAfter time.Duration // of a 429, 0 when the hub names none
}

func (e *HubError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("JupyterHub answered %d", e.Status)
	}
	return fmt.Sprintf("JupyterHub answered %d: %s", e.Status, e.Message)
}

// Is makes a fault of the hub itself an ErrHubDown.
func (e *HubError) Is(target error) bool { return target == ErrHubDown && e.Status >= 500 }

// HubServer is the hub's view of one named server.
type HubServer struct {
	Name        string         `json:"name"`
	Pending     string         `json:"pending"` // "", spawn, stop, check or rename
	Ready       bool           `json:"ready"`
	Stopped     bool           `json:"stopped"`
	UserOptions map[string]any `json:"user_options"`
}

// EnsureUser makes the user known to the hub.
func (h *Hub) EnsureUser(ctx context.Context, handle string) error {
	_, err := h.call(ctx, http.MethodPost, "/users/"+url.PathEscape(handle), nil, nil)
	if isStatus(err, http.StatusConflict) {
		return nil
	}
	return wrapHub(err, "make %s known to JupyterHub", handle)
}

// StartServer asks for a server; one that is starting or running already is no
// error. A 429 comes back as *HubError with RetryAfter.
func (h *Hub) StartServer(ctx context.Context, handle, name, title string, options map[string]any) error {
	body := map[string]any{"display_name": title, "user_options": options}
	_, err := h.call(ctx, http.MethodPost, serverPath(handle, name), body, nil)
	if isStatus(err, http.StatusBadRequest) && strings.Contains(err.Error(), "already running") {
		return nil
	}
	return wrapHub(err, "start %s/%s", handle, name)
}

// StopServer asks for the end of a server. done says that the hub has nothing
// left of it; otherwise it is stopping and the call may be repeated.
func (h *Hub) StopServer(ctx context.Context, handle, name string) (done bool, err error) {
	status, err := h.call(ctx, http.MethodDelete, serverPath(handle, name), nil, nil)
	if isStatus(err, http.StatusNotFound) {
		return true, nil
	}
	return status == http.StatusNoContent, wrapHub(err, "stop %s/%s", handle, name)
}

// Server is the hub's view of a server; found is false when it knows none.
func (h *Hub) Server(ctx context.Context, handle, name string) (s HubServer, found bool, err error) {
	_, err = h.call(ctx, http.MethodGet, serverPath(handle, name), nil, &s)
	if isStatus(err, http.StatusNotFound) {
		return HubServer{}, false, nil
	}
	return s, err == nil, wrapHub(err, "ask for %s/%s", handle, name)
}

// FailureMessage is why the last start of a server failed, "" when the hub does
// not say. It must be asked only of a server that is neither starting nor ready.
func (h *Hub) FailureMessage(ctx context.Context, handle, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	res, err := h.send(ctx, http.MethodGet, serverPath(handle, name)+"/progress", nil)
	if err != nil {
		return "", err
	}
	defer func() { drain(res.Body); _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return "", nil
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event struct {
			Failed  bool   `json:"failed"`
			Ready   bool   `json:"ready"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return "", fmt.Errorf("read JupyterHub's progress: %w", err)
		}
		if event.Failed {
			return strings.TrimPrefix(event.Message, "Spawn failed: "), nil
		}
		if event.Ready {
			return "", nil
		}
	}
	return "", lines.Err()
}

// CheckProxy makes the hub compare the proxy's routes with its servers and send
// what is missing: after a start of gpulab, whose routes may be old.
func (h *Hub) CheckProxy(ctx context.Context) error {
	_, err := h.call(ctx, http.MethodPost, "/proxy", nil, nil)
	return wrapHub(err, "ask JupyterHub for its routes")
}

func serverPath(handle, name string) string {
	return "/users/" + url.PathEscape(handle) + "/servers/" + url.PathEscape(name)
}

// call sends body as JSON and decodes a successful answer into out, where both may be nil.
func (h *Hub) call(ctx context.Context, method, path string, body, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	res, err := h.send(ctx, method, path, body)
	if err != nil {
		return 0, err
	}
	defer func() { drain(res.Body); _ = res.Body.Close() }()
	if res.StatusCode >= 300 {
		return res.StatusCode, hubError(res)
	}
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 4<<20)).Decode(out); err != nil {
		return res.StatusCode, fmt.Errorf("read JupyterHub's answer: %w", err)
	}
	return res.StatusCode, nil
}

func (h *Hub) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	address, ok := h.cfg.Address()
	if !ok {
		return nil, fmt.Errorf("%w: its pod is not ready", ErrHubDown)
	}
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/hub/api"+path, payload)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "token "+h.cfg.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHubDown, err)
	}
	return res, nil
}

func hubError(res *http.Response) error {
	e := &HubError{Status: res.StatusCode}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &answer) == nil {
		e.Message = answer.Message
	}
	return e
}

func isStatus(err error, status int) bool {
	var e *HubError
	return errors.As(err, &e) && e.Status == status
}

func wrapHub(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// drain reads the little that is left of a body, so that its connection can be used again.
func drain(body io.Reader) { _, _ = io.CopyN(io.Discard, body, 64<<10) }
