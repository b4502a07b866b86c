package users

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

func TestFind(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleAdmin)
	for _, n := range []NewUser{
		{Handle: "juergen-k", Name: "Jürgen Großmann", Email: "j.grossmann@example.org"},
		{Handle: "lukasz", Name: "Łukasz 100%_\\ Nowak", Role: RoleGuest},
		{Handle: "mei", Name: "李雷"},
	} {
		if _, err := s.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	sam := create(t, s, "sam", RoleLead)
	gone := create(t, s, "gone", RoleMember)
	if _, err := s.CreateGroup(t.Context(), "vision", "Sehen & Großes"); err != nil {
		t.Fatal(err)
	}
	for id, lead := range map[int64]bool{sam.ID: true, gone.ID: false, ada.ID: false} {
		if err := s.SetMember(t.Context(), "vision", id, lead); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.StartSession(t.Context(), ada.ID, SessionMeta{}); err != nil {
		t.Fatal(err)
	}
	signedIn := c.now()
	c.add(time.Hour)
	if err := s.Suspend(t.Context(), sam.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	// As an account that was made before there was anything to search in.
	if _, err := s.db.Exec("UPDATE users SET search = lower(handle || ' ' || name || ' ' || email) WHERE handle = 'juergen-k'"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		q    Query
		want string
	}{
		{Query{}, "ada juergen-k lukasz mei sam"},
		{Query{Text: "  GROSSMANN "}, "juergen-k"},
		{Query{Text: "jürgen"}, "juergen-k"},
		{Query{Text: "lukasz nowak"}, "lukasz"},
		{Query{Text: "ŁUKASZ"}, "lukasz"},
		{Query{Text: "nowak jürgen"}, ""},
		{Query{Text: "李"}, "mei"},
		{Query{Text: "%_\\"}, "lukasz"},
		{Query{Text: "%"}, "lukasz"},
		{Query{Text: "_"}, "lukasz"},
		{Query{Text: "' OR 1=1 --"}, ""},
		{Query{Text: "vision"}, "ada sam"},
		{Query{Text: "Großes"}, "ada sam"},
		{Query{Text: "vision sa"}, "sam"},
		{Query{Role: RoleGuest}, "lukasz"},
		{Query{Group: "Vision"}, "ada sam"},
		{Query{Group: "none"}, ""},
		{Query{State: StateSuspended}, "sam"},
		{Query{State: StateActive}, "ada juergen-k lukasz mei"},
		{Query{State: StateInvited}, "juergen-k lukasz mei"},
		{Query{State: StateRemoved}, "gone"},
		{Query{State: StateRemoved, Text: "ada"}, ""},
		{Query{Text: strings.Repeat("a ", 5000)}, "ada juergen-k lukasz sam"},
	} {
		found, err := s.Find(t.Context(), tc.q)
		var handles []string
		for _, p := range found.People {
			handles = append(handles, p.Handle)
		}
		if got := strings.Join(handles, " "); err != nil || got != tc.want || found.Total != len(found.People) {
			t.Errorf("%.60q: %q of %d, %v; want %q", fmt.Sprint(tc.q), got, found.Total, err, tc.want)
		}
	}
	page, err := s.Find(t.Context(), Query{Limit: 2, Offset: 3})
	if err != nil || page.Total != 5 || len(page.People) != 2 || page.People[0].Handle != "mei" || page.People[1].Handle != "sam" {
		t.Errorf("second page: %+v, %v", page, err)
	}
	if page, err := s.Find(t.Context(), Query{Limit: 2, Offset: 50}); err != nil || page.Total != 5 || page.People == nil || len(page.People) != 0 {
		t.Errorf("beyond the end: %+v, %v", page, err)
	}

	person, err := s.Person(t.Context(), " Sam ")
	if err != nil || !person.Suspended || !person.SuspendedSince.Equal(c.now()) || person.SignedIn != nil || !person.HasPassword ||
		!slices.Equal(person.Groups, []Membership{{Group: "vision", UserID: sam.ID, Handle: "sam", Name: "sam", Role: RoleLead, Lead: true}}) {
		t.Errorf("%+v, %v", person, err)
	}
	if person, err := s.Person(t.Context(), "ada"); err != nil || person.SignedIn == nil || !person.SignedIn.Equal(signedIn) {
		t.Errorf("%+v, %v", person, err)
	}
	if person, err := s.Person(t.Context(), "gone"); err != nil || person.Removed == nil {
		t.Errorf("%+v, %v", person, err)
	}
	_, err = s.Person(t.Context(), "nobody-here")
	wantErr(t, err, ErrNotFound)
}

// thousands is a lab of n people in 20 groups.
func thousands(tb testing.TB, n int) *Service {
	tb.Helper()
	st, err := store.Open(tb.Context(), tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = st.Close() })
	s := newService(st.DB(), quick, time.Now)
	tx, err := st.DB().Begin()
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(query string, args ...any) {
		if _, err := tx.Exec(query, args...); err != nil {
			tb.Fatal(err)
		}
	}
	for g := range 20 {
		exec("INSERT INTO groups (name, title, created_at) VALUES (?, ?, 0)", fmt.Sprintf("class-%02d", g), fmt.Sprintf("Class %d", g))
	}
	for i := range n {
		handle, name := fmt.Sprintf("student-%05d", i), fmt.Sprintf("Jürgen Student %d", i)
		exec("INSERT INTO users (handle, name, email, role, uid, created_at, search) VALUES (?, ?, ?, 'member', ?, 0, ?)",
			handle, name, handle+"@example.org", FirstUID+i, searchable(handle, name, handle+"@example.org"))
		exec("INSERT INTO group_members (group_id, user_id, added_at) VALUES (?, ?, 0)", i%20+1, i+1)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// BenchmarkFind is one page of the list of 10,000 people; the goal is 50 ms.
func BenchmarkFind(b *testing.B) {
	s := thousands(b, 10000)
	for name, q := range map[string]Query{
		"first page":       {Limit: 50},
		"last page":        {Limit: 50, Offset: 9950},
		"text":             {Limit: 50, Text: "jurgen 99"},
		"text of nobody":   {Limit: 50, Text: "nobody else here"},
		"group, last page": {Limit: 50, Group: "class-07", Offset: 450},
		"text of a group":  {Limit: 50, Text: "class-07"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Find(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
