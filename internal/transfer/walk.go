package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// job is one file to copy.
type job struct {
	from, to string
	of       entry    // the source
	there    *entry   // the target, nil where there is none
	stale    []string // incomplete copies of other sources
}

// maxDepth of folders; a link that leads to its own folder would have no end.
const maxDepth = 200

// errFolder is of a folder without -r.
var errFolder = errors.New("it is a folder; copy it with -r")

// Upload copies from this computer into the lab. A target that ends with a slash, is "" (the home) or a folder for a
// file is a folder to copy into; any other is the copy's own name.
func (r *Run) Upload(ctx context.Context, from []string, to string) (Summary, error) {
	remote := lab{r.link}
	r.reader, r.writer, r.move = disk{}, remote, r.send
	r.sourceSum, r.destSum = sumOfFile, remote.sum
	return r.run(ctx, func(ctx context.Context) error {
		into := to == "" || strings.HasSuffix(to, "/") || path.Base(to) == "." || path.Base(to) == ".."
		folder := path.Clean(to)
		if len(from) > 1 && !into {
			if there, err := remote.stat(ctx, folder); err != nil || !there.isFolder() {
				return fmt.Errorf("several things go into a folder, and lab:%s is none; write it with a slash at its end "+
					"to make it",
					to)
			}
			into = true
		}
		for _, source := range from {
			name := filepath.Base(filepath.Clean(source))
			if absolute, err := filepath.Abs(source); err == nil {
				name = filepath.Base(absolute)
			}
			if err := r.top(ctx, source, name, folder, into); err != nil {
				return err
			}
		}
		return nil
	})
}

// Download copies from the lab to this computer, by the rules of Upload.
func (r *Run) Download(ctx context.Context, from []string, to string) (Summary, error) {
	remote := lab{r.link}
	last := filepath.Base(to)
	into := os.IsPathSeparator(to[len(to)-1]) || last == "." || last == ".."
	if len(from) > 1 && !into {
		if info, err := os.Stat(to); err != nil || !info.IsDir() {
			return Summary{}, fmt.Errorf("several things go into a folder, and %s is none; write it with a slash at its end "+
				"to make it", to)
		}
		into = true
	}
	// All is written below one folder, and no link in it leads out of it.
	base, folder := to, "."
	if !into {
		base, folder = filepath.Split(filepath.Clean(to))
		base = filepath.Clean(base)
	}
	if err := os.MkdirAll(base, 0o777); err != nil {
		return Summary{}, err
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return Summary{}, err
	}
	defer func() { _ = root.Close() }()
	r.reader, r.writer = remote, rooted{root}
	r.move = func(ctx context.Context, j *job) error { return r.receive(ctx, root, j) }
	r.sourceSum = remote.sum
	r.destSum = func(_ context.Context, path string) (string, error) { return sumOfRooted(root, path) }
	return r.run(ctx, func(ctx context.Context) error {
		for _, source := range from {
			clean := path.Clean(source)
			name := path.Base(clean)
			if clean == "." || clean == "/" || name == ".." {
				name = "lab-home"
			}
			if err := r.top(ctx, clean, name, folder, into); err != nil {
				return err
			}
		}
		return nil
	})
}

// top copies what was named on the command line: to folder/name where it goes into a folder, otherwise to folder.
func (r *Run) top(ctx context.Context, from, name, folder string, into bool) error {
	of, err := r.reader.stat(ctx, from)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if of.isFolder() && !r.opts.Recursive {
		return fmt.Errorf("%s: %w", from, errFolder)
	}
	to := folder
	if !into && of.isFile() {
		if there, err := r.writer.stat(ctx, folder); err == nil && there.isFolder() {
			into = true
		}
	}
	if into {
		if err := checkName(name); err != nil {
			return err
		}
		to = r.writer.join(folder, name)
	}
	if err := r.makeParents(ctx, to); err != nil {
		return err
	}
	if of.isFolder() {
		return r.folder(ctx, from, to, 0)
	}
	var there *entry
	if e, err := r.writer.lstat(ctx, to); err == nil {
		there = &e
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", to, err)
	}
	return r.one(ctx, &job{from: from, to: to, of: of, there: there})
}

// makeParents makes the folders above a target.
func (r *Run) makeParents(ctx context.Context, to string) error {
	parent := path.Dir(to)
	if parent == "." || parent == "/" || parent == ".." {
		return nil
	}
	if e, err := r.writer.stat(ctx, parent); err == nil && e.isFolder() {
		return nil
	}
	if err := r.makeParents(ctx, parent); err != nil {
		return err
	}
	if err := r.writer.mkdir(ctx, parent); err != nil {
		return fmt.Errorf("the folder %s: %w", parent, err)
	}
	r.folders.Add(1)
	return nil
}

