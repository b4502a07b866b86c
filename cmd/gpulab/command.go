package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// commandPath is where a gpulab that was built by hand can be called by its
// name; a packaged one is in the path already.
const commandPath = "/usr/local/bin/gpulab"

// linkCommand makes `gpulab` a command on this machine, unless it is one.
func linkCommand() error {
	if _, err := exec.LookPath("gpulab"); err == nil {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := unlinkCommand(); err != nil {
		return err
	}
	if err := os.Symlink(exe, commandPath); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make gpulab a command: %w", err)
	}
	return nil
}

// unlinkCommand takes back a link to this program, or to one that is gone.
func unlinkCommand() error {
	target, err := os.Readlink(commandPath)
	if err != nil {
		return nil //nolint:nilerr // no link of ours
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); target != exe && err == nil {
		return nil // another gpulab's
	}
	if err := os.Remove(commandPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
