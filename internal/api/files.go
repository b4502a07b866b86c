package api

import (
	"context"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// FileDoor is where people bring files in and out over SFTP.
type FileDoor struct {
	Port                 int
	HostKey, Fingerprint string
	// Open lists what somebody has open, Close ends all of it and says how much there was.
	Open  func(userID int64) []FileConnection
	Close func(userID int64) int
}

// FileConnection is one that is open.
type FileConnection struct {
	Since  time.Time
	Remote string // the address, without port
	Client string // what the program calls itself
	Way    string // by which they signed in, in words
}

// FileAccess is where files are taken, and how a program knows that it is there: it hears so over TLS that it trusts.
type FileAccess struct {
	Enabled     bool   `json:"enabled" doc:"The lab takes files over SFTP"`
	Port        int    `json:"port,omitempty" doc:"Of SSH, at the lab's address"`
	User        string `json:"user,omitempty" doc:"To sign in with; the password is the token"`
	HostKey     string `json:"hostKey,omitempty" doc:"As in a file known_hosts, without the host's name"`
	Fingerprint string `json:"fingerprint,omitempty" doc:"Of the host key, as OpenSSH shows it"`
}

func (s *Server) addFiles() {
	add(s, Operation{Method: "GET", Path: "/files", ID: "getFiles", Need: users.ActionFiles, tag: "files",
		summary: "Where files are brought in and out over SFTP",
		description: "Files themselves go over SFTP, which `gpulab cp` speaks, with a token whose scope is files, launch " +
			"or full."},
		func(_ context.Context, c *call, _ *noInput) (*body[FileAccess], error) {
			door := s.cfg.Files
			if door == nil {
				return answerWith(FileAccess{})
			}
			return answerWith(FileAccess{
				Enabled: true, Port: door.Port, User: c.user.Handle, HostKey: door.HostKey, Fingerprint: door.Fingerprint,
			})
		})
}