// folder copies what a folder holds. Only what concerns the whole run is an error.
func (r *Run) folder(ctx context.Context, from, to string, depth int) error {
	if depth > maxDepth {
		r.fail(from, errors.New("it is too deep; does a link lead to a folder around it?"))
		return nil
	}
	list, err := r.reader.list(ctx, from)
	if err != nil {
		return r.orFail(ctx, from, err)
	}
	there, err := r.ensure(ctx, to)
	if err != nil {
		return r.orFail(ctx, from, err)
	}
	for _, of := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.child(ctx, from, to, of, there, depth); err != nil {
			return err
		}
	}
	return nil
}

// orFail ends the run for what ends all of it, and notes everything else.
func (r *Run) orFail(ctx context.Context, path string, err error) error {
	var refusal *Refusal
	if ctx.Err() != nil || errors.As(err, &refusal) {
		return err
	}
	r.fail(path, err)
	return nil
}

// ensure makes a folder and lists what it holds.
func (r *Run) ensure(ctx context.Context, path string) (map[string]*entry, error) {
	list, err := r.writer.list(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = r.writer.mkdir(ctx, path); err == nil {
			r.folders.Add(1)
		}
		return nil, err
	}
	if err != nil {
		if e, lookErr := r.writer.stat(ctx, path); lookErr == nil && !e.isFolder() {
			err = errInTheWay
		}
		return nil, err
	}
	there := make(map[string]*entry, len(list))
	for i := range list {
		there[list[i].name] = &list[i]
	}
	return there, nil
}

// child copies one thing out of a folder.
func (r *Run) child(ctx context.Context, folder, toFolder string, of entry, there map[string]*entry, depth int) error {
	from := r.reader.join(folder, of.name)
	if err := checkName(of.name); err != nil {
		r.fail(from, err)
		return nil
	}
	to := r.writer.join(toFolder, of.name)
	if of.isLink() {
		switch r.opts.Links {
		case LinksSkip:
			r.skip(from, "it is a symbolic link")
			return nil
		case LinksCopy:
			if err := r.copyLink(ctx, from, to, there[of.name]); err != nil {
				return r.orFail(ctx, from, err)
			}
			return nil
		}
		led, err := r.reader.stat(ctx, from)
		if err != nil {
			return r.orFail(ctx, from, fmt.Errorf("what it leads to: %w", err))
		}
		led.name = of.name
		of = led
	}
	if err := r.clashes(from, to); err != nil {
		r.fail(from, err)
		return nil
	}
	switch {
	case of.isFolder():
		return r.folder(ctx, from, to, depth+1)
	case of.isFile():
		j := &job{from: from, to: to, of: of, there: there[of.name]}
		for name := range there {
			if isPartialOf(name, of.name) && name != partialName(of, of.name) {
				j.stale = append(j.stale, r.writer.join(toFolder, name))
			}
		}
		return r.one(ctx, j)
	}
	r.skip(from, "it is "+kindWords(of.mode))
	return nil
}

func kindWords(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "neither a file nor a folder"
}

// clashes finds names that are one to a file system which ignores case: the second would replace the first.
func (r *Run) clashes(from, to string) error {
	if _, writesHere := r.writer.(rooted); !writesHere || runtime.GOOS != "windows" && runtime.GOOS != "darwin" {
		return nil
	}
	key := strings.ToLower(to)
	if other, taken := r.local[key]; taken && other != from {
		return fmt.Errorf("this computer cannot tell it from %s", other)
	}
	r.local[key] = from
	return nil
}

// copyLink makes a link with the same text, in the place of another link or file.
func (r *Run) copyLink(ctx context.Context, from, to string, there *entry) error {
	text, err := r.reader.readlink(ctx, from)
	if err != nil {
		return err
	}
	if there != nil {
		if there.isLink() {
			if has, err := r.writer.readlink(ctx, to); err == nil && has == text {
				r.unchanged.Add(1)
				return nil
			}
		}
		if there.isFolder() {
			return errInTheWay
		}
		if err := r.writer.remove(ctx, to); err != nil {
			return err
		}
	}
	if err := r.writer.symlink(ctx, text, to); err != nil {
		return fmt.Errorf("the link could not be made (%w); --links=follow copies what it leads to", err)
	}
	r.links.Add(1)
	return nil
}

// one hands a file to a worker.
func (r *Run) one(ctx context.Context, j *job) error {
	r.filesFound.Add(1)
	r.found.Add(j.of.size)
	select {
	case r.jobs <- j:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
