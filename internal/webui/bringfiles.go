package webui

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// FileDoor is where people bring files in and out over SFTP.
type FileDoor struct {
	Port int
	// HostKey is the public key as in a file known_hosts, without the host's
	// name; Fingerprint is SHA256:… of it.
	HostKey, Fingerprint string
	// Open lists what somebody has open, Close ends all of it and says how much
	// there was.
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

// A filesView says how to bring files in.
type filesView struct {
	On          bool
	Host, Port  string
	Fingerprint string
	Lines       []commandLine
	Keys        []sshKeyView
	NewKey      sshKeyForm
	Open        []openView
}

// A commandLine is ready to copy.
type commandLine struct{ ID, Label, Text, Hint string }

type sshKeyView struct{ ID, Name, Type, Fingerprint, Added, Used string }

type sshKeyForm struct{ Name, Key, Error string }

type openView struct{ Program, Remote, Since, Way string }

// filesView completes a form that was refused, if one was.
func (s *Server) filesView(r *http.Request, v visitor, form sshKeyForm) (filesView, error) {
	door := s.cfg.Files
	if door == nil {
		return filesView{}, nil
	}
	me := v.session.User
	view := filesView{
		On: true, Host: hostOf(r), Port: strconv.Itoa(door.Port), Fingerprint: door.Fingerprint, NewKey: form,
	}
	view.Lines = fileLines(s.address(r), view.Host, view.Port, me.Handle)
	keys, err := s.cfg.Users.SSHKeys(r.Context(), me.ID)
	if err != nil {
		return filesView{}, err
	}
	for i := range keys {
		k := &keys[i]
		key := sshKeyView{
			ID: strconv.FormatInt(k.ID, 10), Name: k.Name, Type: k.Type, Fingerprint: k.Fingerprint, Added: day(k.Created),
			Used: "never",
		}
		if k.LastUsed != nil {
			key.Used = s.usedFrom(*k.LastUsed, k.Remote)
		}
		view.Keys = append(view.Keys, key)
	}
	for _, c := range door.Open(me.ID) {
		view.Open = append(view.Open, openView{Program: orElse(c.Client, "a program that does not say what it is"),
			Remote: c.Remote,
			Since:  units.Lasting(s.now().Sub(c.Since)), Way: c.Way})
	}
	return view, nil
}

// fileLines are what people paste into a terminal, the easiest first.
func fileLines(address, host, port, handle string) []commandLine {
	quoted := host
	if strings.Contains(host, ":") { // an IPv6 address
		quoted = "'[" + host + "]'"
	}
	return []commandLine{
		{"files-login", "With gpulab on your own computer, once", "gpulab login " + address, ""},
		{"files-cp", "Then a folder into the lab", "gpulab cp -r ./data lab:data",
			"Interrupted? The same line goes on where it stopped. The other way: gpulab cp -r lab:results ."},
		{"files-sftp", "With the sftp that Linux, macOS and Windows have", "sftp -P " + port + " " + handle + "@" + host,
			"Then: put -R data. To go on where it stopped: reput -R data. Back: get -R results, or reget -R results."},
		{"files-rclone", "With rclone", `rclone copy --progress ./data ":sftp,host=` + quoted + `,port=` + port + ",user=" +
			handle + `,shell_type=none,ask_password=true:data"`, ""},
	}
}

// hostOf is how the visitor's browser reaches the lab, without the port.
func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

// address returns the address by which the visitor's browser reaches the pages. It has the port that the browser used,
// which may not be the lab's own.
func (s *Server) address(r *http.Request) string {
	port := s.cfg.HTTPSPort
	if _, digits, err := net.SplitHostPort(r.Host); err == nil {
		if n, err := strconv.Atoi(digits); err == nil && n > 0 && n < 1<<16 {
			port = n
		}
	}
	at, _ := authorityAt(r, port) // the name is one of the lab's
	return "https://" + at
}

func (s *Server) addSSHKey(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := sshKeyForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Key: strings.TrimSpace(r.PostForm.Get("key"))}
	added, err := s.cfg.Users.AddSSHKey(r.Context(), v.session.User.ID, form.Name, form.Key)
	switch {
	case err == nil:
		s.audit(r, v, "ssh-key.add", v.session.User.Handle, fmt.Sprintf("key %d, %s", added.ID, added.Fingerprint))
		return seeOther("/account?done=ssh-key#files")
	case errors.Is(err, users.ErrSSHKeyInvalid), errors.Is(err, users.ErrSSHKeyTaken),
		errors.Is(err, users.ErrSSHKeyLimit):
		form.Error = message(err)
		if strings.Contains(form.Key, "PRIVATE KEY") {
			form.Key = "" // not shown again either
		}
		return s.showAccount(w, r, v, http.StatusUnprocessableEntity, accountView{Files: filesView{NewKey: form}})
	}
	return err
}

func (s *Server) removeSSHKey(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	removed, err := s.cfg.Users.RemoveSSHKey(r.Context(), v.session.User.ID, id)
	switch {
	case errors.Is(err, users.ErrSSHKeyNotFound): // as was wanted
	case err != nil:
		return err
	default:
		s.audit(r, v, "ssh-key.remove", v.session.User.Handle, fmt.Sprintf("key %d, %s", removed.ID, removed.Fingerprint))
	}
	return seeOther("/account?done=ssh-key-gone#files")
}

// closeFiles ends what is open under one's own name.
func (s *Server) closeFiles(_ http.ResponseWriter, r *http.Request, v visitor) error {
	if door := s.cfg.Files; door != nil {
		if n := door.Close(v.session.User.ID); n > 0 {
			s.audit(r, v, "files.close", v.session.User.Handle, count(n, "connection", "connections"))
		}
	}
	return seeOther("/account?done=files-closed#files")
}
