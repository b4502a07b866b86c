package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// change lists the files that differ from the revision that the change begins
// at, with those that are not committed yet. None outside a git repository.
func (s *suite) change(ctx context.Context) ([]string, error) {
	if _, err := output(ctx, s.root, "git", "rev-parse", "--git-dir"); err != nil {
		return nil, nil
	}
	s.base = s.options.base
	if s.base == "" {
		s.base = s.lastPassed(ctx)
	}
	if s.base == "" {
		s.base = "HEAD~1"
	}
	if _, err := output(ctx, s.root, "git", "rev-parse", "--verify", "--quiet", s.base+"^{commit}"); err != nil {
		s.base = "HEAD" // the first commit, or a shallow clone
	}
	files, err := output(ctx, s.root, "git", "diff", "--name-only", s.base)
	return strings.Fields(files), err
}

// lastPassed is the newest revision before HEAD for which [suite.notePassed] was called on this machine, "" for none.
func (s *suite) lastPassed(ctx context.Context) string {
	folder, err := resultsFolder()
	if err != nil {
		return ""
	}
	data, err := os.ReadFile(filepath.Join(folder, "revisions"))
	if err != nil {
		return ""
	}
	history, err := output(ctx, s.root, "git", "rev-list", "--max-count=200", "HEAD~1")
	if err != nil {
		return ""
	}
	passed := strings.Fields(string(data))
	for _, revision := range strings.Fields(history) {
		if slices.Contains(passed, revision) {
			return revision
		}
	}
	return ""
}

// notePassed remembers that a run of the gate has passed at HEAD.
func (s *suite) notePassed(ctx context.Context) error {
	if dirty, err := output(ctx, s.root, "git", "status", "--porcelain", "--untracked-files=no"); err != nil ||
		dirty != "" {
		return nil
	}
	revision, err := output(ctx, s.root, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	folder, err := resultsFolder()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(folder, "revisions"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(revision + "\n")
	return err
}

// touches tells whether a change of these files touches a test: its own file, or what it is about.
func touches(t test, files []string) bool {
	for _, file := range files {
		if file == t.File {
			return true
		}
		for _, path := range t.About {
			within := strings.HasPrefix(file, strings.TrimSuffix(path, "/")+"/") && !strings.HasSuffix(file, "_test.go")
			if file == path || within {
				return true
			}
		}
	}
	return false
}
