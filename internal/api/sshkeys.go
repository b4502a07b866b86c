package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// SSHKey is a public key with which somebody signs in for files.
type SSHKey struct {
	ID          int64      `json:"id"`
	Name        string     `json:"name"`
	Type        string     `json:"type" example:"ssh-ed25519"`
	Fingerprint string     `json:"fingerprint" doc:"As ssh-keygen -l shows it"`
	Created     time.Time  `json:"created"`
	LastUsed    *time.Time `json:"lastUsed,omitempty" doc:"To the minute; left out for never"`
	Remote      string     `json:"remote,omitempty" doc:"From where it was used last"`
}

// SSHKeyList is a person's keys, the newest first.
type SSHKeyList struct {
	Keys []SSHKey `json:"keys"`
}

type addKeyInput struct {
	Body struct {
		Key  string `json:"key" minLength:"1" maxLength:"16384" doc:"The one line of the file that ends in .pub" example:"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAyY9NOoi6ZOoLSEvCTLgf0HqcNGA744m/TX4l5InxH8 ada@laptop"`
		Name string `json:"name,omitempty" maxLength:"60" doc:"The comment of the key if left out"`
	}
}

// FileConnections is what somebody has open for files.
type FileConnections struct {
	Connections []OpenConnection `json:"connections" doc:"The oldest first"`
}

// OpenConnection is one of them.
type OpenConnection struct {
	Since  time.Time `json:"since"`
	Remote string    `json:"remote" doc:"From where"`
	Client string    `json:"client,omitempty" doc:"What the program calls itself"`
	Way    string    `json:"way" doc:"By which way it signed in"`
}

// Closed is how many connections were closed.
type Closed struct {
	Closed int `json:"closed"`
}

// Keys and connections need more than a token for files: that one brings files in and out, and nothing else.
func (s *Server) addSSHKeys() {
	add(s, Operation{Method: "GET", Path: "/me/ssh-keys", ID: "listMySSHKeys", Need: users.ActionOwnAccount, tag: "files",
		summary: "The SSH keys with which you bring files in and out"}, s.mySSHKeys)
	add(s, Operation{Method: "POST", Path: "/me/ssh-keys", ID: "addMySSHKey", Need: users.ActionOwnAccount, tag: "files",
		summary:     "Add one of your SSH keys",
		description: "Only the public key. It stays valid until you remove it.", status: http.StatusCreated,
		also: []int{conflict}}, s.addSSHKey)
	add(s, Operation{Method: "DELETE", Path: "/me/ssh-keys/{id}", ID: "removeMySSHKey", Need: users.ActionOwnAccount,
		tag: "files", summary: "Remove one of your SSH keys",
		description: "Connections that it opened end within seconds."}, s.removeSSHKey)
	add(s, Operation{
		Method: "GET", Path: "/files/connections", ID: "listMyFileConnections", Need: users.ActionOwnAccount, tag: "files",
		summary: "What you have open for files",
	},
		func(_ context.Context, c *call, _ *noInput) (*body[FileConnections], error) {
			list := FileConnections{Connections: []OpenConnection{}}
			if door := s.cfg.Files; door != nil {
				for _, o := range door.Open(c.user.ID) {
					list.Connections = append(list.Connections, OpenConnection(o))
				}
			}
			return answerWith(list)
		})
	add(s, Operation{Method: "DELETE", Path: "/files/connections", ID: "closeMyFileConnections",
		Need: users.ActionOwnAccount, tag: "files", summary: "Close everything that you have open for files",
		description: "What is under way goes on where it stopped, with the next connection."}, s.closeFiles)
}

func sshKeyOf(k *users.SSHKey) SSHKey {
	return SSHKey{
		ID: k.ID, Name: k.Name, Type: k.Type, Fingerprint: k.Fingerprint, Created: k.Created, LastUsed: k.LastUsed,
		Remote: k.Remote,
	}
}

func (s *Server) mySSHKeys(ctx context.Context, c *call, _ *noInput) (*body[SSHKeyList], error) {
	keys, err := s.cfg.Users.SSHKeys(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	list := SSHKeyList{Keys: []SSHKey{}}
	for i := range keys {
		list.Keys = append(list.Keys, sshKeyOf(&keys[i]))
	}
	return answerWith(list)
}

func (s *Server) addSSHKey(ctx context.Context, c *call, in *addKeyInput) (*body[SSHKey], error) {
	added, err := s.cfg.Users.AddSSHKey(ctx, c.user.ID, in.Body.Name, in.Body.Key)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "ssh-key.add", c.user.Handle, fmt.Sprintf("key %d, %s", added.ID, added.Fingerprint))
	return answerWith(sshKeyOf(&added))
}

func (s *Server) removeSSHKey(ctx context.Context, c *call, in *IDInput) (*nothing, error) {
	removed, err := s.cfg.Users.RemoveSSHKey(ctx, c.user.ID, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "ssh-key.remove", c.user.Handle, fmt.Sprintf("key %d, %s", removed.ID, removed.Fingerprint))
	return done(nil)
}

func (s *Server) closeFiles(ctx context.Context, c *call, _ *noInput) (*body[Closed], error) {
	var out Closed
	if door := s.cfg.Files; door != nil {
		out.Closed = door.Close(c.user.ID)
	}
	switch out.Closed {
	case 0:
	case 1:
		s.audit(ctx, c, "files.close", c.user.Handle, "1 connection")
	default:
		s.audit(ctx, c, "files.close", c.user.Handle, fmt.Sprintf("%d connections", out.Closed))
	}
	return answerWith(out)
}
