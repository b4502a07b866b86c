package ctl

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/storage"
)

func (d *daemon) Folders(context.Context) ([]storage.Folder, error) {
	return []storage.Folder{{Name: "data", Size: &storage.Size{Bytes: 7, At: time.Unix(1e9, 0).UTC()}}}, nil
}

func (d *daemon) Folder(_ context.Context, name string) (storage.Folder, error) {
	return storage.Folder{}, errors.New("there is no folder " + name)
}

func (d *daemon) AddFolder(_ context.Context, n storage.NewFolder) (storage.Folder, error) {
	return storage.Folder{Name: n.Name, Kind: n.Kind, Groups: n.Groups}, nil
}

func (d *daemon) ChangeFolder(_ context.Context, name string, c storage.Change) (storage.Folder, error) {
	return storage.Folder{Name: name, Others: *c.Others}, nil
}

func (d *daemon) DeleteFolder(_ context.Context, name string) (storage.Folder, error) {
	return storage.Folder{Name: name, Deleted: new(time.Unix(1e9, 0).UTC())}, nil
}

func (d *daemon) UndeleteFolder(_ context.Context, name string) (storage.Folder, error) {
	return storage.Folder{Name: name}, nil
}

func TestFolders(t *testing.T) {
	_, c := serveDaemon(t, &daemon{})
	ctx := t.Context()
	list, err := c.Folders(ctx)
	if err != nil || len(list) != 1 || list[0].Size == nil || list[0].Size.Bytes != 7 {
		t.Errorf("folders: %+v, %v", list, err)
	}
	if _, err := c.Folder(ctx, "a b/c"); err == nil || err.Error() != "there is no folder a b/c" {
		t.Errorf("a folder that is not there: %v", err)
	}
	if f, err := c.AddFolder(ctx, storage.NewFolder{Name: "x", Kind: storage.HandIn, Groups: []string{"g"}}); err != nil || f.Kind != storage.HandIn || len(f.Groups) != 1 {
		t.Errorf("a new folder: %+v, %v", f, err)
	}
	if f, err := c.ChangeFolder(ctx, "x", storage.Change{Others: new(storage.Read)}); err != nil || f.Others != storage.Read {
		t.Errorf("a changed folder: %+v, %v", f, err)
	}
	if f, err := c.DeleteFolder(ctx, "x"); err != nil || f.Deleted == nil {
		t.Errorf("a deleted folder: %+v, %v", f, err)
	}
	if f, err := c.UndeleteFolder(ctx, "x"); err != nil || f.Deleted != nil {
		t.Errorf("one that is back: %+v, %v", f, err)
	}
}
