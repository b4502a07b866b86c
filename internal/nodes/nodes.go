// Package nodes knows the machines of the pool besides its head: the authority
// that signs their certificates, the codes with which new ones join, the
// list of those that belong to it, what they are shown as, whom they are for, and
// which take no new work.
//
// A machine speaks by a certificate of the authority's, whose key must be the
// one that the list has for it: so one that was removed, or has joined anew,
// is not heard any more however long its certificate lasts.
//
// cmd/gpulab and internal/nodeapi import it; it imports no other package of
// gpulab.
package nodes

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// CodeLife is how long a code can be used.
const CodeLife = time.Hour

// toldLife is how long a machine that was told of its removal may ask again, in
// case it was interrupted before it took gpulab off itself.
const toldLife = time.Hour

// Why a machine is not let in.
var (
	ErrCodeUnknown = errors.New("this lab has not made that join code, has forgotten it, or made it for another " +
		"machine; run `gpulab invite-node` on the head for a new one")
	ErrCodeUsed = errors.New("that join code has been used, and each is good for one machine; run `gpulab " +
		"invite-node` on the head for a new one")
	ErrCodeExpired = errors.New("that join code has expired, an hour after it was made; run `gpulab invite-node` on " +
		"the head for a new one")
	ErrRemoved = errors.New("this machine was removed from the pool; run `gpulab leave` on it, and join it again with " +
		"a new code")
	ErrUnknown = errors.New("this lab does not know the machine, as after a restore of a backup that is older; run " +
		"`gpulab leave` on it, and join it again with a new code")
)

// NameTakenError says that a machine of the name is in the pool.
type NameTakenError struct {
	Name string
	Seen time.Time
}

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("a machine named %s is in the pool already, last heard of %s; if it is this one, installed "+
		"anew, say --replace, and otherwise choose another name with --name",
		e.Name, e.Seen.Local().Format("on Mon 2 Jan at 15:04"))
}

// CopyError says that a machine with the same machine-id is in the pool.
type CopyError struct{ Name string }

func (e *CopyError) Error() string {
	return fmt.Sprintf("this machine has the same machine-id as %s, as copies of a disk do; give it one of its own "+
		"(`rm /etc/machine-id; systemd-machine-id-setup`, then reboot), or, if it is %[1]s under a new name, run `gpulab "+
		"nodes remove %[1]s` on the head first", e.Name)
}

// Node is a machine of the pool.
type Node struct {
	ID      int64
	Name    string
	Address string // where it was seen last
	Version string // of its gpulab
	GPUs    string // real, simulated or none
	Joined  time.Time
	Seen    time.Time
	Removed time.Time // zero for one that belongs to the pool
}

// Registry is the list of machines, in the tables nodes and join_codes.
type Registry struct {
	db  *sql.DB
	now func() time.Time
}

// New returns the list that a gpulab.db holds.
func New(db *sql.DB) *Registry { return &Registry{db: db, now: time.Now} }

// Invite makes a code for one machine, whichever it is; it works for CodeLife.
func (r *Registry) Invite(ctx context.Context, authority [sha256.Size]byte,
	addresses []netip.AddrPort) (Code, time.Time, error) {
	return r.invite(ctx, authority, addresses, func(c Code) [sha256.Size]byte { return sha256.Sum256(c.Secret[:]) })
}

// InviteKey makes a code that works for CodeLife, and only with that key.
func (r *Registry) InviteKey(ctx context.Context, authority [sha256.Size]byte, addresses []netip.AddrPort,
	key [sha256.Size]byte) (Code, time.Time, error) {
	return r.invite(ctx, authority, addresses, func(c Code) [sha256.Size]byte { return boundHash(c.Secret, key) })
}

// boundHash is what the table keeps of the secret of a code that is for one key. The key is part of the hash, so the
// binding lasts as long as the code does, whatever else is forgotten.
func boundHash(secret [16]byte, key [sha256.Size]byte) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat([]byte("gpulab code for one key 1\x00"), secret[:], key[:]))
}

func (r *Registry) invite(ctx context.Context, authority [sha256.Size]byte, addresses []netip.AddrPort,
	kept func(Code) [sha256.Size]byte) (Code, time.Time, error) {
	if len(addresses) == 0 {
		return Code{}, time.Time{}, errors.New("this machine has no network address under which another could reach it; " +
			"connect it to the lab's network and try again")
	}
	c, now := newCode(authority, addresses), r.now()
	expires := now.Add(CodeLife)
	hash := kept(c)
	// Codes of long ago are forgotten; what was used is known by its machine.
	_, err := r.db.ExecContext(ctx, `DELETE FROM join_codes WHERE expires_at < ?`, now.Add(-24*time.Hour).UnixMilli())
	if err == nil {
		_, err = r.db.ExecContext(ctx, `INSERT INTO join_codes (id, secret_hash, created_at, expires_at) VALUES (?, ?, ?, ?)`,
			c.ID[:], hash[:], now.UnixMilli(), expires.UnixMilli())
	}
	if err != nil {
		return Code{}, time.Time{}, fmt.Errorf("keep a join code: %w", err)
	}
	return c, expires, nil
}

