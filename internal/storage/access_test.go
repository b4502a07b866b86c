package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

// TestWhoSeesWhat is the whole of who gets at which folder.
func TestWhoSeesWhat(t *testing.T) {
	l := newTestLab(t)
	data := hostFolder(t)
	for _, n := range []NewFolder{
		{Name: "vision-data", Kind: Group, Groups: []string{"vision"}},
		{Name: "with-guests", Kind: Group, Groups: []string{"vision"}, Guests: Write},
		{Name: "no-guests", Kind: Group, Groups: []string{"vision"}, Guests: None},
		{Name: "open-group", Kind: Group, Groups: []string{"vision"}, Guests: None, Others: Read},
		{Name: "exercises", Kind: HandIn, Groups: []string{"vision"}},
		{Name: "imagenet", Kind: Dataset},
		{Name: "vision-set", Kind: Dataset, Groups: []string{"vision"}},
		{Name: "archive", Kind: Host, Path: data},
		{Name: "vision-archive", Kind: Host, Path: data, Groups: []string{"vision"}},
	} {
		l.create(t, n)
	}
	l.create(t, NewFolder{Name: "gone", Kind: Dataset})
	if _, err := l.Delete(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	const w, r, none = "write", "read", ""
	for _, row := range []struct{ folder, ada, lea, ben, gus, dan string }{
		{"vision-data", none, w, w, r, none},
		{"with-guests", none, w, w, w, none},
		{"no-guests", none, w, w, none, none},
		{"open-group", r, w, w, r, r},
		{"exercises", r, r, w, w, none},
		{"imagenet", w, r, r, r, r},
		{"vision-set", w, r, r, r, none},
		{"archive", r, r, r, r, r},
		{"vision-archive", r, r, r, r, none},
		{"gone", none, none, none, none, none},
	} {
		for handle, want := range map[string]string{"ada": row.ada, "lea": row.lea, "ben": row.ben, "gus": row.gus, "dan": row.dan} {
			got := none
			if p, there := l.place(t, handle, row.folder); there {
				got = w
				if p.ReadOnly {
					got = r
				}
			}
			if got != want {
				t.Errorf("%s in %s: %q, want %q", handle, row.folder, got, want)
			}
		}
	}
	if p, _ := l.place(t, "ben", ""); p.Path != l.Home(l.of["ben"].ID) || p.ReadOnly || p.GID != 0 {
		t.Errorf("the home: %+v", p)
	}
	if _, err := l.PlacesOf(t.Context(), 99); !errors.Is(err, users.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	if err := l.people.Suspend(t.Context(), l.of["ben"].ID); err != nil {
		t.Fatal(err)
	}
	if _, there := l.place(t, "ben", "imagenet"); there {
		t.Error("a suspended person sees a folder")
	}
	if err := l.people.RemoveGroup(t.Context(), "vision"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vision-data", "exercises", "vision-set", "vision-archive"} {
		if _, there := l.place(t, "cleo", name); there {
			t.Errorf("%s is seen without its group", name)
		}
	}
}

func TestWhoManages(t *testing.T) {
	l := newTestLab(t)
	of := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	all := l.create(t, NewFolder{Name: "imagenet", Kind: Dataset})
	if _, err := l.people.CreateGroup(t.Context(), "audio", ""); err != nil {
		t.Fatal(err)
	}
	groups, err := l.people.Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for handle, want := range map[string]string{
		"ada": "true true | true true true", "lea": "true false | true false false", "ben": "false false | false false false", "gus": "false false | false false false",
	} {
		u := l.of[handle]
		got := fmt.Sprint(MayManage(of, u), " ", MayManage(all, u), " | ", MayMake(Group, []string{"vision"}, u, groups), " ",
			MayMake(HandIn, []string{"audio"}, u, groups), " ", MayMake(Host, nil, u, groups))
		if got != want {
			t.Errorf("%s: %s, want %s", handle, got, want)
		}
	}
	if MayMake(Group, nil, l.of["lea"], groups) || MayMake(Group, []string{"vision", "audio"}, l.of["lea"], groups) {
		t.Error("a lead makes a folder for others' groups")
	}
}

// What one member makes, the others read and change, whatever the umask; guests only read; nobody else is let in.
func TestGroupFolder(t *testing.T) {
	l := newTestLab(t)
	f := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	ben, _ := l.place(t, "ben", f.Name)
	gus, _ := l.place(t, "gus", f.Name)
	if ben.GID < firstGID || ben.GID > lastGID || gus.GID != ben.GID+1 || ben.Path != gus.Path || strings.Contains(ben.Path, f.Name) {
		t.Fatalf("ben %+v, gus %+v", ben, gus)
	}
	l.can(t, "ben", ben.GID, "cd "+ben.Path+" && echo one >file && mkdir -p a/b && echo deep >a/b/file")
	l.can(t, "cleo", ben.GID, "cd "+ben.Path+" && echo two >>file && echo more >>a/b/file && mkdir a/c && echo x >a/c/x && mv a/b/file a/b/moved")
	if got := l.can(t, "gus", gus.GID, "cd "+ben.Path+" && cat file a/b/moved a/c/x && ls a"); got != "one\ntwo\ndeep\nmore\nx\nb\nc" {
		t.Errorf("a guest reads %q", got)
	}
	for _, script := range []string{"echo x >>file", "echo x >new", "rm file", "mkdir d", "touch a/b/y", "mv file other", "chmod 666 file", "rm -r a"} {
		l.cannot(t, "gus", gus.GID, "cd "+ben.Path+" && "+script)
	}
	for _, script := range []string{"ls " + ben.Path, "cat " + ben.Path + "/file", "echo x >" + ben.Path + "/x", "ls " + filepath.Dir(ben.Path)} {
		l.cannot(t, "dan", 0, script)
	}
	// Nobody opens it wider, nor gives it away.
	for _, script := range []string{"chmod 777 .", "chgrp " + fmt.Sprint(l.of["ben"].UID) + " .", "chmod g-s ."} {
		l.cannot(t, "ben", ben.GID, "cd "+ben.Path+" && "+script)
	}
	l.can(t, "ben", ben.GID, "cd "+ben.Path+" && chmod 777 a && touch a/open")
	l.cannot(t, "dan", 0, "ls "+ben.Path+"/a")
}

// A student's part is theirs alone, but for who leads the group, and they only read.
func TestHandIn(t *testing.T) {
	l := newTestLab(t)
	f := l.create(t, NewFolder{Name: "exercises", Kind: HandIn, Groups: []string{"vision"}})
	ben, _ := l.place(t, "ben", f.Name)
	cleo, _ := l.place(t, "cleo", f.Name)
	lea, _ := l.place(t, "lea", f.Name)
	if ben.Path != filepath.Join(lea.Path, "ben") || cleo.Path != filepath.Join(lea.Path, "cleo") || ben.GID != 0 || !lea.ReadOnly {
		t.Fatalf("ben %+v, cleo %+v, lea %+v", ben, cleo, lea)
	}
	l.can(t, "ben", 0, "cd "+ben.Path+" && echo mine >solution && mkdir sub && echo also >sub/file")
	if got := l.can(t, "lea", lea.GID, "cd "+lea.Path+" && ls && cat ben/solution ben/sub/file"); got != "ben\ncleo\nmine\nalso" {
		t.Errorf("the lead reads %q", got)
	}
	for _, script := range []string{"ls " + lea.Path, "ls " + ben.Path, "cat " + ben.Path + "/solution", "echo x >" + ben.Path + "/x", "mkdir " + lea.Path + "/eve", "rm -r " + ben.Path,
		"mv " + cleo.Path + " " + lea.Path + "/other", "ln -s /etc " + lea.Path + "/dan"} {
		l.cannot(t, "cleo", 0, script)
	}
	for _, script := range []string{"echo x >>ben/solution", "touch ben/x", "rm ben/solution", "mkdir x"} {
		l.cannot(t, "lea", lea.GID, "cd "+lea.Path+" && "+script)
	}
}

func TestDataset(t *testing.T) {
	l := newTestLab(t)
	l.create(t, NewFolder{Name: "imagenet", Kind: Dataset})
	ada, _ := l.place(t, "ada", "imagenet")
	dan, _ := l.place(t, "dan", "imagenet")
	l.can(t, "ada", ada.GID, "cd "+ada.Path+" && mkdir train && echo cat >train/1")
	if got := l.can(t, "dan", dan.GID, "cat "+dan.Path+"/train/1"); got != "cat" {
		t.Errorf("read %q", got)
	}
	l.cannot(t, "dan", dan.GID, "echo x >>"+dan.Path+"/train/1")
	l.cannot(t, "dan", dan.GID, "rm "+dan.Path+"/train/1")
}

// Hard links do not cross the mounts of a notebook, though folders and homes lie on one file system.
func TestHardLinksDoNotCrossFolders(t *testing.T) {
	l := newTestLab(t)
	f := l.create(t, NewFolder{Name: "vision-data", Kind: Group, Groups: []string{"vision"}})
	p, _ := l.place(t, "ben", f.Name)
	home, _ := l.place(t, "ben", "")
	l.can(t, "ben", p.GID, "echo mine >"+home.Path+"/file && echo ours >"+p.Path+"/file")
	at := open(t)
	script := fmt.Sprintf(`set -e; cd %s; mkdir home shared; mount --bind %s home; mount --bind %s shared
		try() { setpriv --reuid %d --regid %d --groups %d "$@" && echo "done: $*"; true; }
		try ln home/file shared/link; try ln shared/file home/link; try mv -n --no-copy home/file shared/moved; ln shared/file shared/within`,
		at, home.Path, p.Path, l.of["ben"].UID, l.of["ben"].UID, p.GID)
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "done:") || strings.Count(string(out), "cross-device") < 2 {
		t.Errorf("%s", out)
	}
}

// A link in a shared folder leads to what its reader has: on the machine, gpulab follows none.
func TestLinksAreNotFollowed(t *testing.T) {
	l := newTestLab(t)
	f := l.create(t, NewFolder{Name: "exercises", Kind: HandIn, Groups: []string{"vision"}})
	ben, _ := l.place(t, "ben", f.Name)
	secret := filepath.Join(open(t), "secret")
	if err := os.WriteFile(secret, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l.can(t, "ben", 0, "cd "+ben.Path+" && ln -s "+secret+" file && ln -s "+filepath.Dir(secret)+" folder && ln -s ../cleo up")
	if err := l.measure(t.Context(), target{ofFolder, f.ID}); err != nil {
		t.Fatal(err)
	}
	if f, _ = l.Folder(t.Context(), f.Name); f.Size == nil || f.Size.Bytes > 1<<20 {
		t.Errorf("measured %+v", f.Size)
	}
	// What a link is in the place of, gpulab does not use.
	folder := l.folder(f.ID)
	if err := os.Rename(filepath.Join(folder, "ben"), filepath.Join(folder, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(folder, "ben")); err != nil {
		t.Fatal(err)
	}
	if p, there := l.place(t, "ben", f.Name); there {
		t.Errorf("a link is taken for a part of a hand-in: %+v", p)
	}
	if err := os.Rename(folder, folder+"-old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", folder); err != nil {
		t.Fatal(err)
	}
	if p, there := l.place(t, "lea", f.Name); there {
		t.Errorf("a link is taken for a folder: %+v", p)
	}
}
