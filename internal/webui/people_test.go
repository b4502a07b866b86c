package webui_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// The people of the test lab; their IDs follow this order from 1. The password
// of those who have one is the handle with "-password" behind it.
var people = []users.User{
	{ID: 1, Handle: "ada", Name: "Ada Lovelace", Email: "ada@example.org", Role: users.RoleAdmin, HasPassword: true},
	{ID: 2, Handle: "ben", Name: "Ben Okafor", Role: users.RoleMember, HasPassword: true},
	{ID: 3, Handle: "lea", Name: "Lea Marie Schäfer-Villanueva", Role: users.RoleLead, HasPassword: true},
	{ID: 4, Handle: "gus", Name: "", Role: users.RoleGuest},
}

// peopleDB is a gpulab.db with these people: hashing passwords takes a while.
var peopleDB []byte

func TestMain(m *testing.M) {
	var err error
	if peopleDB, err = makePeopleDB(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func makePeopleDB() ([]byte, error) {
	dir, err := os.MkdirTemp("", "gpulab-people-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	st, err := store.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	service := users.New(st.DB())
	for _, p := range people {
		u, err := service.Create(ctx, users.NewUser{Handle: p.Handle, Name: p.Name, Email: p.Email, Role: p.Role})
		if err != nil {
			return nil, err
		}
		if !p.HasPassword {
			continue
		}
		token, err := service.CreateLink(ctx, users.Link{Purpose: users.PurposePassword, UserID: &u.ID}, 0)
		if err != nil {
			return nil, err
		}
		if _, err := service.RedeemLink(ctx, token, "", "", p.Handle+"-password"); err != nil {
			return nil, err
		}
	}
	// What was done to make them is not what tests look for.
	for _, forget := range []string{"DELETE FROM links", "DROP TRIGGER audit_no_delete", "DELETE FROM audit"} {
		if _, err := st.DB().ExecContext(ctx, forget); err != nil {
			return nil, err
		}
	}
	copied := filepath.Join(dir, "copy.db")
	if err := st.Backup(ctx, copied); err != nil {
		return nil, err
	}
	return os.ReadFile(copied)
}

// testUsers are real accounts in a database of the test's own.
type testUsers struct {
	*users.Service
	db *sql.DB
}

func newUsers(t testing.TB) *testUsers {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, store.MainFile), peopleDB, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	u := &testUsers{users.New(st.DB()), st.DB()}
	for i := range people {
		u.exec(t, "UPDATE users SET created_at = ? WHERE id = ?", time.Now().Add(-time.Duration(i*i+1)*31*time.Hour).UnixMilli(), i+1)
	}
	return u
}

// exec changes what no method of the service changes.
func (u *testUsers) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	if _, err := u.db.ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// count counts rows.
func (u *testUsers) count(t testing.TB, table string) int {
	t.Helper()
	var n int
	if err := u.db.QueryRowContext(context.Background(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// audit is the log, oldest first.
func (u *testUsers) audit(t testing.TB) []audit.Entry {
	t.Helper()
	newest, err := u.AuditLog().List(context.Background(), audit.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	log := make([]audit.Entry, 0, len(newest))
	for i := range newest {
		log = append(log, newest[len(newest)-1-i])
	}
	return log
}
