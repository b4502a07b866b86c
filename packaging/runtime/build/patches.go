package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// patch changes a module that a program is built from. In its File, the text
// From becomes the text To: a build fails where From does not stand exactly
// once, so that a new version of the module cannot silently come without the
// change. Or its Folder is replaced by the folder By of the part.
type patch struct {
	Module         string
	File, From, To string `json:",omitempty"`
	Folder, By     string `json:",omitempty"`
}

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

// gpulab's Kubernetes keeps its objects in SQLite: clients for other databases,
// and a whole NATS server, are left out.
var otherDatabases = patch{
	Module: "github.com/k3s-io/kine",
	File:   "pkg/endpoint/init.go",
	From: `	_ "github.com/k3s-io/kine/pkg/drivers/http"
	_ "github.com/k3s-io/kine/pkg/drivers/mysql"
	_ "github.com/k3s-io/kine/pkg/drivers/nats"
	_ "github.com/k3s-io/kine/pkg/drivers/pgsql"
`,
}

// gpulab hands images to its machines itself. k3s's registry for that, with the
// peer-to-peer network under it, is left out.
var registryOfNodes = patch{
	Module: "github.com/k3s-io/k3s",
	Folder: "pkg/spegel",
	By:     "spegel",
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
		copied := filepath.Join(copies, filepath.Base(change.Module))
		if err := change.apply(ctx, dir, copied); err != nil {
			return "", remove, fmt.Errorf("patch %s: %w", change.Module, err)
		}
		replace := change.Module + "=./" + patchedFolder + "/" + filepath.Base(change.Module)
		if _, err := output(ctx, dir, "go", "mod", "edit", "-replace", replace, modfile); err != nil {
			return "", remove, err
		}
	}
	return modfile, remove, nil
}

// apply changes the copy of the module at to, which is made from the version
// that dir's go.mod asks for if no earlier patch has made it.
func (c patch) apply(ctx context.Context, dir, to string) error {
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

func (c patch) copyModule(ctx context.Context, dir, to string) error {
	said, err := output(ctx, dir, "go", "mod", "download", "-json", c.Module)
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(said), &module); err != nil {
		return fmt.Errorf("read what go mod download says: %w", err)
	}
	return os.CopyFS(to, os.DirFS(module.Dir))
}
