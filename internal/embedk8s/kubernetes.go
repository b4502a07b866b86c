package embedk8s

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// KubernetesMinor is the Kubernetes that this gpulab brings. Within it any two releases of gpulab may follow one
// another. Its state goes from one minor version to the next alone, and never back.
const KubernetesMinor = "1.35"

// minorFile holds which Kubernetes has worked with the state beside it last; the package reads it too.
const minorFile = "minor"

// checkMinor refuses the state of a Kubernetes from which no way leads to minor, and notes which one has it from now
// on. changed tells whether that is another one.
func checkMinor(k3sDir, minor string) (changed bool, err error) {
	path := filepath.Join(k3sDir, minorFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if had := strings.TrimSpace(string(data)); had != "" && had != minor {
		was, now, err := minorNumbers(had, minor)
		switch {
		case err != nil:
			return false, fmt.Errorf("%s: %w", path, err)
		case now < was:
			return false, fmt.Errorf("the lab on this machine runs Kubernetes %s, and this gpulab brings %s, which cannot "+
				"work with its state: install the newer gpulab again, "+
				"or run `gpulab rollback --end-notebooks` with it", had, minor)
		case now > was+1:
			return false, fmt.Errorf("the lab on this machine runs Kubernetes %s, and this gpulab brings %s: install a "+
				"gpulab with Kubernetes 1.%d first", had, minor, was+1)
		}
	}
	return atomicfile.Update(path, []byte(minor+"\n"), 0o644, 0o700)
}

// minorNumbers are the numbers behind "1.".
func minorNumbers(had, minor string) (was, now int, err error) {
	was, err1 := strconv.Atoi(strings.TrimPrefix(had, "1."))
	now, err2 := strconv.Atoi(strings.TrimPrefix(minor, "1."))
	return was, now, errors.Join(err1, err2)
}

// ForgetCluster removes Kubernetes' own state, all pods having ended: the next start begins with an empty cluster. The
// node keeps its identity, and containerd its images.
func ForgetCluster(dataDir string) error {
	dir := filepath.Join(dataDir, "k3s")
	if err := os.RemoveAll(filepath.Join(dir, "server")); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, minorFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
