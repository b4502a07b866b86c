package users

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// SSHKeysPerUser is how many SSH keys somebody can have.
const SSHKeysPerUser = 20

const (
	maxSSHKeyName = 60       // characters
	maxSSHKey     = 16 << 10 // bytes of the line
	minRSA        = 2048     // bits
)

// SSHKey is a public key with which somebody signs in for files.
type SSHKey struct {
	ID          int64      `json:"id"`
	UserID      int64      `json:"-"`
	Name        string     `json:"name"`
	Type        string     `json:"type"`        // such as ssh-ed25519
	Fingerprint string     `json:"fingerprint"` // SHA256:… as ssh-keygen -l shows it
	Created     time.Time  `json:"created"`
	LastUsed    *time.Time `json:"lastUsed"` // to the minute; nil for never
	Remote      string     `json:"remote,omitempty"`
}

// parseSSHKey reads the one line of a .pub file. The comment is a name for it.
func parseSSHKey(text string) (key ssh.PublicKey, comment string, err error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, "", sentence(ErrSSHKeyInvalid, "Paste the public key: the one line of the file that ends in .pub, "+
			"such as ~/.ssh/id_ed25519.pub.")
	case strings.Contains(text, "PRIVATE KEY"):
		return nil, "", sentence(ErrSSHKeyInvalid, "This is a private key, which nobody but you should ever see. It was "+
			"not kept here. Paste the file beside it that ends in .pub.")
	case len(text) > maxSSHKey || strings.ContainsAny(text, "\r\n"):
		return nil, "", sentence(ErrSSHKeyInvalid, "A public key is one line, such as that of ~/.ssh/id_ed25519.pub. "+
			"Paste one key at a time.")
	}
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return nil, "", sentence(ErrSSHKeyInvalid, "This is no public key as OpenSSH writes it. It begins with "+
			"ssh-ed25519 or ssh-rsa and is the one line of a file that ends in .pub.")
	case len(options) > 0:
		return nil, "", sentence(ErrSSHKeyInvalid, "Options in front of a key are not followed here. Paste the key "+
			"without them, beginning with its type.")
	}
	return key, comment, checkSSHKey(key)
}

// checkSSHKey refuses keys that others may compute, and certificates, whose authority nobody has vouched for.
func checkSSHKey(key ssh.PublicKey) error {
	if _, is := key.(*ssh.Certificate); is {
		return sentence(ErrSSHKeyInvalid, "This is an SSH certificate. Paste the public key itself, without -cert in the "+
			"name of its file.")
	}
	if key.Type() == "ssh-dss" {
		return sentence(ErrSSHKeyInvalid, "DSA keys are too weak today. Make a new one: ssh-keygen -t ed25519.")
	}
	crypto, ok := key.(ssh.CryptoPublicKey)
	if !ok { // a key in a security key
		return nil
	}
	if public, is := crypto.CryptoPublicKey().(*rsa.PublicKey); is && public.N.BitLen() < minRSA {
		return sentence(ErrSSHKeyInvalid, "This RSA key has %d bits, which is too few today. Make a new one: ssh-keygen "+
			"-t ed25519.", public.N.BitLen())
	}
	return nil
}

// AddSSHKey lets somebody sign in for files with a key; its name is the key's own comment where none is given.
// ErrSSHKeyInvalid, ErrSSHKeyTaken for one that they have, ErrSSHKeyLimit.
func (s *Service) AddSSHKey(ctx context.Context, userID int64, name, text string) (SSHKey, error) {
	key, comment, err := parseSSHKey(text)
	if err != nil {
		return SSHKey{}, err
	}
	if strings.TrimSpace(name) == "" {
		if name = clip(audit.Tidy(comment, maxSSHKeyName), maxSSHKeyName); name == "" {
			name = "SSH key"
		}
	}
	if name, err = checkName(name); err != nil || name == "" || len([]rune(name)) > maxSSHKeyName {
		return SSHKey{}, sentence(ErrSSHKeyInvalid, "A key needs a name of at most %d characters, such as the computer "+
			"that it is on.", maxSSHKeyName)
	}
	line, hash, now := marshalSSHKey(key), sha256.Sum256(key.Marshal()), s.now()
	added := SSHKey{
		UserID: userID, Name: name, Type: key.Type(), Fingerprint: fingerprint(hash[:]),
		Created: time.UnixMilli(now.UnixMilli()).UTC(),
	}
	err = s.inTx(ctx, "add an SSH key", func(tx *sql.Tx) error {
		u, err := s.oneRow(ctx, tx, "id = ?", userID)
		if err != nil {
			return err
		}
		if u.Suspended {
			return errSuspended()
		}
		var have, same int
		if err := tx.QueryRowContext(ctx,
			"SELECT count(*), coalesce(sum(fingerprint = ?), 0) FROM ssh_keys WHERE user_id = ?", hash[:], userID).Scan(&have,
			&same); err != nil {
			return err
		}
		switch {
		case same > 0:
			return sentence(ErrSSHKeyTaken, "This account has this key already.")
		case have >= SSHKeysPerUser:
			return sentence(ErrSSHKeyLimit,
				"This account has %d keys, and that is the most. Remove one that is not used any more.", have)
		}
		res, err := tx.ExecContext(ctx, "INSERT INTO ssh_keys (user_id, fingerprint, key, name, created_at) VALUES (?, ?, "+
			"?, ?, ?)",
			userID, hash[:], line, name, now.UnixMilli())
		if err != nil {
			return err
		}
		added.ID, err = res.LastInsertId()
		return err
	})
	return added, err
}

func marshalSSHKey(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func fingerprint(sha256 []byte) string {
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sha256)
}

const sshKeyColumns = "id, user_id, name, key, fingerprint, created_at, last_used_at, last_remote"

func scanSSHKey(row store.Row) (SSHKey, error) {
	var k SSHKey
	var line string
	var hash []byte
	var created int64
	var used sql.NullInt64
	if err := row.Scan(&k.ID, &k.UserID, &k.Name, &line, &hash, &created, &used, &k.Remote); err != nil {
		return SSHKey{}, err
	}
	k.Type, _, _ = strings.Cut(line, " ")
	k.Fingerprint, k.Created, k.LastUsed = fingerprint(hash), time.UnixMilli(created).UTC(), moment(used)
	return k, nil
}

// SSHKeys lists somebody's keys, the newest first.
func (s *Service) SSHKeys(ctx context.Context, userID int64) ([]SSHKey, error) {
	list, err := store.All(ctx, s.db, scanSSHKey,
		"SELECT "+sshKeyColumns+" FROM ssh_keys WHERE user_id = ? ORDER BY id DESC", userID)
	if err != nil {
		return nil, fmt.Errorf("list SSH keys: %w", err)
	}
	return list, nil
}

// RemoveSSHKey takes a key away and returns it; ErrSSHKeyNotFound where they have none such. A connection that it
// opened ends within seconds, see StillForFiles.
func (s *Service) RemoveSSHKey(ctx context.Context, userID, keyID int64) (SSHKey, error) {
	k, err := scanSSHKey(s.db.QueryRowContext(ctx,
		"DELETE FROM ssh_keys WHERE id = ? AND user_id = ? RETURNING "+sshKeyColumns, keyID, userID))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return SSHKey{}, sentence(ErrSSHKeyNotFound, "There is no such key any more. The list shows those that there are.")
	case err != nil:
		return SSHKey{}, fmt.Errorf("remove an SSH key: %w", err)
	}
	return k, nil
}
