package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Inject adds a line to the faults of the simulation: a line of a script
// without times. It is in force within a second and until a later line says
// otherwise; deleting the faults file takes all of them back.
func Inject(root, line string) error {
	s, err := parseStep(line)
	if err == nil && (s.at > 0 || s.over > 0 || s.length > 0) {
		err = fmt.Errorf("%q: a line with times belongs into a script", line)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(faultsFile(root), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// Play makes text the script of the simulation, in place of the one before,
// and begins it now. An empty text ends the script. The error names every line
// that is wrong, and nothing changes then.
func Play(root, text string) error {
	if _, err := parseScript(text); err != nil {
		return fmt.Errorf("the script of the simulated GPUs: %w", err)
	}
	return replace(ScriptFile(root), func(tmp string) error { return os.WriteFile(tmp, []byte(text), 0o644) })
}

// readFaults returns the lines of the faults file, leaving out what it cannot
// read: people write into it by hand.
func readFaults(path string) ([]step, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var steps []step
	for line := range strings.Lines(string(text)) {
		if s, err := parseStep(line); err == nil && s.at == 0 {
			steps = append(steps, s)
		}
	}
	return steps, nil
}

// scriptReader keeps the script as it was last read.
type scriptReader struct {
	path   string
	script script
	size   int64
}

// read returns the script, which began when its file was last written; err
// names lines it cannot read, once for each version of the file.
func (r *scriptReader) read() (script, error) {
	info, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		r.script = script{}
		return r.script, nil
	}
	if err != nil {
		return r.script, err
	}
	if r.script.began.Equal(info.ModTime()) && r.size == info.Size() {
		return r.script, nil
	}
	text, err := os.ReadFile(r.path)
	if err != nil {
		return r.script, err
	}
	steps, err := parseScript(string(text))
	r.script, r.size = script{began: info.ModTime(), steps: steps}, info.Size()
	if err != nil {
		err = fmt.Errorf("%s: %w", r.path, err)
	}
	return r.script, err
}