// Open tells whether somebody may still come: a machine of the pool, one with a
// code that works, or one that was removed. That one is expected until its
// certificate ends, or for an hour after it was told (see Who).
func (r *Registry) Open(ctx context.Context) (bool, error) {
	var open bool
	now := r.now()
	err := r.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM nodes WHERE removed_at IS NULL
			OR removed_at > ? AND (seen_at <= removed_at OR seen_at > ?))
		OR EXISTS (SELECT 1 FROM join_codes WHERE used_at IS NULL AND expires_at > ?)`,
		now.Add(-certificateLife).UnixMilli(), now.Add(-toldLife).UnixMilli(), now.UnixMilli()).Scan(&open)
	return open, err
}

// Application is what a machine says of itself when it wants to join.
type Application struct {
	CodeID  [8]byte
	Secret  [16]byte
	KeyHash [sha256.Size]byte
	Name    string
	Machine string // SHA-256 of its machine-id, hexadecimal
	Address string
	Version string
	GPUs    string
	Replace bool // take the place of a machine of the name
	Try     bool // say what Join would, and change nothing
}

// Join lets a machine in, and uses its code up. A machine that was interrupted
// may come back with the same code and key. replaced says that another machine
// of the name had to go.
func (r *Registry) Join(ctx context.Context, a Application) (n Node, replaced bool, err error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return n, false, err
	}
	defer func() { _ = tx.Rollback() }()
	now := r.now()
	known, err := r.redeem(ctx, tx, a, now)
	if err != nil {
		return n, false, err
	}
	if known != 0 {
		n, err = scan(tx.QueryRowContext(ctx, selectNode+` WHERE id = ? AND key_hash = ? AND removed_at IS NULL`, known,
			a.KeyHash[:]))
		if errors.Is(err, sql.ErrNoRows) {
			err = ErrCodeUsed
		}
		return n, false, err
	}
	if replaced, err = makeRoom(ctx, tx, a, now); err != nil {
		return n, false, err
	}
	result, err := tx.ExecContext(ctx,
		`INSERT INTO nodes (name, key_hash, machine, address, version, gpus, joined_at, seen_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		a.Name, a.KeyHash[:], a.Machine, a.Address, a.Version, a.GPUs, now.UnixMilli(), now.UnixMilli())
	if err != nil {
		return n, false, fmt.Errorf("note the machine %s: %w", a.Name, err)
	}
	id, err := result.LastInsertId()
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE join_codes SET used_at = ?, node_id = ? WHERE id = ?`, now.UnixMilli(), id,
			a.CodeID[:])
	}
	if err != nil {
		return n, false, err
	}
	if n, err = scan(tx.QueryRowContext(ctx, selectNode+` WHERE id = ?`, id)); err != nil {
		return n, false, err
	}
	if a.Try {
		return n, replaced, nil
	}
	return n, replaced, tx.Commit()
}

// redeem checks a code, and returns the machine that has used it, 0 for none.
func (r *Registry) redeem(ctx context.Context, tx *sql.Tx, a Application, now time.Time) (known int64, err error) {
	var hash []byte
	var expires int64
	var node sql.NullInt64
	err = tx.QueryRowContext(ctx, `SELECT secret_hash, expires_at, node_id FROM join_codes WHERE id = ?`,
		a.CodeID[:]).Scan(&hash, &expires, &node)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	// Compared for a code that is not there, too: both take the same time.
	given, bound := sha256.Sum256(a.Secret[:]), boundHash(a.Secret, a.KeyHash)
	right := subtle.ConstantTimeCompare(given[:], pad(hash)) | subtle.ConstantTimeCompare(bound[:], pad(hash))
	switch {
	case err != nil || right != 1:
		return 0, ErrCodeUnknown
	case node.Valid:
		return node.Int64, nil
	case now.UnixMilli() >= expires:
		return 0, ErrCodeExpired
	}
	return 0, nil
}

func pad(hash []byte) []byte {
	out := make([]byte, sha256.Size)
	copy(out, hash)
	return out
}

// makeRoom looks for machines that stand in the way.
func makeRoom(ctx context.Context, tx *sql.Tx, a Application, now time.Time) (replaced bool, err error) {
	old, err := scan(tx.QueryRowContext(ctx, selectNode+` WHERE name = ? AND removed_at IS NULL`, a.Name))
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return false, err
	case !a.Replace:
		return false, &NameTakenError{old.Name, old.Seen}
	default:
		if _, err := tx.ExecContext(ctx, `UPDATE nodes SET removed_at = ? WHERE id = ?`, now.UnixMilli(),
			old.ID); err != nil {
			return false, err
		}
		replaced = true
	}
	shown, err := titles(ctx, tx)
	if err != nil {
		return false, err
	}
	for other, title := range shown {
		if other != a.Name && strings.EqualFold(title, a.Name) {
			return false, fmt.Errorf("the machine %s is shown as %s in the pool; choose another name with --name", other, title)
		}
	}
	twin, err := scan(tx.QueryRowContext(ctx, selectNode+` WHERE machine = ? AND removed_at IS NULL`, a.Machine))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return replaced, nil
	case err != nil:
		return false, err
	}
	return false, &CopyError{twin.Name}
}

const selectNode = `SELECT id, name, address, version, gpus, joined_at, seen_at, coalesce(removed_at, 0) FROM nodes`

type row interface{ Scan(dest ...any) error }

func scan(r row) (n Node, err error) {
	var joined, seen, removed int64
	err = r.Scan(&n.ID, &n.Name, &n.Address, &n.Version, &n.GPUs, &joined, &seen, &removed)
	n.Joined, n.Seen = time.UnixMilli(joined), time.UnixMilli(seen)
	if removed != 0 {
		n.Removed = time.UnixMilli(removed)
	}
	return n, err
}

// Who finds the machine that shows a certificate of the authority's: ErrRemoved
// and ErrUnknown are for those that are not heard.
func (r *Registry) Who(ctx context.Context, certificate *x509.Certificate) (Node, error) {
	hash, err := KeyHash(certificate.PublicKey)
	if err != nil {
		return Node{}, ErrUnknown
	}
	n, err := scan(r.db.QueryRowContext(ctx, selectNode+` WHERE key_hash = ?`, hash[:]))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Node{}, ErrUnknown
	case err != nil:
		return Node{}, err
	case n.Name != certificate.Subject.CommonName:
		return Node{}, ErrUnknown
	case !n.Removed.IsZero():
		return Node{}, errors.Join(ErrRemoved, r.Told(ctx, n.ID))
	}
	return n, nil
}

// Told notes that a machine knows of its removal; one that leaves knows by itself.
func (r *Registry) Told(ctx context.Context, id int64) error {
	_, err := r.db.ExecContext(ctx,
		`UPDATE nodes SET seen_at = max(?, removed_at + 1) WHERE id = ? AND seen_at <= removed_at`, r.now().UnixMilli(), id)
	return err
}

// List returns the machines of the pool, by name.
func (r *Registry) List(ctx context.Context) ([]Node, error) {
	rows, err := r.db.QueryContext(ctx, selectNode+` WHERE removed_at IS NULL ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("the machines of the pool: %w", err)
	}
	defer rows.Close()
	var list []Node
	for rows.Next() {
		n, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("the machines of the pool: %w", err)
		}
		list = append(list, n)
	}
	return list, rows.Err()
}

