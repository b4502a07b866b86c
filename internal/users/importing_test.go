package users

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/gpulab/gpulab/internal/audit"
)

func TestParseImport(t *testing.T) {
	want := []ImportRow{
		{Line: 2, Name: "Zoë, Dr.", Handle: "zoe", Email: "zoe@example.org", Role: "guest", Group: "vision"},
		{Line: 4, Name: "Yan \"Y\" Li"},
	}
	for name, text := range map[string]string{
		"commas":      "name,handle,email,role,group\n\"Zoë, Dr.\",zoe,zoe@example.org,guest,vision\n\n\"Yan \"\"Y\"\" Li\",,,,\n",
		"semicolons":  "Name;Handle;E-Mail;ROLE;Group\r\n\"Zoë, Dr.\";zoe;zoe@example.org;guest;vision\r\n;;;;\r\n\"Yan \"\"Y\"\" Li\";;;;\r\n",
		"tabs, mark":  "\ufeffgroup\trole\temail\thandle\tname\nvision\tguest\tzoe@example.org\tzoe\tZoë, Dr.\n\n\t\t\t\t\"Yan \"\"Y\"\" Li\"",
		"old line":    "name,handle,email,role,group\r\"Zoë, Dr.\",zoe,zoe@example.org,guest,vision\r\r\"Yan \"\"Y\"\" Li\"\r",
		"spaces":      " name , handle , e_mail , Role,group \n\"Zoë, Dr.\", zoe , zoe@example.org , guest, vision \n , ,,,\n\"Yan \"\"Y\"\" Li\", ,,,\n",
		"more, fewer": "name,handle,email,role,group\n\"Zoë, Dr.\",zoe,zoe@example.org,guest,vision,,\n\n\"Yan \"\"Y\"\" Li\"",
	} {
		list, err := ParseImport([]byte(text))
		if err != nil || len(list.Rows) != 2 || list.Rows[0] != want[0] || list.Rows[1] != want[1] || len(list.Ignored) > 0 {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	list, err := ParseImport([]byte("sep=;\nMatrikel;name;;Telefon\n4711;Zoë;x;+49\n"))
	if err != nil || strings.Join(list.Ignored, ", ") != "Matrikel, Telefon" || len(list.Rows) != 1 || list.Rows[0].Name != "Zoë" || list.Rows[0].Line != 3 {
		t.Errorf("unknown columns: %+v, %v", list, err)
	}
	if list, err := ParseImport([]byte("name\nZoë\nYan\n")); err != nil || len(list.Rows) != 2 {
		t.Errorf("one column: %+v, %v", list, err)
	}
}

// Lists as campus systems export them.
func TestParseImportOfCampusSystems(t *testing.T) {
	const ada = "Ada Lovelace|ga42xyz|ada@example.org|"
	for name, c := range map[string]struct{ header, row, want, ignored string }{
		"Moodle": {
			"First name,Last name,ID number,Email address,Groups", "Ada,Lovelace,1815001,ada@example.org,seminar",
			"Ada Lovelace||ada@example.org|seminar", "ID number",
		},
		"Moodle, groups with other names": {
			"First name,Last name,Email address,Groups", `Ada,Lovelace,ada@example.org,"A, G1_1"`,
			"Ada Lovelace||ada@example.org|", "Groups",
		},
		"Moodle, French": {
			"Prénom,Nom,Adresse de courriel", "Ada,Lovelace,ada@example.org", "Ada Lovelace||ada@example.org|", "",
		},
		"German": {
			"Matrikelnummer;Nachname;Vorname;E-Mail;Login", "1815001;Lovelace;Ada;ada@example.org;ga42xyz", ada, "Matrikelnummer",
		},
		"German, Name is the last name": {
			"Name;Vorname;E-Mail-Adresse;Benutzername", "Lovelace;Ada;ada@example.org;ga42xyz", ada, "",
		},
		"German, a whole name": {
			"Benutzername,Vollständiger Name,E-Mail", "ga42xyz,Ada Lovelace,ada@example.org", ada, "",
		},
		"German, numbered": {
			"Teilnehmer;Vorname;Nachname;Login;Mail", "1;Ada;Lovelace;ga42xyz;ada@example.org", ada, "Teilnehmer",
		},
		"TUMonline": {
			"REGISTRATION_NUMBER;FAMILY_NAME_OF_STUDENT;FIRST_NAME_OF_STUDENT;EMAIL_ADDRESS", "18;Lovelace;Ada;ada@example.org",
			"Ada Lovelace||ada@example.org|", "REGISTRATION_NUMBER",
		},
		"French": {
			"Nom;Prénom;Adresse e-mail;Identifiant;Rôle", "Lovelace;Ada;ada@example.org;ga42xyz;Étudiant", ada, "Rôle",
		},
		"Apogée": {
			"Nom de naissance;Nom d'usage;PRÉNOM;COURRIEL;N° étudiant", "Lovelace;;Ada;ada@example.org;18",
			"Ada Lovelace||ada@example.org|", "N° étudiant",
		},
		"Spanish": {
			"Nombre,Apellidos,Correo electrónico,Usuario", "Ada,Lovelace,ada@example.org,ga42xyz", ada, "",
		},
		"Spanish, two last names": {
			"Nombre;Primer apellido;Segundo apellido", "Ada;Lovelace;Byron", "Ada Lovelace Byron|||", "",
		},
		"Canvas": {
			"Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n\"Student, Test\",8,,,",
			"\"Lovelace, Ada\",7,18,ga42xyz,Lab", "Ada Lovelace|ga42xyz||", "ID, SIS User ID, Section",
		},
		"gpulab's own columns first": {
			"student,name,first name,last name,mail,email", "1,Ada Lovelace,A,L,x@example.org,ada@example.org",
			"Ada Lovelace||ada@example.org|", "student, first name, last name, mail",
		},
		"several logins": {
			"login,username,email,email 2,surname,given name", "ga42xyz,ada,ada@example.org,a@b.example,Lovelace,Ada", ada,
			"username, email 2",
		},
		"nom and an empty nom d'usage": {"Nom;Nom d'usage;Prénom", "Lovelace;;Ada", "Ada Lovelace|||", ""},
		"nom d'usage before nom":       {"Nom;Nom d'usage;Prénom", "Byron;Lovelace;Ada", "Ada Lovelace|||", ""},
		"nom and an empty birth name":  {"Nom;Prénom;Nom de naissance", "Lovelace;Ada;", "Ada Lovelace|||", ""},
		"nom before a birth name":      {"Nom;Prénom;Nom de naissance", "Lovelace;Ada;Byron", "Ada Lovelace|||", ""},
		"nom de famille":               {"Nom d'usage;Nom de famille;Prénom", ";Lovelace;Ada", "Ada Lovelace|||", ""},
		"a name, and one in use":       {"Name,Preferred first name,Email", "Ada Lovelace,Ada,ada@example.org", "Ada Lovelace||ada@example.org|", "Preferred first name"},
		"a name, and a part of it":     {"name,first name,email", "Ada Lovelace,Ada,a@b.example", "Ada Lovelace||a@b.example|", "first name"},
		"a number of participants":     {"Teilnehmer;Vollständiger Name", "1;Ada Lovelace", "Ada Lovelace|||", "Teilnehmer"},
		"names of others":              {"Login;Vorname Betreuer;Nachname Betreuer", "ga42;Max;Muster", "|ga42||", "Vorname Betreuer, Nachname Betreuer"},
		"Canvas, names apart": {
			"LastName,FirstName,ID,SIS Login ID,Section", "Lovelace,Ada,7,ga42xyz,Lab\nPoints Possible,,,,\nStudent,Test,8,,Lab", "Ada Lovelace|ga42xyz||", "ID, Section",
		},
		"Canvas, an assignment is not posted": {
			"Student,ID,SIS Login ID,Section,Essay (12)", ",,,,Manual Posting\n    Points Possible,,,,10\n\"Lovelace, Ada\",7,ga42xyz,Lab,9", "Ada Lovelace|ga42xyz||", "ID, Section, Essay (12)",
		},
		"accents apart": {"Nom,Pre\u0301nom", "Lovelace,Ada", "Ada Lovelace|||", ""},
	} {
		list, err := ParseImport([]byte(c.header + "\n" + c.row + "\n"))
		if err != nil || len(list.Rows) != 1 {
			t.Errorf("%s: %+v, %v", name, list, err)
			continue
		}
		r := list.Rows[0]
		got := strings.Join([]string{r.Name, r.Login, r.Email, r.Group}, "|")
		if ignored := strings.Join(list.Ignored, ", "); got != c.want || ignored != c.ignored || r.Handle+r.Role+r.Wrong != "" {
			t.Errorf("%s: %s without %q, want %s without %q; %+v", name, got, ignored, c.want, c.ignored, r)
		}
	}
	var little, big []byte
	for _, unit := range utf16.Encode([]rune("\ufeffVorname\tNachname\tLogin\r\nZoë\t李\tzoe\r\n")) {
		little, big = append(little, byte(unit), byte(unit>>8)), append(big, byte(unit>>8), byte(unit))
	}
	for name, text := range map[string][]byte{"UTF-16, little endian": little, "UTF-16, big endian": big} {
		list, err := ParseImport(text)
		if err != nil || len(list.Rows) != 1 || list.Rows[0] != (ImportRow{Line: 2, Name: "Zoë 李", Login: "zoe"}) {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func TestParseImportRefuses(t *testing.T) {
	utf16le := func(s string) []byte {
		var b []byte
		for _, u := range utf16.Encode([]rune(s)) {
			b = append(b, byte(u), byte(u>>8))
		}
		return b
	}
	for _, tc := range []struct {
		name string
		text []byte
		says string
	}{
		{"nothing", nil, "empty"},
		{"a mark alone", []byte("\ufeff"), "empty"},
		{"UTF-16 cut short", append(append([]byte{0xff, 0xfe}, utf16le("name\nZoë\n")...), 'x'), "CSV UTF-8"},
		{"UTF-16 without", utf16le("name\nZoë\n"), "CSV UTF-8"},
		{"Latin-1", []byte("name\nZo\xeb\n"), "CSV UTF-8"},
		{"a spreadsheet", []byte("PK\x03\x04\x00\x00"), "no text"},
		{"no header", []byte("Zoë,zoe\nYan,yan\n"), "none of the columns"},
		{"a role alone", []byte("role\nguest\n"), "none of the columns"},
		{"twice", []byte("name,email,E-Mail\n"), "twice"},
		{"nobody", []byte("name,email\n,\n"), "nobody below"},
		{"quotes", []byte("name,email\n\"Zoë,x\nYan,y\n"), "quotes in line 2"},
		{"quotes inside", []byte("name,email\nok,x\nZ\"oë,x\n"), "quotes in line 3"},
		{"too many", []byte("name\n" + strings.Repeat("x\n", MaxImportRows+1)), "more than 2000"},
		{"columns without end", []byte(strings.Repeat("name,", 100000)), "more than 100 columns"},
		{"too large", []byte("name\n" + strings.Repeat("x", MaxImportBytes)), "1 MB"},
	} {
		_, err := ParseImport(tc.text)
		wantErr(t, err, ErrListInvalid)
		if !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %q does not mention %q", tc.name, err, tc.says)
		}
	}
	if list, err := ParseImport([]byte("name\n" + strings.Repeat("x\r\n", MaxImportRows))); err != nil || len(list.Rows) != MaxImportRows {
		t.Errorf("as many as may be: %d, %v", len(list.Rows), err)
	}
}

func FuzzParseImport(f *testing.F) {
	for _, seed := range []string{
		"name,handle,email,role,group\nZoë,zoe,zoe@example.org,guest,vision\n", "\ufeffName;E-Mail\r\n\"a;b\";x@y\r\n", "name\tgroup\n\t\n",
		"Vorname;Name;Login\nAda;Lovelace;ga42\n", "sep=;\nname;x\n1;2;3\n", "name\n\"", "name,name\n", "\xff\xfen\x00", "name\r\r\rx", "name\n=cmd|x", "nAme\t\n\t00", "handle\nAda\nada\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseImport(text)
		if err != nil {
			if _, ok := Message(err); !ok || !errors.Is(err, ErrListInvalid) {
				t.Fatalf("no sentence: %v", err)
			}
			return
		}
		if len(list.Rows) == 0 || len(list.Rows) > MaxImportRows {
			t.Fatalf("%d rows", len(list.Rows))
		}
		last := 1
		for _, r := range list.Rows {
			if r.Line <= last || r.Line > bytes.Count(text, []byte("\n"))+bytes.Count(text, []byte("\r"))+1 {
				t.Fatalf("line %d after %d", r.Line, last)
			}
			last = r.Line
			if r.Name != strings.TrimSpace(r.Name) || r.Handle != strings.TrimSpace(r.Handle) {
				t.Fatalf("%+v", r)
			}
		}
		// Whatever a list says, a plan has a row for each of its rows, and everybody new can be made.
		k := &known{people: map[string]knownPerson{"ada": {id: 1, name: "Ada", email: "ada@example.org"}, "gone": {id: 2, removed: true}},
			emails: map[string]string{"ada@example.org": "ada"}, groups: map[string]int64{"vision": 1}}
		p, err := planList(list, ImportOptions{Role: RoleMember, MakeGroups: true}, k)
		if err != nil || len(p.Rows) != len(list.Rows) || p.New+p.Exists+p.Wrong != len(p.Rows) {
			t.Fatalf("%+v, %v", p, err)
		}
		handles := map[string]bool{}
		for _, r := range p.Rows {
			if r.Status == ImportWrong {
				if r.Text == "" {
					t.Fatalf("no reason: %+v", r)
				}
				continue
			}
			n, err := NewUser{Handle: r.Handle, Name: r.Name, Email: r.Email, Role: r.Role}.checked()
			if err != nil || handles[r.Handle] || r.Status == ImportNew && (n.Name != r.Name || r.Handle == "ada" || r.Handle == "gone") {
				t.Fatalf("%+v: %v", r, err)
			}
			handles[r.Handle] = true
		}
	})
}

// importLab has ada, the guest ben with an e-mail address, gone, a request for quinn, and the group vision with ben.
func importLab(t *testing.T) (*Service, *clock) {
	t.Helper()
	s, c := newTest(t)
	create(t, s, "ada", RoleAdmin)
	ben, err := s.Create(t.Context(), NewUser{Handle: "ben", Name: "Ben Okafor", Email: "ben@example.org", Role: RoleGuest})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), create(t, s, "gone", RoleMember).ID); err != nil {
		t.Fatal(err)
	}
	ask(t, s, "quinn")
	group(t, s, "vision", map[int64]bool{ben.ID: false})
	return s, c
}

func plan(t *testing.T, s *Service, text string, opts ImportOptions) ImportPlan {
	t.Helper()
	p, err := s.PlanImport(t.Context(), []byte(text), opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanImport(t *testing.T) {
	s, _ := importLab(t)
	for _, tc := range []struct {
		row, status, handle, group, says string
	}{
		{"Zoë Ünal,zoe,zoe@example.org,guest,vision", "new", "zoe", "vision", ""},
		{"Zoë Ünal,,,,", "new", "zoe-unal", "", "made"},
		{",,zoe.unal@example.org,,", "new", "zoe-unal", "", "made"},
		{"Ada,,,,", "new", "ada-2", "", "made"},     // another Ada: the one here has another name
		{"Quinn,,,,", "new", "quinn-2", "", "made"}, // nobody gets a name that is asked for
		{"gone,,,,", "new", "gone-2", "", "made"},   // nor one that was somebody's
		{"Whoever,ben,,,", "exists", "ben", "", "stays as it is"},
		{"Whoever,ben,BEN@example.org,,vision", "exists", "ben", "", "stays as it is"},
		{"X,ben,,admin,vision", "exists", "ben", "", "stays as it is"},
		{"X,ada,,,vision", "exists", "ada", "vision", "joins the group"},
		{"X,,ben@example.org,,", "exists", "ben", "", "stays as it is"},
		{"X,ben,other@example.org,,", "error", "ben", "", "somebody else"},
		{"X,zoe,ben@example.org,,", "error", "zoe", "", "account ben has this e-mail"},
		{"X,Ada,,,", "error", "Ada", "", "only by case"},
		{"X,Zoe,,,", "error", "Zoe", "", "choose zoe"},
		{"X,gone,,,", "error", "gone", "", "who left"},
		{"X,quinn,,,", "error", "quinn", "", "asked for"},
		{"X,../x,,,", "error", "../x", "", "sign-in name"},
		{"X,root,,,", "error", "root", "", "reserved"},
		{"X,zoe,zoe,,", "error", "zoe", "", "ada@example.org"},
		{"X,zoe,,king,", "error", "zoe", "", "admin, lead, member or guest"},
		{"X,zoe,,Lead,VISION", "new", "zoe", "vision", ""},
		{"X,zoe,,,robots", "error", "zoe", "", "no group"},
		{"X,zoe,,,Big Group", "error", "zoe", "", "big-group"},
		{",,,guest,", "error", "", "", "Fill one in"},
		{"Unal, Zoe,zoe,,,guest,x", "error", "Zoe", "", "needs quotes"},
		{"a\u202eb,zoe,,,", "error", "zoe", "", "cannot be shown"},
		{strings.Repeat("x", 81) + ",zoe,,,", "error", "zoe", "", "80"},
	} {
		p := plan(t, s, "name,handle,email,role,group\n"+tc.row+"\n", ImportOptions{})
		if len(p.Rows) != 1 {
			t.Fatalf("%s: %+v", tc.row, p)
		}
		r := p.Rows[0]
		if string(r.Status) != tc.status || r.Handle != tc.handle || r.Status != ImportWrong && r.Group != tc.group || !strings.Contains(r.Text, tc.says) {
			t.Errorf("%s: %+v, want %+v", tc.row, r, tc)
		}
		if r.Text != "" && (!strings.HasSuffix(r.Text, ".") || len(r.Text) > 300) {
			t.Errorf("%s: %q is no sentence", tc.row, r.Text)
		}
	}
	if people, err := s.List(t.Context()); err != nil || len(people) != 2 {
		t.Errorf("a look changed something: %+v, %v", people, err)
	}
	for _, c := range []struct{ row, want string }{
		{"李,明,,ming.li@example.org", "new ming-li"},
		{"王,芳,,", "new user-1"},
		{"Ünal,Zoë,,", "new zoe-unal"},
		{"Lovelace,Ada,a.lovelace@example.org,al@example.org", "new a-lovelace"},
		{"Kim,Min,GA42XYZ,", "new ga42xyz"},
		{"Lee,Kai,CAMPUS\\kai,", "new kai"},
		{"Okafor,Ben,ga77abc,ben@example.org", "exists ben"}, // by the address
		{"Okafor,Ben,ga77abc,", "new ga77abc"},               // ben was not made from the name Ben Okafor: somebody else
		{"Miller,Ada,ada,", "new ada-2"},                     // ada is somebody else
		{"Miller,Gus,gone,", "new gone-2"},                   // gone has left
		{"Li,Ming,-,", "new ming-li"},                        // nothing of the login can be in a name
		{",,ben,", "exists ben"},                             // there is nothing else by which ben is known
	} {
		p := plan(t, s, "Nachname,Vorname,Login,E-Mail\n"+c.row+"\n", ImportOptions{Role: RoleMember})
		if got := string(p.Rows[0].Status) + " " + p.Rows[0].Handle; got != c.want {
			t.Errorf("%s: %s, want %s", c.row, got, c.want)
		}
	}
	for what, c := range map[string]struct {
		list string
		opts ImportOptions
		want string // the groups of its people, and the columns that are not used
	}{
		"their groups":          {"name,groups\nYan,VISION\nLu,\n", ImportOptions{}, "vision  []"},
		"a group for all":       {"name,groups\nYan,vision\nLu,\n", ImportOptions{Group: "vision"}, "vision vision [groups]"},
		"one that is not there": {"name,groups\nYan,vision\nLu,robots\n", ImportOptions{}, "  [groups]"},
		"one that is made":      {"name,groups\nYan,vision\nLu,robots\n", ImportOptions{MakeGroups: true}, "vision robots []"},
		"no name of a group":    {"name,groups\nYan,vision\nLu,Tutorial 3\n", ImportOptions{MakeGroups: true}, "  [groups]"},
	} {
		c.opts.Role = RoleMember
		p := plan(t, s, c.list, c.opts)
		if got := fmt.Sprint(p.Rows[0].Group, " ", p.Rows[1].Group, " ", p.Ignored); got != c.want || p.Wrong > 0 {
			t.Errorf("%s: %s, want %s; %+v", what, got, c.want, p)
		}
	}
	p := plan(t, s, "name,login\nAda B,a.b\nAnna B,a-b\n", ImportOptions{Role: RoleMember})
	if p.New != 2 || p.Rows[0].Handle != "a-b" || p.Rows[1].Handle != "a-b-2" {
		t.Errorf("two logins that make one name: %+v", p.Rows)
	}
}

// Rows are compared with each other too.
func TestPlanImportDuplicates(t *testing.T) {
	s, _ := importLab(t)
	p := plan(t, s, strings.Join([]string{
		"name,handle,email",
		"Anna Li,,",
		"Anna Li,,",
		"Anna Three,anna-li,",
		"X,zoe,zoe@example.org",
		"Y,zoe,",
		"Z,yan,ZOE@example.org",
		"W,Zoe,",
	}, "\n"), ImportOptions{Group: "Vision", Role: RoleGuest})
	var got []string
	for _, r := range p.Rows {
		got = append(got, fmt.Sprintf("%d %s %s", r.Line, r.Status, r.Handle))
	}
	want := "2 new anna-li-2; 3 new anna-li-3; 4 new anna-li; 5 new zoe; 6 error zoe; 7 error yan; 8 error Zoe"
	if strings.Join(got, "; ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "; "), want)
	}
	if !strings.Contains(p.Rows[4].Text, "Line 5") || !strings.Contains(p.Rows[5].Text, "Line 5 has the same e-mail") {
		t.Errorf("%+v", p.Rows)
	}
	if p.New != 4 || p.Wrong != 3 || p.Rows[0].Role != RoleGuest || p.Rows[0].Group != "vision" {
		t.Errorf("%+v", p)
	}
}

const classList = "name,handle,email,role,group\nZoë,zoe,zoe@example.org,,\nYan,yan,,lead,robots\nX,ada,,guest,\nBroken,../x,,,\n"

var byAda = audit.Entry{Actor: "ada", Remote: "10.0.0.1"}

func TestImport(t *testing.T) {
	s, c := importLab(t)
	opts := ImportOptions{Group: "vision", MakeGroups: true, LinkTTL: 2 * 24 * time.Hour}
	p, links, err := s.Import(t.Context(), byAda, []byte(classList), opts)
	wantErr(t, err, ErrImportStopped)
	if people, err := s.List(t.Context()); err != nil || len(people) != 2 || links != nil || p.Wrong != 1 || p.New != 2 {
		t.Fatalf("a list with an error: %+v %+v %v", people, p, err)
	}
	if _, err := s.Members(t.Context(), "robots"); !errors.Is(err, ErrGroupNotFound) {
		t.Errorf("a group was made: %v", err)
	}

	opts.DropWrong, opts.Expect = true, p.Digest()
	p, links, err = s.Import(t.Context(), byAda, []byte(classList), opts)
	if err != nil || p.New != 2 || p.Exists != 1 || p.Wrong != 1 || len(links) != 2 || strings.Join(p.Groups, " ") != "robots" {
		t.Fatalf("%+v %+v %v", p, links, err)
	}
	if l := links[0]; l.Handle != "zoe" || l.Name != "Zoë" || l.Email != "zoe@example.org" || !l.Expires.Equal(c.now().Add(48*time.Hour)) {
		t.Errorf("link: %+v", l)
	}
	for group, want := range map[string]string{"robots": "yan lead", "vision": "ada admin, ben guest, zoe member"} {
		members, err := s.Members(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range members {
			got = append(got, m.Handle+" "+string(m.Role))
		}
		if g := strings.Join(got, ", "); g != want {
			t.Errorf("%s: %s, want %s", group, g, want)
		}
	}
	if ada, err := s.ByHandle(t.Context(), "ada"); err != nil || ada.Role != RoleAdmin {
		t.Errorf("an account that was there: %+v, %v", ada, err)
	}
	if u, err := s.RedeemLink(t.Context(), links[0].Token, "", "", goodPassword); err != nil || u.Handle != "zoe" {
		t.Errorf("the link: %+v, %v", u, err)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := len(log) - 1; i >= 0; i-- {
		if e := log[i]; e.Actor == "ada" {
			lines = append(lines, strings.TrimSpace(e.Action+" "+e.Target+": "+e.Detail))
		}
	}
	if got, want := strings.Join(lines, "\n"), strings.Join([]string{
		"group.add robots: import", "user.add zoe: import, role member, group vision", "user.add yan: import, role lead, group robots",
		"group.member ada: in vision, by import", "user.import : 2 new, 1 there already, 1 left out",
	}, "\n"); got != want {
		t.Errorf("audit:\n%s\nwant:\n%s", got, want)
	}

	// Again: everybody is there, and nobody gets another link.
	p, links, err = s.Import(t.Context(), byAda, []byte(classList), ImportOptions{Group: "vision", DropWrong: true})
	if err != nil || p.New != 0 || p.Exists != 3 || p.Joins() != 0 || len(links) != 0 {
		t.Errorf("again: %+v %+v %v", p, links, err)
	}
}

// Names without sign-in names do not become new people when the list is imported again.
func TestImportAgainWithoutHandles(t *testing.T) {
	for _, list := range []string{
		"name\nAnna Li\nAnna Li\nZoë\n", "username\nga42\nga43\nCAMPUS\\yan\n",
		"name,login\nMin Kim,ga42\nMin Kim,ga43\nZoë,zoe\n",
	} {
		importTwice(t, list)
	}
	s, _ := importLab(t)
	again := func(list string) []PlannedRow {
		p, _, err := s.Import(t.Context(), byAda, []byte(list), ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Rows
	}
	again("name,login\nMin Kim,ga42\n")
	again("name,handle\nMin Kim,min-kim\n")
	if rows := again("name,login\nMin Kim,ga42\n"); rows[0].Handle != "ga42" || rows[0].Status != ImportExists {
		t.Errorf("the login says who it is, and not the name: %+v", rows)
	}
}

// importTwice imports a list of three, who are there the second time.
func importTwice(t *testing.T, list string) {
	t.Helper()
	s, _ := importLab(t)
	for i, wantNew := range []int{3, 0} {
		p, _, err := s.Import(t.Context(), byAda, []byte(list), ImportOptions{})
		if err != nil || p.New != wantNew || p.Exists != 3-wantNew {
			t.Errorf("import %d: %+v %v", i, p, err)
		}
	}
}

// What changed between report and click is looked at once more.
func TestImportWhatWasAgreed(t *testing.T) {
	s, _ := importLab(t)
	const list = "name,handle\nZoë,zoe\nYan,yan\n"
	p := plan(t, s, list, ImportOptions{})
	create(t, s, "zoe", RoleGuest)
	p2, _, err := s.Import(t.Context(), byAda, []byte(list), ImportOptions{Expect: p.Digest()})
	wantErr(t, err, ErrImportStopped)
	if p2.New != 1 || p2.Exists != 1 {
		t.Errorf("%+v", p2)
	}
	if _, err := s.ByHandle(t.Context(), "yan"); !errors.Is(err, ErrNotFound) {
		t.Errorf("yan: %v", err)
	}
}

// An import that ends in the middle leaves nothing behind.
func TestImportIsWhole(t *testing.T) {
	s, _ := importLab(t)
	if _, err := s.db.ExecContext(t.Context(), `CREATE TRIGGER no_yan BEFORE INSERT ON users WHEN NEW.handle = 'yan' BEGIN SELECT RAISE(ABORT, 'disk full'); END`); err != nil {
		t.Fatal(err)
	}
	_, links, err := s.Import(t.Context(), byAda, []byte(classList), ImportOptions{MakeGroups: true, DropWrong: true})
	if err == nil || links != nil {
		t.Fatalf("%+v, %v", links, err)
	}
	for table, want := range map[string]int{"users": 3, "groups": 1, "links": 0, "group_members": 1} {
		var n int
		if err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != want {
			t.Errorf("%d rows in %s, want %d (%v)", n, table, want, err)
		}
	}
}

func TestImportOptions(t *testing.T) {
	s, _ := importLab(t)
	for _, tc := range []struct {
		opts ImportOptions
		want error
	}{
		{ImportOptions{Role: "king"}, ErrRoleInvalid},
		{ImportOptions{LinkTTL: 31 * 24 * time.Hour}, ErrDaysInvalid},
		{ImportOptions{LinkTTL: -1}, ErrDaysInvalid},
		{ImportOptions{Group: "robots"}, ErrGroupNotFound},
		{ImportOptions{Group: "R 2", MakeGroups: true}, ErrGroupInvalid},
	} {
		_, err := s.PlanImport(t.Context(), []byte("name\nZoë\n"), tc.opts)
		wantErr(t, err, tc.want)
		_, _, err = s.Import(t.Context(), byAda, []byte("name\nZoë\n"), tc.opts)
		wantErr(t, err, tc.want)
	}
}

func TestImportOfTheLargestList(t *testing.T) {
	s, _ := importLab(t)
	var list strings.Builder
	list.WriteString("name,group\n")
	for range MaxImportRows {
		list.WriteString("Anna Li,vision\n")
	}
	began := time.Now()
	p, links, err := s.Import(t.Context(), byAda, []byte(list.String()), ImportOptions{})
	if err != nil || p.New != MaxImportRows || len(links) != MaxImportRows {
		t.Fatalf("%d new, %d links, %v", p.New, len(links), err)
	}
	t.Logf("%d people in %v", MaxImportRows, time.Since(began))
}

func TestLinksAreNoFormulas(t *testing.T) {
	var names []string
	var links []PersonalLink
	for _, name := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "Zoë, \"Z\"", "", "a=b"} {
		names = append(names, name)
		links = append(links, PersonalLink{Name: name, Handle: "zoe", URL: "https://lab/welcome?token=x", Expires: time.Unix(0, 0)})
	}
	var out bytes.Buffer
	if err := WriteLinks(&out, links); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != len(names)+1 || strings.Join(rows[0], ",") != "name,handle,email,link,valid until" {
		t.Fatalf("%q, %v", rows, err)
	}
	for i, row := range rows[1:] {
		want := names[i]
		if i < 6 {
			want = "'" + want
		}
		if row[0] != want || row[4] != "1970-01-01T00:00:00Z" {
			t.Errorf("%q became %q", names[i], row)
		}
	}
}
