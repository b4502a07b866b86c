package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// pythonLocks are the Python locks: in folder, the lock out from the list in, with what that depends on or without.
var pythonLocks = []struct{ folder, in, out, dependencies string }{
	{"hub", "requirements.in", "requirements.txt", ""},
	{"notebook", "kernel.in", "kernel.txt", ""},
	{"notebook", "lab.in", "lab.txt", ""},
	{"notebook", "labextensions.in", "labextensions.txt", "--no-deps"},
}

// resolver chooses Python versions; it is used for nothing else.
const resolver = "uv==0.13.9"

// refresh takes the versions that Debian and PyPI serve today and writes all
// lock files, for a person to look at the difference and commit it.
func (b *builder) refresh(ctx context.Context) error {
	today := time.Now().UTC()
	work, err := b.cache.temp("refresh")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	logFile := filepath.Join(b.cache.dir, "logs", "refresh.log")
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()

	base := ""
	var below []string
	lower := aptLock{}
	for _, folder := range parts["notebook"].on {
		below = append(below, folder)
		dir := filepath.Join(work, folder)
		all, err := b.debootstrap(ctx, dir, below, true, log)
		if err != nil {
			return fmt.Errorf("%s: %w%s", folder, err, tail(logFile))
		}
		if base == "" {
			base = dir
		}
		lock := all.without(lower)
		lower = all
		file := filepath.Join(b.source, folder, "packages.lock")
		if err := os.WriteFile(file, []byte(lock.format(folder, today)), 0o644); err != nil {
			return err
		}
		b.progress.Line("%s: %d packages", file, len(lock))
	}
	// Versions are chosen for Python 3.11, the oldest Python that installs them: in the notebook image, and on Debian 12
	// machines, where the tests install them.
	for _, l := range pythonLocks {
		script := `python3 -m venv /tmp/uv && /tmp/uv/bin/pip install -q ` + resolver + ` && cd /src &&
			/tmp/uv/bin/uv pip compile --quiet --no-cache --upgrade --generate-hashes --no-header --no-annotate \
			--only-binary :all: --python-version 3.11 --python-platform x86_64-manylinux_2_36 $3 "$1" -o "$2"`
		err := (root{base}).run(ctx, invocation{
			args:    []string{"/bin/sh", "-c", script, "compile", l.in, l.out, l.dependencies},
			bind:    []bind{{from: filepath.Join(b.source, l.folder), to: "/src", write: true}},
			network: true, log: log,
		})
		if err != nil {
			return fmt.Errorf("%s/%s: %w%s", l.folder, l.in, err, tail(logFile))
		}
		b.progress.Line("%s", filepath.Join(b.source, l.folder, l.out))
	}
	return nil
}
