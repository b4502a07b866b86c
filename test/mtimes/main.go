// Command mtimes gives every tracked file that has not been changed, and every file that a build has made, a time that
// depends on its content alone.
//
// Go keeps the results of tests by the times of the files that they open (golang.org/issue/58571). A clone gives all
// files the time of its making, so each fresh one would run again what has passed with the same files before.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// begin is when the oldest file may be from; times lie in the eight years after it.
var begin = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "mtimes:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	if err := exec.Command("git", "-C", root, "rev-parse", "--git-dir").Run(); err != nil {
		return nil // sources without their history: nothing is gained, nothing is lost
	}
	changed, err := git(root, "diff", "--name-only", "-z", "HEAD")
	if err != nil {
		return err
	}
	skip := map[string]bool{}
	for _, path := range changed {
		skip[path] = true
	}
	// Mode, object, stage and path of each.
	files, err := git(root, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	folders := map[string]bool{}
	for _, line := range files {
		about, path, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if len(fields) != 3 || skip[path] || fields[0] == "160000" {
			continue
		}
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
		if fields[0] == "120000" {
			continue // what a symbolic link leads to has a time of its own
		}
		hash, err := hex.DecodeString(fields[1][:8])
		if err != nil {
			return err
		}
		if err := setTime(filepath.Join(root, path), hash); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range made {
		if err := setTimesBelow(filepath.Join(root, dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for dir := range folders {
		if err := os.Chtimes(filepath.Join(root, dir), begin, begin); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// Git compares times as well, and would read every file each time.
	_, err = git(root, "update-index", "-q", "--refresh")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // changed files are named by it, and are no fault
	}
	return err
}

// made are the folders of what a build makes and unit tests read.
var made = []string{"bin/images", "assets/bundle", "assets/clients"}

// setTime gives a file a time that is made of the first four bytes of a hash.
func setTime(path string, hash []byte) error {
	seconds := int64(hash[0]&0x0f)<<24 | int64(hash[1])<<16 | int64(hash[2])<<8 | int64(hash[3])
	when := begin.Add(time.Duration(seconds) * time.Second)
	return os.Chtimes(path, when, when)
}

// setTimesBelow gives all files and folders below a folder a time, the files by their content.
func setTimesBelow(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.Chtimes(path, begin, begin)
		case !entry.Type().IsRegular():
			return nil
		}
		if hash, err := hex.DecodeString(entry.Name()); err == nil && len(hash) == sha256.Size {
			return setTime(path, hash) // a blob, which is called by its hash
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		hash := sha256.New()
		if _, err := io.Copy(hash, file); err != nil {
			return err
		}
		return setTime(path, hash.Sum(nil))
	})
}

// git runs a command of git's whose output is separated by zero bytes.
func git(root string, args ...string) ([]string, error) {
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	out = bytes.TrimSuffix(out, []byte{0})
	if len(out) == 0 {
		return nil, nil
	}
	return strings.Split(string(out), "\x00"), nil
}
