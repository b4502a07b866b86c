package embedk8s

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// How long what a registry said of an image that is not here is believed, and
// for how long a registry that did not answer is left alone.
const (
	believeRegistry = 10 * time.Minute
	registryRest    = time.Minute
	registryWait    = 3 * time.Second
)

// environments remembers what was found out about images.
type environments struct {
	mu     sync.Mutex
	here   map[string][]string // by digest, which never changes
	remote map[string]heard    // by reference
}

type heard struct {
	env   []string
	err   error
	until time.Time
}

// Environment is the environment ("NAME=value" each) that an image sets. An
// image that is not here is looked up in its registry, which is waited for a
// short time only. Answers are remembered: it may be called often.
func (l *LabImages) Environment(ctx context.Context, ref string) ([]string, error) {
	ref, err := fullName(ref)
	if err != nil {
		return nil, err
	}
	ctx = quietly(ctx)
	record, err := l.client.ImageService().Get(ctx, ref)
	if errdefs.IsNotFound(err) {
		return l.askRegistry(ctx, ref)
	} else if err != nil {
		return nil, l.trouble(err)
	}
	digest := record.Target.Digest.String()
	l.env.mu.Lock()
	env, known := l.env.here[digest]
	l.env.mu.Unlock()
	if known {
		return env, nil
	}
	if env, err = environment(ctx, l.client.ContentStore(), record.Target); err != nil {
		return nil, err
	}
	l.env.mu.Lock()
	defer l.env.mu.Unlock()
	if l.env.here == nil {
		l.env.here = map[string][]string{}
	}
	l.env.here[digest] = env
	return env, nil
}

func (l *LabImages) askRegistry(ctx context.Context, ref string) ([]string, error) {
	l.env.mu.Lock()
	old, known := l.env.remote[ref]
	l.env.mu.Unlock()
	if known && time.Now().Before(old.until) {
		return old.env, old.err
	}
	ask, cancel := context.WithTimeout(ctx, registryWait)
	defer cancel()
	now := heard{}
	if now.env, now.err = l.fromRegistry(ask, ref); now.err != nil && ctx.Err() != nil {
		return nil, now.err // whoever asked went away: that says nothing of the registry
	}
	now.until = time.Now().Add(believeRegistry)
	if now.err != nil {
		now.until = time.Now().Add(registryRest)
	}
	l.env.mu.Lock()
	defer l.env.mu.Unlock()
	if l.env.remote == nil {
		l.env.remote = map[string]heard{}
	}
	l.env.remote[ref] = now
	return now.env, now.err
}

func (l *LabImages) fromRegistry(ctx context.Context, ref string) ([]string, error) {
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: l.resolve})
	_, target, err := resolver.Resolve(ctx, ref)
	if err != nil {
		return nil, registryError(ref, err)
	}
	fetcher, err := resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, registryError(ref, err)
	}
	env, err := environment(ctx, remote{fetcher}, target)
	if err != nil {
		return nil, registryError(ref, err)
	}
	return env, nil
}
