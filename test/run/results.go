package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// result is how a test ended.
type result struct {
	Name, Package string
	Passed        bool
	Seconds       float64
	Waited        float64 // seconds in which it waited for something to become so
	Tests         int     // itself, its chapters and their subtests
	Skipped       []string
	Attempt       int // 2 for one that was run again because it had failed
	Log           string
	At            time.Time
	Before        bool `json:"-"` // in an earlier run, with the same programs
	Interrupted   bool `json:"-"`
}

// resultsFolder is where results are kept, in the user's cache.
func resultsFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "gpulab", "test-results")
	return folder, os.MkdirAll(folder, 0o700)
}

// record keeps the results of tests for one set of file contents, one JSON object a line.
type record struct {
	mu   sync.Mutex
	path string
	all  []result
}

// openRecord reads the results of earlier runs with the same file contents. It deletes results for other contents after
// a week.
func openRecord(root string, files []string) (*record, error) {
	folder, err := resultsFolder()
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	for _, path := range files {
		if err := addFile(hash, root, path); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("there is no %s: run `go tool task build`", path)
		} else if err != nil {
			return nil, err
		}
	}
	old, _ := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > 7*24*time.Hour {
			_ = os.Remove(path)
		}
	}
	r := &record{path: filepath.Join(folder, hex.EncodeToString(hash.Sum(nil)[:12])+".jsonl")}
	data, err := os.ReadFile(r.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		var one result
		if json.Unmarshal([]byte(line), &one) == nil { // a line may be cut off
			r.all = append(r.all, one)
		}
	}
	return r, nil
}

// addFile adds a file to a hash: its path in the repository, its mode and its content. A file outside the repository,
// such as the test program, has its base name in place of the path.
func addFile(to io.Writer, root, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	name, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(name) {
		name = filepath.Base(path)
	}
	fmt.Fprintf(to, "%q %v %d\n", name, info.Mode(), info.Size())
	_, err = io.Copy(to, file)
	return err
}

// passed is the last result of a test, if that is that it passed.
func (r *record) passed(name string) (result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range slices.Backward(r.all) {
		if one.Name == name {
			return one, one.Passed
		}
	}
	return result{}, false
}

// add keeps a result.
func (r *record) add(one result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, one)
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	return err
}
