package room

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// kernel is a folder with the settings of a machine.
func kernel(t *testing.T, settings map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, value := range settings {
		path := (Setting{Name: name}).path(root)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRaise(t *testing.T) {
	root := kernel(t, map[string]string{
		"fs.inotify.max_user_instances": "128", "fs.inotify.max_user_watches": "99999999",
		"kernel.pty.max": "4096", "fs.file-max": "9223372036854775807",
	})
	if small := Small(root); len(small) != 2 {
		t.Errorf("too small: %v, want two", small)
	}
	if err := Raise(root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{
		"fs.inotify.max_user_instances": 110*128 + 2048, "fs.inotify.max_user_watches": 99999999,
		"kernel.pty.max": 110*64 + 2048, "fs.file-max": 1<<63 - 1,
	} {
		if got, err := (Setting{Name: name}).Now(root); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", name, got, err, want)
		}
	}
	// What this kernel does not have is not made.
	if _, err := (Setting{Name: "fs.aio-max-nr"}).Now(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("fs.aio-max-nr: %v", err)
	}
	if small := Small(root); len(small) > 0 {
		t.Errorf("too small after Raise: %v", small)
	}
}

// The CNI plugin is a module of its own, so it has the numbers of a pod once more.
func TestPluginHasTheSameLimits(t *testing.T) {
	text, err := os.ReadFile("../../packaging/runtime/cni/cmd/flannel/userlimits.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"max_inotify_instances": Instances, "max_inotify_watches": Watches} {
		found := regexp.MustCompile(name + `":\s+(\d+)`).FindSubmatch(text)
		if found == nil || string(found[1]) != strconv.Itoa(want) {
			t.Errorf("the plugin's %s: %s, want %d", name, fmt.Sprintf("%q", found), want)
		}
	}
}
