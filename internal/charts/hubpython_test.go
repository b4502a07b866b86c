package charts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// hubRequirements locks what the hub's image holds.
const hubRequirements = "../../packaging/images/hub/requirements.txt"

// runHubPython runs a program with the Python packages of the hub's image and
// returns what it printed.
func runHubPython(t *testing.T, env []string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(hubPython(t), args...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, stderr.Bytes())
	}
	return out
}

var hubVenv struct {
	sync.Once
	python string
	err    error
	log    []byte
}

// hubPython returns a Python with the hub's packages: those of the image, by
// hash. They are installed once and kept in the user's cache folder, below a
// name that changes with the lock file.
func hubPython(t *testing.T) string {
	t.Helper()
	hubVenv.Do(func() { hubVenv.python, hubVenv.log, hubVenv.err = makeHubVenv() })
	if hubVenv.err != nil {
		t.Fatalf("the hub's Python packages (needs python3 and python3-venv): %v\n%s", hubVenv.err, hubVenv.log)
	}
	return hubVenv.python
}

func makeHubVenv() (python string, log []byte, err error) {
	lock, err := os.ReadFile(hubRequirements)
	if err != nil {
		return "", nil, err
	}
	version, err := exec.Command("python3", "--version").Output()
	if err != nil {
		return "", nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256(append(lock, version...))
	dir := filepath.Join(cache, "gpulab", "test-hub-"+hex.EncodeToString(sum[:8]))
	python = filepath.Join(dir, "bin", "python")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", nil, err
	}
	// Packages are tested side by side; one of them installs.
	guard, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", nil, err
	}
	defer guard.Close()
	if err := syscall.Flock(int(guard.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, err
	}
	complete := filepath.Join(dir, "complete")
	if _, err := os.Stat(complete); err == nil {
		return python, nil, nil
	}
	for _, step := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", hubRequirements},
	} {
		if log, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			return "", log, err
		}
	}
	return python, nil, os.WriteFile(complete, nil, 0o644)
}
