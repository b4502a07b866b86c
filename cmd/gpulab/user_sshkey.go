package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func newUserSSHKey(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "ssh-key", Short: "SSH keys with which people bring files in and out: list, add, remove",
		Example: "  sudo gpulab user ssh-key list ada\n  sudo gpulab user ssh-key add ada ada.pub\n  sudo gpulab user " +
			"ssh-key remove ada 3",
	}
	c.AddCommand(newUserSSHKeyList(a), newUserSSHKeyAdd(a), newUserSSHKeyRemove(a))
	return c
}

func newUserSSHKeyList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list HANDLE", Short: "List a person's SSH keys",
		Example:           "  sudo gpulab user ssh-key list ada\n  sudo gpulab user ssh-key list ada --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			keys, err := a.client().UserSSHKeys(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), keys)
			}
			return printSSHKeys(c.OutOrStdout(), args[0], keys)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printSSHKeys(w io.Writer, handle string, keys []users.SSHKey) error {
	if len(keys) == 0 {
		_, err := fmt.Fprintf(w, "%s has no SSH keys. `gpulab user ssh-key add %s FILE` adds one.\n", handle, handle)
		return err
	}
	rows := [][]string{{"ID", "NAME", "TYPE", "FINGERPRINT", "ADDED", "LAST USED", "FROM"}}
	for i := range keys {
		k := &keys[i]
		used := "never"
		if k.LastUsed != nil {
			used = k.LastUsed.Local().Format("2006-01-02 15:04")
		}
		rows = append(rows, []string{
			strconv.FormatInt(k.ID, 10), k.Name, k.Type, k.Fingerprint, k.Created.Local().Format(time.DateOnly), used, k.Remote,
		})
	}
	return table(w, rows)
}

func newUserSSHKeyAdd(a *app) *cobra.Command {
	var k ctl.NewSSHKey
	var asJSON bool
	c := &cobra.Command{
		Use: "add HANDLE FILE", Short: "Let a person bring files in and out with an SSH key",
		Long: "Let a person bring files in and out with an SSH key. FILE is the public key, which\nends in .pub; - " +
			"reads it from the input. Nobody needs the other, private file.",
		Example: "  sudo gpulab user ssh-key add ada ada.pub\n  sudo gpulab user ssh-key add ada - --name laptop < ada.pub",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(c *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"pub"}, cobra.ShellCompDirectiveFilterFileExt
			}
			return a.completeHandles(c, args, part)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			var err error
			if k.Key, err = readSSHKey(c.InOrStdin(), args[1]); err != nil {
				return err
			}
			added, err := a.client().AddUserSSHKey(c.Context(), args[0], k)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), added)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s can bring files in and out with the key %d, %q: %s\n", args[0], added.ID,
				added.Name, added.Fingerprint)
			return err
		},
	}
	c.Flags().StringVar(&k.Name, "name", "", "what the key is called, such as the computer that it is on (the key's "+
		"comment)")
	jsonFlag(c, &asJSON)
	return c
}

// maxKeyFile is more than any public key takes, in bytes.
const maxKeyFile = 32 << 10

// readSSHKey reads a file, or the input for -.
func readSSHKey(in io.Reader, name string) (string, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("the public key: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	if err != nil {
		return "", fmt.Errorf("the public key: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func newUserSSHKeyRemove(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "remove HANDLE KEY", Short: "Take an SSH key away from a person",
		Long: "Take an SSH key away from a person. KEY is its number or fingerprint, as\n`gpulab user " +
			"ssh-key list` shows them. Connections that it opened end within\nseconds.",
		Example: "  sudo gpulab user ssh-key remove ada 3\n  sudo gpulab user ssh-key remove ada " +
			"SHA256:5cDGrNmQ0pGbn3yuRfc2PYaPzvBnDJ5UdPGcjzNEUEA",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			removed, err := a.client().RemoveUserSSHKey(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), removed)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "The key %d, %q, of %s is removed: %s\n", removed.ID, removed.Name, args[0],
				removed.Fingerprint)
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// UserSSHKeys implements ctl.Daemon.
func (l *appliance) UserSSHKeys(ctx context.Context, handle string) ([]users.SSHKey, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return nil, err
	}
	return l.people.SSHKeys(ctx, u.ID)
}

// AddUserSSHKey implements ctl.Daemon.
func (l *appliance) AddUserSSHKey(ctx context.Context, handle string, k ctl.NewSSHKey) (users.SSHKey, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return users.SSHKey{}, err
	}
	added, err := l.people.AddSSHKey(ctx, u.ID, k.Name, k.Key)
	if err == nil {
		l.recordRoot(ctx, "ssh-key.add", u.Handle, fmt.Sprintf("key %d, %s", added.ID, added.Fingerprint))
	}
	return added, err
}

// RemoveUserSSHKey implements ctl.Daemon.
func (l *appliance) RemoveUserSSHKey(ctx context.Context, handle, which string) (users.SSHKey, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return users.SSHKey{}, err
	}
	keys, err := l.people.SSHKeys(ctx, u.ID)
	if err != nil {
		return users.SSHKey{}, err
	}
	var id int64
	for i := range keys {
		if which == strconv.FormatInt(keys[i].ID, 10) || which == keys[i].Fingerprint {
			id = keys[i].ID
		}
	}
	if id == 0 {
		return users.SSHKey{}, fmt.Errorf("%s has no SSH key %s; `gpulab user ssh-key list %s` shows those that there are",
			u.Handle, which, u.Handle)
	}
	removed, err := l.people.RemoveSSHKey(ctx, u.ID, id)
	if err == nil {
		l.recordRoot(ctx, "ssh-key.remove", u.Handle, fmt.Sprintf("key %d, %s", removed.ID, removed.Fingerprint))
	}
	return removed, err
}
