package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// recipe is raised when this program starts to treat equal inputs differently.
const recipe = 1

// key is the hash of everything that decides how the part comes out.
func (p part) key(ctx context.Context, root string, have versions) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "recipe %d\n%s %s/%s\nfolder %q version %q\n", recipe, runtime.Version(), runtime.GOOS, runtime.GOARCH, p.folder, p.version)
	for _, t := range p.tools {
		version, err := have.of(ctx, t)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %q\n", t.name, version)
	}
	if err := json.NewEncoder(h).Encode(p.steps); err != nil {
		return "", err
	}
	if len(p.patches) > 0 {
		if err := json.NewEncoder(h).Encode(p.patches); err != nil {
			return "", err
		}
	}
	var err error
	if p.packages != nil {
		err = hashPackages(ctx, h, root, p)
	} else {
		err = hashFolder(h, filepath.Join(root, p.dir))
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// hashFolder adds every source below a folder, by its path and content.
func hashFolder(h hash.Hash, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("read the sources: %w", err)
		case path != dir && !isSource(d):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return hashFile(h, name, path)
	})
}

// isSource tells what may end up in a program from what only tests, explains
// or surrounds it.
func isSource(d fs.DirEntry) bool {
	name := d.Name()
	return name != "testdata" && !strings.HasPrefix(name, ".") &&
		!strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".md")
}

func hashFile(h hash.Hash, name, path string) error {
	sum, _, err := sumFile(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%s %s\n", filepath.ToSlash(name), sum)
	return nil
}

// goPackage is what `go list` tells of a package.
type goPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Main               bool
		Path, Version, Sum string
		GoVersion          string
		Replace            *struct{ Path, Version, Sum string }
	}
	GoFiles, CgoFiles, CFiles, HFiles, SFiles, EmbedFiles []string
}

// hashPackages adds the part's packages and all they import: files of this
// module by content, other modules by version and checksum. A program of the
// main module is so built again when something it uses changed, not whenever
// anything in the repository did.
func hashPackages(ctx context.Context, h hash.Hash, root string, p part) error {
	const fields = "-json=ImportPath,Dir,Standard,Module,GoFiles,CgoFiles,CFiles,HFiles,SFiles,EmbedFiles"
	text, err := outputEnv(ctx, filepath.Join(root, p.dir), append(neutralEnviron(), p.steps[0].Env...),
		append([]string{"go", "list", "-deps", fields}, p.packages...)...)
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var pkg goPackage
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what go list says: %w", err)
		}
		if err := pkg.addTo(h); err != nil {
			return err
		}
	}
}

func (pkg goPackage) addTo(h hash.Hash) error {
	switch m := pkg.Module; {
	case pkg.Standard: // the version of Go says it all
		return nil
	case m == nil || !m.Main:
		described, err := json.Marshal(m)
		fmt.Fprintf(h, "%s %s\n", pkg.ImportPath, described)
		return err
	default:
		fmt.Fprintf(h, "%s go%s\n", pkg.ImportPath, m.GoVersion)
	}
	for _, name := range slices.Concat(pkg.GoFiles, pkg.CgoFiles, pkg.CFiles, pkg.HFiles, pkg.SFiles, pkg.EmbedFiles) {
		if err := hashFile(h, pkg.ImportPath+"/"+name, filepath.Join(pkg.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// sumFile returns a file's SHA-256 and size.
func sumFile(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