// Saw notes where a machine is, which gpulab it runs, and that it was heard.
func (r *Registry) Saw(ctx context.Context, id int64, address, version string) error {
	_, err := r.db.ExecContext(ctx,
		`UPDATE nodes SET seen_at = ?, address = ?, version = ? WHERE id = ? AND removed_at IS NULL`, r.now().UnixMilli(),
		address, version, id)
	return err
}

// Remove takes a machine out of the pool; its certificate is worth nothing from
// then on. ErrUnknown says that there is none of the name.
func (r *Registry) Remove(ctx context.Context, name string) (Node, error) {
	n, err := scan(r.db.QueryRowContext(ctx, selectNode+` WHERE name = ? AND removed_at IS NULL`, name))
	if errors.Is(err, sql.ErrNoRows) {
		return n, ErrUnknown
	}
	if err == nil {
		_, err = r.db.ExecContext(ctx, `UPDATE nodes SET removed_at = ? WHERE id = ?`, r.now().UnixMilli(), n.ID)
	}
	if err == nil {
		_, err = r.db.ExecContext(ctx, `DELETE FROM cordons WHERE machine = ?`, name)
	}
	if err == nil {
		_, err = r.db.ExecContext(ctx, `DELETE FROM machine_titles WHERE machine = ?`, name)
	}
	if err == nil {
		_, err = r.db.ExecContext(ctx, `DELETE FROM machine_limits WHERE machine = ?`, name)
	}
	return n, err
}
