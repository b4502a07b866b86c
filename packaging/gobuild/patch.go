package gobuild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Patch changes a module that a program is built from. In its File, the text From becomes the text To: a build fails
// where From does not stand exactly once, so that a new version of the module cannot silently come without the change.
// With an empty From the File is removed. Or its Folder is replaced by By, a folder of the program's own module.
type Patch struct {
	Module         string
	File, From, To string `json:",omitempty"`
	Folder, By     string `json:",omitempty"`
}

// PatchedFolder lies in the folder of a program's module and holds the patched modules while the program is built. Go
// ignores it since its name begins with a dot. Programs name it in their build information, so it is the same in every checkout.
const PatchedFolder = ".patched"

// ApplyPatches copies the modules that are patched, changes the copies, and writes a go.mod beside them that uses them.
// Dir is the folder of the program's module. ApplyPatches returns that file, for -modfile, which is empty if there is
// nothing to patch; remove deletes the copies.
func ApplyPatches(ctx context.Context, dir string, patches []Patch) (modfile string, remove func(), err error) {
	copies := filepath.Join(dir, PatchedFolder)
	remove = func() { os.RemoveAll(copies) }
	if len(patches) == 0 {
		return "", func() {}, nil
	}
	remove() // what a killed build left
	defer func() {
		if err != nil {
			remove()
		}
	}()
	if err := os.MkdirAll(copies, 0o755); err != nil {
		return "", remove, err
	}
	modfile = filepath.Join(copies, "go.mod")
	for from, to := range map[string]string{"go.mod": modfile, "go.sum": filepath.Join(copies, "go.sum")} {
		text, err := os.ReadFile(filepath.Join(dir, from))
		if err == nil {
			err = os.WriteFile(to, text, 0o644)
		}
		if err != nil {
			return "", remove, err
		}
	}
	for _, change := range patches {
		copied := filepath.Join(copies, filepath.Base(change.Module))
		if err := change.apply(ctx, dir, copied); err != nil {
			return "", remove, fmt.Errorf("patch %s: %w", change.Module, err)
		}
		replace := change.Module + "=./" + PatchedFolder + "/" + filepath.Base(change.Module)
		if _, err := goOutput(ctx, dir, "mod", "edit", "-replace", replace, modfile); err != nil {
			return "", remove, err
		}
	}
	return modfile, remove, nil
}

// apply changes the copy of the module at to, which is made from the version
// that dir's go.mod asks for if no earlier patch has made it.
func (c Patch) apply(ctx context.Context, dir, to string) error {
	if _, err := os.Stat(to); os.IsNotExist(err) {
		if err := c.copyModule(ctx, dir, to); err != nil {
			return err
		}
	}
	if c.Folder != "" {
		folder := filepath.Join(to, c.Folder)
		if _, err := os.Stat(folder); err != nil {
			return fmt.Errorf("it has no folder %s; look whether this version still needs the change", c.Folder)
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		return os.CopyFS(folder, os.DirFS(filepath.Join(dir, c.By)))
	}
	file := filepath.Join(to, c.File)
	if c.From == "" {
		return os.Remove(file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := bytes.Count(text, []byte(c.From)); n != 1 {
		return fmt.Errorf("%s has the text to be changed %d times, not once; look whether this version still needs the change",
			c.File, n)
	}
	return os.WriteFile(file, bytes.Replace(text, []byte(c.From), []byte(c.To), 1), 0o644)
}

func (c Patch) copyModule(ctx context.Context, dir, to string) error {
	said, err := goOutput(ctx, dir, "mod", "download", "-json", c.Module)
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(said), &module); err != nil {
		return fmt.Errorf("read what go mod download says: %w", err)
	}
	return os.CopyFS(to, os.DirFS(module.Dir))
}

// goOutput returns what the go command prints when it runs in dir.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := Command(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
