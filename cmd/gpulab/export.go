package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nfs"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

// hostNFS is this machine, whose programs and kernel serve and mount.
func hostNFS() nfs.Machine { return nfs.Machine{Root: "/"} }

// exported are the folders that the head exports, with a mark in each. In homes
// a machine's root has to make places for shared folders; in those it need not.
func exported(dataDir string) []nfs.Folder {
	return []nfs.Folder{
		{Path: filepath.Join(dataDir, "homes"), Root: true},
		{Path: filepath.Join(dataDir, "folders")},
	}
}

// openExport marks what is to be exported, where it lies. Whom it is exported to
// is exportHomes's matter.
func (l *appliance) openExport(ctx context.Context) error {
	if l.cfg.Storage.Export == "" {
		return nil
	}
	mark, err := l.storageMark(ctx)
	if err != nil {
		return err
	}
	for _, f := range exported(l.cfg.DataDir) {
		if err := os.MkdirAll(f.Path, 0o711); err != nil {
			return fmt.Errorf("storage.export: %w", err)
		}
		path := filepath.Join(f.Path, markFile)
		if have, err := os.ReadFile(path); err == nil && string(have) == mark+"\n" {
			continue
		}
		// Machines read it whose root is nobody here; it is no secret.
		if err := os.WriteFile(path, []byte(mark+"\n"), 0o644); err != nil {
			return fmt.Errorf("storage.export: %w", err)
		}
	}
	return nil
}

// exportHomes lets the machines of the pool have the homes, and nobody else.
func (p *pool) exportHomes(ctx context.Context) error {
	var list []byte
	if p.lab.cfg.Storage.Export != "" {
		mark, err := p.lab.storageMark(ctx)
		if err != nil {
			return err
		}
		list = nfs.Exports(mark, exported(p.lab.cfg.DataDir), p.nodeAddresses())
	}
	changed, err := hostNFS().Export(ctx, list)
	p.mu.Lock()
	p.exportTrouble = err
	p.mu.Unlock()
	if changed && err == nil {
		slog.Info("the machines that may mount homes over NFS have changed", "file", nfs.ExportsFile)
	}
	return err
}

// exportComponent tells how the export of homes is, where there is one.
func (l *appliance) exportComponent() (ctl.Component, bool) {
	if l.cfg.Storage.Export == "" {
		return ctl.Component{}, false
	}
	c := ctl.Component{
		Name: "homes over NFS", State: ctl.OK, Detail: numbered(len(l.pool.list()), "machine mounts them",
			"machines mount them"),
	}
	l.pool.mu.Lock()
	err := l.pool.exportTrouble
	l.pool.mu.Unlock()
	if err == nil {
		err = hostNFS().CanServe()
	}
	if err != nil {
		c.State, c.Detail, c.NextStep = ctl.Warning, err.Error(), "`gpulab doctor nfs` says what is missing; notebooks on "+
			"this machine go on"
	}
	return c, true
}

// openExported mounts what the head exports at the same places here.
func (g *agent) openExported(ctx context.Context) error {
	if err := hostNFS().CanMount(); err != nil {
		return err
	}
	mark := g.file.Settings.Mark
	var head netip.AddrPort
	for _, f := range exported(g.cfg.DataDir) {
		if err := os.MkdirAll(f.Path, 0o711); err != nil {
			return err
		}
		err := promptly(func() error { return lookAtShared(f.Path, mark) })
		if err == nil {
			continue
		}
		if !errors.Is(err, errUnmarked) {
			return fmt.Errorf("homes over NFS: %w", err)
		}
		if entries, err := os.ReadDir(f.Path); err != nil {
			return err
		} else if len(entries) > 0 {
			return fmt.Errorf("%s has files of this machine's own, which the head's would hide: move them away (`mv %[1]s "+
				"%[1]s.before`)", f.Path)
		}
		if !head.IsValid() {
			if head, _, err = nodeapi.Reach(ctx, g.headAddresses()); err != nil {
				return fmt.Errorf("homes over NFS: the head does not answer: %w", err)
			}
		}
		if err := hostNFS().Mount(ctx, head.Addr(), f.Path); err != nil {
			return fmt.Errorf("homes over NFS: %w; on the head, `exportfs -v` shows what is exported, and its firewall has "+
				"to let in TCP port %d", err, nfs.Port)
		}
		if err := lookAtShared(f.Path, mark); err != nil {
			return fmt.Errorf("what %s exports as %s is not this lab's: it has not its mark", head.Addr(), f.Path)
		}
	}
	return nil
}
