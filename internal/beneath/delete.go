package beneath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Delete deletes the folder of that name in parent; none is no error. It may be interrupted at any moment
// and called again. It needs no more memory or open files however deep or wide the folder is.
//
// The folder is first moved into one that only root can look into, as "1", which is then emptied.
func Delete(ctx context.Context, parent, id string) error {
	root, err := os.OpenRoot(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Lstat(id); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a folder; delete it by hand, and what it leads to", filepath.Join(parent, id))
	}
	trash := ".purge-" + id
	if err := root.Mkdir(trash, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	inside, err := root.OpenRoot(trash)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	if err := empty(ctx, inside); err != nil { // what an earlier try left
		return err
	}
	if err := root.Rename(id, filepath.Join(trash, "1")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := empty(ctx, inside); err != nil {
		return err
	}
	return root.Remove(trash)
}

// empty deletes all that is in the trash. A folder that is not empty is made so by moving the folders in it
// up into the trash, under names that only this counts: so nothing is ever more than two folders deep, and
// no path can become too long.
func empty(ctx context.Context, trash *os.Root) error {
	next := 1
	for {
		names, err := someNames(trash, ".")
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names { // all that an earlier round moved up, before more is
			if n, err := strconv.Atoi(name); err == nil {
				next = max(next, n+1)
			}
		}
		for _, name := range names {
			for trash.Remove(name) != nil {
				if next, err = lift(ctx, trash, name, next); err != nil {
					return err
				}
			}
		}
	}
}

// lift deletes some of what is in a folder of the trash; folders with something in them it moves up, with
// numbers from next, and returns the number after them.
func lift(ctx context.Context, trash *os.Root, folder string, next int) (int, error) {
	if err := ctx.Err(); err != nil {
		return next, err
	}
	names, err := someNames(trash, folder)
	if err != nil {
		return next, err
	}
	if len(names) == 0 { // and yet it could not be removed
		return next, trash.Remove(folder)
	}
	for _, name := range names {
		within := filepath.Join(folder, name)
		if trash.Remove(within) == nil {
			continue
		}
		for {
			_, err := trash.Lstat(strconv.Itoa(next))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return next, err
			}
			next++
		}
		if err := trash.Rename(within, strconv.Itoa(next)); err != nil {
			return next, err
		}
		next++
	}
	return next, nil
}

// someNames lists the first of what is in a folder of the trash.
func someNames(trash *os.Root, folder string) ([]string, error) {
	dir, err := trash.Open(folder)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(1000)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return names, err
}
