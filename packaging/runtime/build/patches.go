package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// patch mends a module that a program is built from, until the module's own
// makers have: in its file, the text from becomes the text to. A build fails
// where from does not stand exactly once, so that a new version of the module
// cannot silently come without it.
type patch struct{ Module, File, From, To string }

// Links and addresses come and go all the time on a node, with every pod. When
// that happens while the kernel lists them, it marks the list as interrupted,
// and netlink says so with an error. k3s ends as a whole when that meets its
// network policies as they start. The same question is asked again instead.
var interruptedDumps = patch{
	Module: "github.com/vishvananda/netlink",
	File:   "nl/nl_linux.go",
	From: `	var res [][]byte
	err := req.ExecuteIter(sockType, resType, func(msg []byte) bool {
		res = append(res, msg)
		return true
	})
`,
	To: `	var res [][]byte
	var err error
	for try := 0; try < 20; try++ {
		res = nil
		err = req.ExecuteIter(sockType, resType, func(msg []byte) bool {
			res = append(res, msg)
			return true
		})
		if !errors.Is(err, ErrDumpInterrupted) {
			break
		}
	}
`,
}

// The folder, in the part's own, that holds patched modules while they are
// built. Go ignores it, as everything that begins with a dot, and names it in
// what it builds: it has the same name in every checkout.
const patchedFolder = ".patched"

// applyPatches copies the modules that are patched, changes them there, and
// writes a go.mod beside them that uses the copies. It returns that file, or
// nothing if there is nothing to patch, and what takes the copies away again.
func (p part) applyPatches(ctx context.Context, root string) (modfile string, remove func(), err error) {
	dir := filepath.Join(root, p.dir)
	copies := filepath.Join(dir, patchedFolder)
	remove = func() { os.RemoveAll(copies) }
	if len(p.patches) == 0 {
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
	for _, change := range p.patches {
		name := filepath.Base(change.Module)
		if err := change.copyInto(ctx, dir, filepath.Join(copies, name)); err != nil {
			return "", remove, fmt.Errorf("patch %s: %w", change.Module, err)
		}
		replace := change.Module + "=./" + patchedFolder + "/" + name
		if _, err := output(ctx, dir, "go", "mod", "edit", "-replace", replace, modfile); err != nil {
			return "", remove, err
		}
	}
	return modfile, remove, nil
}

// copyInto copies the module, in the version that dir's go.mod asks for, and
// changes the copy.
func (c patch) copyInto(ctx context.Context, dir, to string) error {
	said, err := output(ctx, dir, "go", "mod", "download", "-json", c.Module)
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(said), &module); err != nil {
		return fmt.Errorf("read what go mod download says: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(module.Dir)); err != nil {
		return err
	}
	file := filepath.Join(to, c.File)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := bytes.Count(text, []byte(c.From)); n != 1 {
		return fmt.Errorf("%s has the text to be changed %d times, not once; look whether this version still needs the change", c.File, n)
	}
	return os.WriteFile(file, bytes.Replace(text, []byte(c.From), []byte(c.To), 1), 0o644)
}
