package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/sftpd"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// sftpSession is the hidden command that serves one session's files; gpulab
// runs itself with it.
const sftpSession = "sftp-session"

// newFiles makes the SFTP server; nil where there is none.
func (l *appliance) newFiles() error {
	if !l.cfg.Files.Listen.On() {
		return nil
	}
	key, err := sftpd.LoadHostKey(filepath.Join(tlsDir(l.cfg), "ssh-host-key"))
	if err != nil {
		return err
	}
	l.filesIdentity = sftpd.IdentityOf(key)
	l.files, err = sftpd.New(sftpd.Config{
		Accounts: l.people, Places: l.placesForFiles, HostKey: key,
		Command: []string{"/proc/self/exe", sftpSession}, Log: slog.Default(),
	})
	return err
}

// placesForFiles lists what somebody sees over SFTP: what their notebooks see.
func (l *appliance) placesForFiles(ctx context.Context, u users.User) ([]sftpd.Place, error) {
	places, err := l.storage.PlacesOf(ctx, u.ID)
	list := make([]sftpd.Place, len(places))
	for i, p := range places {
		list[i] = sftpd.Place{Name: p.Name, Path: p.Path, ReadOnly: p.ReadOnly, GID: p.GID}
	}
	return list, err
}

// listenFiles opens the SFTP server's port.
func (l *appliance) listenFiles(ctx context.Context, g *errgroup.Group) error {
	if l.files == nil {
		return nil
	}
	ln, err := net.Listen("tcp", string(l.cfg.Files.Listen))
	if err != nil {
		return fmt.Errorf("%w (files.listen there; off turns it off)",
			explainListen("files over SFTP", l.cfg.Files.Listen.Port(), err))
	}
	g.Go(func() error { return l.files.Serve(ctx, ln) })
	return nil
}

// fileDoor is what the pages say of it; nil where there is none.
func (l *appliance) fileDoor() *webui.FileDoor {
	if l.files == nil {
		return nil
	}
	return &webui.FileDoor{
		Port: l.cfg.Files.Listen.Port(), HostKey: l.filesIdentity.Key, Fingerprint: l.filesIdentity.Fingerprint,
		Close: l.files.Close,
		Open: func(userID int64) []webui.FileConnection {
			open := l.files.Connections(userID)
			list := make([]webui.FileConnection, len(open))
			for i, c := range open {
				list[i] = webui.FileConnection(c)
			}
			return list
		},
	}
}

// apiFileDoor is what programs are told of it; nil where there is none.
func (l *appliance) apiFileDoor() *api.FileDoor {
	if l.files == nil {
		return nil
	}
	return &api.FileDoor{
		Port: l.cfg.Files.Listen.Port(), HostKey: l.filesIdentity.Key, Fingerprint: l.filesIdentity.Fingerprint,
		Close: l.files.Close,
		Open: func(userID int64) []api.FileConnection {
			open := l.files.Connections(userID)
			list := make([]api.FileConnection, len(open))
			for i, c := range open {
				list[i] = api.FileConnection(c)
			}
			return list
		},
	}
}

// filesComponent says how people bring files in.
func (l *appliance) filesComponent() ctl.Component {
	if l.files == nil {
		return ctl.Component{
			Name: "files", State: ctl.Off, Detail: "no files over SFTP",
			NextStep: "to take some: files.listen in the configuration",
		}
	}
	open := "no connection open"
	switch n := l.files.Count(); n {
	case 0:
	case 1:
		open = "1 connection open"
	default:
		open = fmt.Sprintf("%d connections open", n)
	}
	return ctl.Component{
		Name: "files", State: ctl.OK, Detail: fmt.Sprintf("SFTP at %s, %s; host key %s", l.cfg.Files.Listen, open,
			l.filesIdentity.Fingerprint),
	}
}
