package users

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// eve is an account with everything an account can have, and what was open in its name.
func eve(t *testing.T, s *Service) (u User, session, link string) {
	t.Helper()
	create(t, s, "root-admin", RoleAdmin)
	u = create(t, s, "eve", RoleMember)
	if err := s.SetProfile(t.Context(), u.ID, "Eve Somebody", "eve@example.org"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateGroup(t.Context(), "vision", "Vision"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetMember(t.Context(), "vision", u.ID, true); err != nil {
		t.Fatal(err)
	}
	session, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	link, err = s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return u, session, link
}

// keptOut checks that nothing that eve had lets anybody in.
func keptOut(t *testing.T, s *Service, u User, session, link string) {
	t.Helper()
	_, err := s.ByID(t.Context(), u.ID)
	wantErr(t, err, ErrNotFound)
	_, err = s.ByHandle(t.Context(), u.Handle)
	wantErr(t, err, ErrNotFound)
	_, err = s.Authenticate(t.Context(), u.Handle, goodPassword, "192.0.2.1")
	wantErr(t, err, ErrBadCredentials)
	_, err = s.StartSession(t.Context(), u.ID, SessionMeta{})
	wantErr(t, err, ErrNotFound)
	_, err = s.SessionUser(t.Context(), session)
	wantErr(t, err, ErrSignedOut)
	_, err = s.RedeemLink(t.Context(), link, "", "", goodPassword)
	wantErr(t, err, ErrLinkUnknown)
	_, err = s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
	wantErr(t, err, ErrNotFound)
	wantErr(t, s.SetPassword(t.Context(), u.ID, goodPassword), ErrNotFound)
	wantErr(t, s.Remove(t.Context(), u.ID), ErrNotFound)
	wantErr(t, s.Suspend(t.Context(), u.ID), ErrNotFound)
	wantErr(t, s.SetMember(t.Context(), "vision", u.ID, false), ErrNotFound)
	for _, handle := range []string{u.Handle, "EVE"} {
		_, err = s.Create(t.Context(), NewUser{Handle: handle})
		wantErr(t, err, ErrHandleTaken)
	}
	for what, find := range map[string]func() (int, error){
		"list":    func() (int, error) { l, err := s.List(t.Context()); return len(l), err },
		"find":    func() (int, error) { f, err := s.Find(t.Context(), Query{}); return f.Total, err },
		"members": func() (int, error) { m, err := s.Members(t.Context(), "vision"); return len(m) + 1, err },
	} {
		if n, err := find(); err != nil || n != 1 {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
}

func TestRemovedAndBack(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		t.Run(fmt.Sprint("suspended ", suspended), func(t *testing.T) {
			s, c := newTest(t)
			u, session, link := eve(t, s)
			secret, _, err := s.CreateToken(t.Context(), u.ID, NewToken{Name: "cron", Scope: ScopeFull, Days: 365})
			if err != nil {
				t.Fatal(err)
			}
			refused := func() {
				t.Helper()
				_, _, err := s.TokenUser(t.Context(), secret, "192.0.2.3", false)
				wantErr(t, err, ErrTokenRefused)
			}
			if suspended {
				if err := s.Suspend(t.Context(), u.ID); err != nil {
					t.Fatal(err)
				}
			}
			before, err := s.Person(t.Context(), "eve")
			if err != nil || before.Removed != nil {
				t.Fatalf("%+v, %v", before, err)
			}
			wantErr(t, s.Undelete(t.Context(), u.ID), ErrNotRemoved)
			if err := s.Remove(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
			keptOut(t, s, u, session, link)
			refused()
			removed, err := s.Removed(t.Context())
			if err != nil || len(removed) != 1 || removed[0].Handle != "eve" || removed[0].Email != "eve@example.org" ||
				!removed[0].Removed.Equal(c.now()) || !removed[0].Purge.Equal(c.now().Add(RemovedKept)) {
				t.Fatalf("%+v, %v", removed, err)
			}
			next := create(t, s, "next", RoleMember)
			if next.UID != u.UID+1 || next.ID == u.ID {
				t.Errorf("reused: removed %+v, next %+v", u, next)
			}

			c.add(RemovedKept - time.Minute)
			if err := s.Undelete(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
			after, err := s.Person(t.Context(), "eve")
			if err != nil || after.ID != before.ID || after.UID != before.UID || after.Name != before.Name || after.Email != before.Email ||
				after.Role != before.Role || after.Suspended != suspended || after.Removed != nil || after.Purge != nil ||
				!slices.Equal(after.Groups, before.Groups) || len(after.Groups) != 1 {
				t.Errorf("was  %+v\nback %+v, %v", before, after, err)
			}
			_, err = s.SessionUser(t.Context(), session)
			wantErr(t, err, ErrSignedOut)
			_, err = s.RedeemLink(t.Context(), link, "", "", goodPassword)
			wantErr(t, err, ErrLinkUnknown)
			refused()
			_, err = s.Authenticate(t.Context(), "eve", goodPassword, "192.0.2.2")
			if suspended {
				wantErr(t, err, ErrSuspended)
			} else {
				wantErr(t, err, nil)
			}
			wantErr(t, s.Undelete(t.Context(), u.ID), ErrNotRemoved)
			if removed, err := s.Removed(t.Context()); err != nil || len(removed) != 0 {
				t.Errorf("%+v, %v", removed, err)
			}
		})
	}
}

func TestPurge(t *testing.T) {
	s, _ := newTest(t)
	u, session, link := eve(t, s)
	wantErr(t, s.Purge(t.Context(), u.ID), ErrNotRemoved)
	wantErr(t, s.Purge(t.Context(), 99), ErrNotFound)
	if err := s.Remove(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	if homes, err := s.HomesToDelete(t.Context()); err != nil || len(homes) != 0 {
		t.Fatalf("a home that is still kept: %+v, %v", homes, err)
	}
	if err := s.Purge(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	keptOut(t, s, u, session, link)
	wantErr(t, s.Undelete(t.Context(), u.ID), ErrPurged)
	wantErr(t, s.Purge(t.Context(), u.ID), ErrPurged)
	_, err := s.Person(t.Context(), "eve")
	wantErr(t, err, ErrPurged)
	if removed, err := s.Removed(t.Context()); err != nil || len(removed) != 0 {
		t.Errorf("%+v, %v", removed, err)
	}
	var traces int
	err = s.db.QueryRow(`SELECT (SELECT count(*) FROM users WHERE id = ?1 AND (name || email || password_hash <> '' OR signed_in_at NOT NULL
		OR search LIKE '%somebody%' OR search LIKE '%example%')) + (SELECT count(*) FROM group_members WHERE user_id = ?1)
		+ (SELECT count(*) FROM sessions WHERE user_id = ?1) + (SELECT count(*) FROM links WHERE user_id = ?1)
		+ (SELECT count(*) FROM api_tokens WHERE user_id = ?1)`, u.ID).Scan(&traces)
	if err != nil || traces != 0 {
		t.Errorf("personal data left: %d, %v", traces, err)
	}
	homes, err := s.HomesToDelete(t.Context())
	if err != nil || len(homes) != 1 || homes[0].ID != u.ID || homes[0].Handle != "eve" || homes[0].UID != u.UID {
		t.Fatalf("%+v, %v", homes, err)
	}
	if err := s.HomeDeleted(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	if homes, err := s.HomesToDelete(t.Context()); err != nil || len(homes) != 0 {
		t.Errorf("%+v, %v", homes, err)
	}
}

// Who is no lead any more leads no group, and none again by becoming one.
func TestDemotedLeadsNothing(t *testing.T) {
	s, _ := newTest(t)
	u, _, _ := eve(t, s)
	for _, role := range []Role{RoleMember, RoleLead} {
		if err := s.Change(t.Context(), u.ID, Change{Role: new(role)}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Members(t.Context(), "vision"); err != nil || len(m) != 1 || m[0].Lead {
			t.Errorf("as %s: %+v, %v", role, m, err)
		}
	}
}
