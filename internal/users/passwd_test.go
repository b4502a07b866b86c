package users

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
)

const machine = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
# a comment

zoe:x:1000:1000:Zoë Ünal,Room 5,,:/home/zoe:/bin/bash
yan:x:1001:100:& Li:/home/yan:/usr/bin/zsh
j_doe:x:1002:1002::/home/j_doe:
backup-robot:x:1003:1003:Backup:/home/b:/bin/false
late:x:20005:20005:Late:/home/late:/bin/bash
toor:x:1000:1000:Other Zoë:/root:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
ada:x:1004:1004:Ada:/home/ada:/bin/bash
old:x:500:500:Old:/home/old:/bin/bash
hubber:x:19999:19999:H:/h:/bin/sh
far:x:15000:15000:Far:/h:/bin/sh
+::::::
broken:x:abc
num:x:abc:1:::
`

func passwdOptions() PasswdOptions { return PasswdOptions{MinUID: 1000, MaxUID: 59999} }

func TestPlanPasswd(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleAdmin)
	opts := passwdOptions()
	opts.MaxUID = 14999
	p, err := s.PlanPasswd(t.Context(), []byte(machine), opts)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ name, status, says string }{
		{"root", "skipped", "of the system"}, {"daemon", "skipped", "of the system"},
		{"zoe", "new", ""}, {"yan", "new", "group here is 100; in notebooks the group's number is 1001"},
		{"j-doe", "new", "Signs in as j-doe"}, {"backup-robot", "skipped", "/bin/false"},
		{"late", "skipped", "outside 1000–14999"}, {"toor", "error", "Line 5 has the same number"},
		{"nobody", "skipped", "outside 1000–14999"}, {"ada", "error", "another number"}, {"old", "skipped", "of the system"},
		{"hubber", "skipped", "outside"}, {"far", "skipped", "outside 1000–14999"}, {"+", "skipped", "directory service"},
		{"broken", "skipped", "seven fields"}, {"num", "skipped", "numbers"},
	}
	if len(p.Rows) != len(want) || p.New != 3 || p.Wrong != 2 || p.Skipped != 11 {
		t.Fatalf("%+v", p)
	}
	for i, w := range want {
		if r := p.Rows[i]; r.Handle != w.name || string(r.Status) != w.status || !strings.Contains(r.Text, w.says) {
			t.Errorf("%+v, want %+v", r, w)
		}
	}
	if r := p.Rows[2]; r.Line != 5 || r.UID != 1000 || r.Name != "Zoë Ünal" || r.Role != RoleMember {
		t.Errorf("%+v", r)
	}
	if p.Rows[3].Name != "yan Li" || p.Rows[4].Name != "j_doe" {
		t.Errorf("%+v %+v", p.Rows[3], p.Rows[4])
	}
	if people, err := s.List(t.Context()); err != nil || len(people) != 1 {
		t.Errorf("a look changed something: %+v, %v", people, err)
	}
	// Without a narrower choice, gpulab's own numbers are refused with what to do.
	p, err = s.PlanPasswd(t.Context(), []byte(machine), passwdOptions())
	if err != nil || p.Rows[6].Status != ImportWrong || !strings.Contains(p.Rows[6].Text, "usermod") || p.Rows[11].Status != ImportWrong || p.Rows[12].Status != ImportNew {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestImportPasswd(t *testing.T) {
	s, _ := newTest(t)
	group(t, s, "vision", nil)
	opts := passwdOptions()
	opts.Group, opts.Role = "vision", RoleGuest
	p, links, err := s.ImportPasswd(t.Context(), audit.Entry{Actor: "root"}, []byte(machine), opts)
	if err != nil || p.New != 5 || len(links) != 5 {
		t.Fatalf("%+v %+v %v", p, links, err)
	}
	zoe, err := s.ByHandle(t.Context(), "zoe")
	if err != nil || zoe.UID != 1000 || zoe.Role != RoleGuest || zoe.Name != "Zoë Ünal" {
		t.Errorf("%+v, %v", zoe, err)
	}
	if in, err := s.Memberships(t.Context(), zoe.ID); err != nil || len(in) != 1 {
		t.Errorf("%+v, %v", in, err)
	}
	if u, err := s.RedeemLink(t.Context(), links[0].Token, "", "", goodPassword); err != nil || u.UID != 1000 {
		t.Errorf("%+v, %v", u, err)
	}
	// Others get numbers of gpulab's own, and nobody's again.
	if u, err := s.Create(t.Context(), NewUser{Handle: "newer"}); err != nil || u.UID < FirstUID {
		t.Errorf("%+v, %v", u, err)
	}
	p, links, err = s.ImportPasswd(t.Context(), audit.Entry{Actor: "root"}, []byte(machine), opts)
	if err != nil || p.New != 0 || p.Exists != 5 || len(links) != 0 {
		t.Errorf("again: %+v %v", p, err)
	}
	if err := s.Remove(t.Context(), zoe.ID); err != nil {
		t.Fatal(err)
	}
	p, err = s.PlanPasswd(t.Context(), []byte("zora:x:1000:1000:Zora:/home/zora:/bin/sh\nzoe:x:1010:1010::/:/bin/sh\n"), passwdOptions())
	if err != nil || p.Rows[0].Status != ImportWrong || !strings.Contains(p.Rows[0].Text, "zoe has this number") || p.Rows[1].Status != ImportWrong {
		t.Errorf("a number of somebody who left: %+v, %v", p, err)
	}
	for _, wrong := range []string{"", "hello\n", "PK\x03\x04", strings.Repeat("x", maxPasswd+1)} {
		_, err := s.PlanPasswd(t.Context(), []byte(wrong), passwdOptions())
		wantErr(t, err, ErrListInvalid)
	}
}

func FuzzParsePasswd(f *testing.F) {
	f.Add([]byte(machine))
	for _, seed := range []string{"a:x:1000:1000:::\r\n", "::::::", "a:b:-1:0:::", "é:x:1000:1:&&&&:/:/bin/sh\n", "a:x:99999999999999999999:1:::\n", "root:x:1000:1000:\xff\x00,x:/:"} {
		f.Add([]byte(seed))
	}
	k := &known{people: map[string]knownPerson{"ada": {id: 1, name: "Ada", uid: 1004}}, uids: map[int]string{1004: "ada"}, groups: map[string]int64{"vision": 1}}
	f.Fuzz(func(t *testing.T, text []byte) {
		accounts, err := ParsePasswd(text)
		if err != nil {
			if _, ok := Message(err); !ok || !errors.Is(err, ErrListInvalid) {
				t.Fatalf("no sentence: %v", err)
			}
			return
		}
		p, err := planPasswd(accounts, PasswdOptions{MaxUID: LastUID, ImportOptions: ImportOptions{Role: RoleMember, Group: "vision"}}, k)
		if err != nil || len(p.Rows) != len(accounts) || p.New+p.Exists+p.Skipped+p.Wrong != len(p.Rows) {
			t.Fatalf("%+v, %v", p, err)
		}
		handles, uids := map[string]bool{}, map[int]bool{}
		for _, r := range p.Rows {
			if !utf8.ValidString(fmt.Sprint(r.Name, r.Handle, r.Text)) {
				t.Fatalf("%+v", r)
			}
			if r.Status == ImportSkipped || r.Status == ImportWrong {
				if r.Text == "" {
					t.Fatalf("no reason: %+v", r)
				}
				continue
			}
			if r.UID < FirstKeptUID || r.UID > LastKeptUID || handles[r.Handle] || uids[r.UID] || CheckHandle(r.Handle) != nil || r.Status == ImportNew && r.Handle == "ada" {
				t.Fatalf("%+v", r)
			}
			if _, err := checkName(r.Name); err != nil || r.Name == "" {
				t.Fatalf("%+v", r)
			}
			handles[r.Handle], uids[r.UID] = true, true
		}
	})
}
