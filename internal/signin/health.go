package signin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// lookEvery is how often a provider that nobody uses is asked whether it is there.
const lookEvery = time.Minute

// Health is how a provider was when it was last asked for something.
type Health struct {
	Info
	At time.Time // zero where it was never asked
	// Problem is why it could not be used then; empty where it could.
	Problem string
}

// contact remembers what came of the last question to a provider.
type contact struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

// note remembers an answer (nil), or that none came. Of somebody who went away before it came nothing is learnt.
func (c *contact) note(ctx context.Context, err error) {
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.err = time.Now(), err
}

func (c *contact) last() (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at, c.err
}

// Health lists the providers in the order of the configuration.
func (s *Service) Health() []Health {
	list := make([]Health, 0, len(s.providers))
	for i, info := range s.Providers() {
		h := Health{Info: info}
		var err error
		if h.At, err = s.providers[i].contact.last(); err != nil {
			h.Problem = printable(plainReason(err).Error())
		}
		list = append(list, h)
	}
	return list
}

// Watch asks providers now and again whether they are there, until ctx ends. Those whom people sign in with are not
// asked besides. Nothing secret is sent.
func (s *Service) Watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var all sync.WaitGroup
		for i := range s.providers {
			p := &s.providers[i]
			if at, err := p.contact.last(); err == nil && time.Since(at) < lookEvery {
				continue
			}
			all.Go(func() { p.look(ctx) })
		}
		all.Wait()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look asks one provider whether it is there.
func (p *provider) look(ctx context.Context) {
	looking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if p.dir != nil {
		p.contact.note(ctx, p.dir.answers(looking))
		return
	}
	p.contact.note(ctx, p.browser.answers(looking))
}

// answers connects without a name: a password that is wrong by now would be counted against the service's account.
func (d *directory) answers(ctx context.Context) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}

// answers asks where people are told about, as nobody: any answer is one.
func (o *plainOAuth) answers(ctx context.Context) error {
	web, err := o.httpClient()
	if err != nil {
		return err
	}
	defer web.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.UserinfoURL, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "gpulab")
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("ask whether it is there: %w", &statusError{resp.StatusCode})
	}
	return nil
}
