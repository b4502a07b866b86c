package notebooks

import (
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
	"sync"
	"time"
)

// Doing is what a notebook's own server says that it does. Its owner controls what that is.
type Doing struct {
	KernelBusy bool
	Kernel     time.Time // when a kernel last did something; zero for never
	Terminal   time.Time // the same of a terminal
}

// Tokens makes tokens with which a notebook can be asked; [Hub] implements it.
type Tokens interface {
	ServerToken(ctx context.Context, handle, name string, lasting time.Duration) (string, error)
}

// Jupyter asks notebooks' servers what they do. A server gets to see the token that it is asked with, so each has a
// token of its own, which is its owner's and opens that one server: it gives nobody anything new.
type Jupyter struct {
	tokens Tokens
	pods   Pods
	client *http.Client
	now    func() time.Time

	mu    sync.Mutex
	known map[podKey]serverToken
}

type serverToken struct {
	text, pod string
	until     time.Time
}

const (
	tokenTime  = time.Hour
	tokenRenew = 5 * time.Minute // before its end
	maxDoing   = 1 << 20         // bytes of one answer
)

// NewJupyter returns a Jupyter; it connects at the first question.
func NewJupyter(tokens Tokens, pods Pods) *Jupyter {
	return &Jupyter{tokens: tokens, pods: pods, now: time.Now, known: map[podKey]serverToken{}, client: &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext, DisableKeepAlives: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		// A notebook does not lead gpulab anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Doing asks a running notebook.
func (j *Jupyter) Doing(ctx context.Context, handle, name string) (Doing, error) {
	pod, ok := j.pods.PodFor(handle, name)
	if !ok || !pod.Reachable() {
		return Doing{}, errNotThere
	}
	token, err := j.token(ctx, podKey{handle, name}, pod.UID)
	if err != nil {
		return Doing{}, err
	}
	var d Doing
	var kernels, terminals []struct {
		State string    `json:"execution_state"`
		Last  time.Time `json:"last_activity"`
	}
	if err := j.get(ctx, pod, token, "kernels", &kernels); err != nil {
		return Doing{}, err
	}
	for _, k := range kernels {
		d.KernelBusy = d.KernelBusy || k.State == "busy"
		d.Kernel = latest(d.Kernel, k.Last)
	}
	if err := j.get(ctx, pod, token, "terminals", &terminals); err != nil && !errors.Is(err, errNoSuchAPI) {
		return Doing{}, err
	}
	for _, t := range terminals {
		d.Terminal = latest(d.Terminal, t.Last)
	}
	return d, nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

var errNoSuchAPI = errors.New("the notebook has no such part")

func (j *Jupyter) get(ctx context.Context, pod PodInfo, token, what string, out any) error {
	address := url.URL{
		Scheme: "http", Host: net.JoinHostPort(pod.IP, strconv.Itoa(notebookPort)),
		Path: launchURL(pod.Handle, pod.Server) + "api/" + what,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "token "+token)
	res, err := j.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the notebook %s/%s: %w", pod.Handle, pod.Server, err)
	}
	defer func() { _ = res.Body.Close() }()
	switch {
	case res.StatusCode == http.StatusNotFound:
		return errNoSuchAPI
	case res.StatusCode == http.StatusForbidden || res.StatusCode == http.StatusUnauthorized:
		j.mu.Lock()
		delete(j.known, podKey{pod.Handle, pod.Server})
		j.mu.Unlock()
		fallthrough
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("the notebook %s/%s answers %d", pod.Handle, pod.Server, res.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxDoing)).Decode(out); err != nil {
		return fmt.Errorf("what the notebook %s/%s answers: %w", pod.Handle, pod.Server, err)
	}
	return nil
}

// token is what this pod is asked with; a new pod gets a new one.
func (j *Jupyter) token(ctx context.Context, key podKey, pod string) (string, error) {
	j.mu.Lock()
	t := j.known[key]
	j.mu.Unlock()
	if t.pod == pod && j.now().Before(t.until.Add(-tokenRenew)) {
		return t.text, nil
	}
	until := j.now().Add(tokenTime)
	text, err := j.tokens.ServerToken(ctx, key.handle, key.server, tokenTime)
	if err != nil {
		return "", err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for k, old := range j.known {
		if !j.now().Before(old.until) {
			delete(j.known, k)
		}
	}
	j.known[key] = serverToken{text, pod, until}
	return text, nil
}

// ServerToken makes a token of a person that opens one of their servers and nothing else.
func (h *Hub) ServerToken(ctx context.Context, handle, name string, lasting time.Duration) (string, error) {
	var answer struct {
		Token string `json:"token"`
	}
	body := map[string]any{"note": "gpulab looks whether the notebook is used", "expires_in": int(lasting / time.Second),
		"scopes": []string{"access:servers!server=" + handle + "/" + name}}
	_, err := h.call(ctx, http.MethodPost, "/users/"+url.PathEscape(handle)+"/tokens", body, &answer)
	if err == nil && strings.TrimSpace(answer.Token) == "" {
		err = errors.New("JupyterHub answered without a token")
	}
	return answer.Token, wrapHub(err, "ask for a token for %s/%s", handle, name)
}
