package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// pythonLocks are the Python locks: in folder, the lock out from the list in.
var pythonLocks = []struct{ folder, in, out string }{
	{"hub", "requirements.in", "requirements.txt"},
	{"notebook", "kernel.in", "kernel.txt"},
	{"notebook", "lab.in", "lab.txt"},
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

	tools := filepath.Join(work, "tools")
	base := filepath.Join(work, "base")
	lower, err := b.debootstrap(ctx, base, []string{"base"}, true, log)
	if err != nil {
		return fmt.Errorf("base: %w%s", err, tail(logFile))
	}
	all, err := b.debootstrap(ctx, tools, []string{"base", "tools"}, true, log)
	if err != nil {
		return fmt.Errorf("tools: %w%s", err, tail(logFile))
	}
	for folder, lock := range map[string]aptLock{"base": lower, "tools": all.without(lower)} {
		file := filepath.Join(b.source, folder, "packages.lock")
		if err := os.WriteFile(file, []byte(lock.format(folder, today)), 0o644); err != nil {
			return err
		}
		b.progress.Line("%s: %d packages", file, len(lock))
	}
	for _, l := range pythonLocks {
		script := `python3 -m venv /tmp/uv && /tmp/uv/bin/pip install -q ` + resolver + ` && cd /src &&
			/tmp/uv/bin/uv pip compile --quiet --no-cache --upgrade --generate-hashes --no-header --no-annotate \
			--only-binary :all: --python /usr/bin/python3 "$1" -o "$2"`
		err := (root{base}).run(ctx, invocation{
			args:    []string{"/bin/sh", "-c", script, "compile", l.in, l.out},
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
