package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Largest lists what takes most room in somebody's home, as it was when the home was measured last.
func (s *Service) Largest(ctx context.Context, user int64) ([]Entry, *Size, error) {
	size, list, err := s.size(ctx, target{ofHome, user})
	return list, size, err
}

// clearable reports whether a path within a home names something that its owner may delete on the page: a file or
// folder, and not a place where shared folders appear.
func clearable(name string) bool {
	return fs.ValidPath(strings.ToValidUTF8(name, "?")) && name != "." && name != Shared &&
		!strings.HasPrefix(name, Shared+"/") &&
		!strings.ContainsRune(name, 0) && path.Clean(name) == name
}

// Clear deletes a file or folder in somebody's home, with all that is in it. Nothing leads it out of the home:
// a link is deleted, not what it leads to, and a folder on the way that is a link out of the home is an error.
func (s *Service) Clear(ctx context.Context, u users.User, name string) error {
	if !clearable(name) {
		return refused(ErrSpace, "Only files and folders of your home can be deleted here.")
	}
	home, err := os.OpenRoot(s.Home(u.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return gone(name)
	}
	if err != nil {
		return fmt.Errorf("the home of %s: %w", u.Handle, err)
	}
	defer func() { _ = home.Close() }()
	if _, err := home.Lstat(name); err != nil {
		return gone(name) // or behind a link that leads out
	}
	if err := remove(ctx, home, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete in the home of %s: %w", u.Handle, err)
	}
	s.MeasureHome(u.ID)
	return ctx.Err()
}

// ClearWithin is Clear for somebody who waits no longer than that: done is false when it still goes on, whatever
// becomes of ctx.
func (s *Service) ClearWithin(ctx context.Context, u users.User, name string,
	wait time.Duration) (done bool, err error) {
	cleared := make(chan error, 1)
	go func() { cleared <- s.Clear(context.WithoutCancel(ctx), u, name) }()
	select {
	case err := <-cleared:
		return true, err
	case <-time.After(wait):
		return false, nil
	}
}

func gone(name string) error {
	return refused(ErrSpace, "%s is not in your home any more.", clip(strings.ToValidUTF8(name, "?")))
}
