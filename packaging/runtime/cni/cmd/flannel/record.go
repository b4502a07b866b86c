package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// record is one connected container's delegate configuration on disk. Its name
// comes from the container ID and the interface, which the CNI library has
// checked to hold no path separator.
type record struct{ dir, name string }

func (r record) path() string { return filepath.Join(r.dir, r.name) }

// save writes the record whole or not at all: a half-written one would keep
// its pod from ever being taken down.
func (r record) save(d delegate) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("remember the container: %w", err)
	}
	f, err := os.CreateTemp(r.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("remember the container: %w", err)
	}
	_, err = f.Write(d.json())
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), r.path())
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("remember the container: %w", err)
	}
	return nil
}

// load reads the record; the error wraps fs.ErrNotExist if there is none, or
// none that can be read: after a power cut the file may be empty.
func (r record) load() (delegate, error) {
	text, err := os.ReadFile(r.path())
	if err != nil {
		return nil, err
	}
	var d delegate
	if err := json.Unmarshal(text, &d); err != nil || d.plugin() == "" {
		return nil, fmt.Errorf("%s is damaged: %w", r.path(), fs.ErrNotExist)
	}
	return d, nil
}

// remove forgets the container.
func (r record) remove() error {
	if err := os.Remove(r.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the container: %w", err)
	}
	return nil
}
