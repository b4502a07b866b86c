package sftpd

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// owner is who owns a file on disk, and its mode.
func owner(t *testing.T, path string) (uid, gid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid, info.Mode()
}

// randomFile makes a file that does not compress.
func randomFile(t *testing.T, path string, size int) []byte {
	t.Helper()
	text := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(text)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return text
}

// OpenSSH's sftp puts a file, the connection is cut in the middle, reput goes on, and the file is the same.
func TestInterruptedUploadGoesOn(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	w.sshKey(ada)
	text := randomFile(t, filepath.Join(w.dir, "big.bin"), 48<<20)
	straight := w.address
	w.address = cutter(t, straight, 20<<20)
	if out, code := w.openSSH("put big.bin\n", "sftp", "ada@127.0.0.1"); code == 0 {
		t.Fatalf("the cut was not noticed:\n%s", out)
	}
	stored := filepath.Join(w.home(ada), "big.bin")
	eventually(t, "the session has ended", func() bool { return children(t) == 0 })
	info, err := os.Stat(stored)
	if err != nil || info.Size() < 1<<20 || info.Size() >= int64(len(text)) {
		t.Fatalf("after the cut: %v %v", info, err)
	}
	part, err := os.ReadFile(stored)
	if err != nil || !bytes.Equal(part, text[:len(part)]) {
		t.Fatal("what arrived has holes")
	}
	w.address = straight
	out, code := w.openSSH("reput big.bin\n", "sftp", "ada@127.0.0.1")
	if code != 0 {
		t.Fatalf("reput: %s", out)
	}
	got, err := os.ReadFile(stored)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(text) {
		t.Fatal("the file is not the same")
	}
	if uid, gid, mode := owner(t, stored); uid != uint32(ada.UID) || gid != uint32(ada.UID) || mode != 0o644 {
		t.Errorf("it belongs to %d:%d, mode %v", uid, gid, mode)
	}
	if list, err := w.people.SSHKeys(t.Context(), ada.ID); err != nil || list[0].LastUsed == nil || list[0].Remote != "127.0.0.1" {
		t.Errorf("%+v, %v", list, err)
	}
}

// A folder goes in and comes back with OpenSSH's sftp and scp, signed in by password.
func TestFoldersWithOpenSSH(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	tree := filepath.Join(w.dir, "tree", "deep", "ä b")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	want := randomFile(t, filepath.Join(tree, "data.bin"), 3<<20)
	if out, code := w.openSSH("put -R tree\nls -l tree\n", "sftp", "ada@127.0.0.1"); code != 0 || !strings.Contains(out, "deep") {
		t.Fatalf("put -R: code %d\n%s", code, out)
	}
	stored := filepath.Join(w.home(ada), "tree", "deep", "ä b")
	if got, err := os.ReadFile(filepath.Join(stored, "data.bin")); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what arrived differs (%v)", err)
	}
	if uid, _, mode := owner(t, stored); uid != uint32(ada.UID) || mode.Perm() != 0o755 {
		t.Errorf("the folder belongs to %d, mode %v", uid, mode)
	}
	if out, code := w.openSSH("", "scp", "-s", "-r", "ada@127.0.0.1:tree", "back"); code != 0 {
		t.Fatalf("scp: %s", out)
	}
	if got, err := os.ReadFile(filepath.Join(w.dir, "back", "deep", "ä b", "data.bin")); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what came back differs (%v)", err)
	}
}

// What SFTP's requests come to on disk.
func TestRequests(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	c := w.files("ada")
	if wd, err := c.Getwd(); err != nil || wd != "/home/ada" {
		t.Errorf("begins in %q, %v", wd, err)
	}
	if err := write(c, "a.txt", "one"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a.txt", "/home/ada/a.txt", "./x/../a.txt"} {
		if text, err := read(c, path); err != nil || text != "one" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	disk := func(name string) string { return filepath.Join(w.home(ada), name) }
	for mode, want := range map[os.FileMode]os.FileMode{0o4755: 0o755, 0o2711: 0o711, 0o600: 0o600, 0o777: 0o777} {
		if err := c.Chmod("a.txt", mode.Perm()|setBits(mode)); err != nil {
			t.Error(err)
		}
		if _, _, got := owner(t, disk("a.txt")); got != want {
			t.Errorf("chmod %o: %v on disk, want %v", mode, got, want)
		}
	}
	when := time.Unix(1_700_000_000, 0)
	if err := c.Chtimes("a.txt", when, when); err != nil {
		t.Error(err)
	}
	if info, err := c.Stat("a.txt"); err != nil || !info.ModTime().Equal(when) || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
	if err := c.Chown("a.txt", 0, 0); err == nil {
		t.Error("a file was given to root")
	}
	if err := c.Chown("a.txt", ada.UID, ada.UID); err != nil {
		t.Errorf("a file to oneself: %v", err)
	}
	if err := c.Truncate("a.txt", 1); err != nil {
		t.Error(err)
	}
	if err := write(c, "b.txt", "two"); err != nil {
		t.Fatal(err)
	}
	if err := c.Rename("a.txt", "b.txt"); err == nil {
		t.Error("a rename replaced a file")
	}
	if err := c.PosixRename("a.txt", "b.txt"); err != nil {
		t.Error(err)
	}
	if text, err := read(c, "b.txt"); err != nil || text != "o" {
		t.Errorf("%q, %v", text, err)
	}
	if err := c.Symlink("b.txt", "link"); err != nil {
		t.Error(err)
	}
	if text, err := c.ReadLink("link"); err != nil || text != "b.txt" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := c.Lstat("link"); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if real, err := c.RealPath("link"); err != nil || real != "/home/ada/b.txt" {
		t.Errorf("%q, %v", real, err)
	}
	if err := c.Link("b.txt", "hard"); err != nil {
		t.Error(err)
	}
	if err := c.Mkdir("folder"); err != nil {
		t.Error(err)
	}
	if err := c.Remove("folder"); err != nil {
		t.Error(err)
	}
	for i := range 250 {
		if err := write(c, fmt.Sprintf("many-%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := c.ReadDir("."); err != nil || len(list) != 253 {
		t.Errorf("%d entries, %v", len(list), err)
	}
	if vfs, err := c.StatVFS("."); err != nil || vfs.Blocks == 0 || vfs.Bavail > vfs.Blocks {
		t.Errorf("%+v, %v", vfs, err)
	}
	f, err := c.OpenFile("b.txt", os.O_WRONLY|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("ne"), 1); err != nil {
		t.Error(err)
	}
	_ = f.Close()
	if text, err := read(c, "b.txt"); err != nil || text != "one" {
		t.Errorf("after appending: %q, %v", text, err)
	}
	rw, err := c.OpenFile("b.txt", os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(rw); err != nil || string(text) != "one" {
		t.Errorf("%q, %v", text, err)
	}
	_ = rw.Close()
	if _, err := c.Stat("not-there"); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func setBits(mode os.FileMode) os.FileMode {
	var bits os.FileMode
	if mode&0o4000 != 0 {
		bits |= os.ModeSetuid
	}
	if mode&0o2000 != 0 {
		bits |= os.ModeSetgid
	}
	return bits
}

// Shared folders are below shared, in the home and beside it; one that is only read takes nothing.
func TestSharedFolders(t *testing.T) {
	w := newWorld(t, Limits{Recheck: time.Hour})
	ada, ben, eve := w.person("ada"), w.person("ben"), w.person("eve")
	const group = 60010
	class := w.folder("folders/1", 0, group, 0o770|os.ModeSetgid)
	data := w.folder("folders/2", 0, 0, 0o777)
	if err := os.WriteFile(filepath.Join(data, "set.bin"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, u := range []int{0, 1} {
		person := []int64{ada.ID, ben.ID}[u]
		w.shared[person] = []Place{{Name: "class", Path: class, GID: group}, {Name: "data", Path: data, ReadOnly: true}}
	}
	a, b := w.files("ada"), w.files("ben")
	if err := write(a, "shared/class/a.txt", "from ada"); err != nil {
		t.Fatal(err)
	}
	if uid, gid, mode := owner(t, filepath.Join(class, "a.txt")); uid != uint32(ada.UID) || gid != group || mode != 0o664 {
		t.Errorf("in a group's folder: %d:%d %v", uid, gid, mode)
	}
	if text, err := read(b, "/shared/class/a.txt"); err != nil || text != "from ada" {
		t.Errorf("%q, %v", text, err)
	}
	if err := b.PosixRename("shared/class/a.txt", "shared/class/b.txt"); err != nil {
		t.Error(err)
	}
	if err := a.Mkdir("shared/class/sub"); err != nil {
		t.Error(err)
	}
	if err := a.Chmod("shared/class/sub", 0o775); err != nil {
		t.Error(err)
	}
	if _, gid, mode := owner(t, filepath.Join(class, "sub")); gid != group || mode&os.ModeSetgid == 0 || mode.Perm() != 0o775 {
		t.Errorf("a folder in it: %d %v", gid, mode)
	}
	if text, err := read(a, "shared/data/set.bin"); err != nil || text != "data" {
		t.Errorf("%q, %v", text, err)
	}
	for what, err := range map[string]error{
		"write": write(a, "shared/data/x", "x"), "replace": write(a, "/shared/data/set.bin", "x"), "remove": a.Remove("shared/data/set.bin"),
		"chmod": a.Chmod("shared/data/set.bin", 0o666), "mkdir": a.Mkdir("shared/data/x"), "a folder beside": a.Mkdir("shared/mine"),
		"in the root": write(a, "/x", "x"), "beside the home": a.Mkdir("/home/eve"),
	} {
		if err == nil {
			t.Errorf("%s in what is only read works", what)
		}
	}
	if err := os.Remove(filepath.Join(w.home(ada), "shared")); err != nil {
		t.Errorf("in the home itself: %v", err) // the mount point is the person's own, and empty
	}
	// Who is not in the group has no such folder, by no name.
	e := w.files("eve")
	for _, path := range []string{"shared", "/shared", "/shared/class/b.txt", class} {
		if _, err := e.Stat(path); !os.IsNotExist(err) {
			t.Errorf("eve sees %s: %v", path, err)
		}
	}
	_ = eve
}

// Files that were made in a notebook may have any time; who lists them gets the nearest that SFTP can hold.
func TestTimesThatSFTPCannotHold(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	c := w.files("ada")
	for name, years := range map[string][2]int{"apollo": {1969, 1970}, "now": {2026, 2026}, "far": {2200, 2106}} {
		path := filepath.Join(w.home(ada), name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Date(years[0], 7, 1, 0, 0, 0, 0, time.UTC)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		for how, look := range map[string]func(string) (os.FileInfo, error){"stat": c.Stat, "lstat": c.Lstat} {
			if info, err := look(name); err != nil || info.ModTime().UTC().Year() != years[1] {
				t.Errorf("%s of a file from %d: %v, %v", how, years[0], info, err)
			}
		}
	}
	list, err := c.ReadDir(".")
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for _, info := range list {
		if year := info.ModTime().UTC().Year(); year != 1970 && year != 2026 && year != 2106 {
			t.Errorf("%s is listed with the year %d", info.Name(), year)
		}
	}
}

// Who has something of their own at the place of shared folders keeps it, and finds them in the root.
func TestSharedIsTaken(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	data := w.folder("folders/2", 0, 0, 0o755)
	w.share(ada, Place{Name: "data", Path: data, ReadOnly: true})
	mine := filepath.Join(w.home(ada), "shared")
	if err := os.Symlink("/etc", mine); err != nil {
		t.Fatal(err)
	}
	c := w.files("ada")
	if _, err := c.Stat("/shared/data"); err != nil {
		t.Error(err)
	}
	if text, err := c.ReadLink("shared"); err != nil || text != "/etc" {
		t.Errorf("%q, %v", text, err)
	}
	if err := c.Remove("shared"); err != nil {
		t.Error(err)
	}
}

// A home that is full is read and emptied.
func TestFullHome(t *testing.T) {
	w := newWorld(t, Limits{Recheck: time.Hour})
	ada := w.person("ada")
	class := w.folder("folders/1", ada.UID, ada.UID, 0o755)
	w.share(ada, Place{Name: "class", Path: class})
	c := w.files("ada")
	if err := write(c, "old.txt", "old"); err != nil {
		t.Fatal(err)
	}
	w.full = true
	c = w.files("ada")
	for what, err := range map[string]error{
		"write": write(c, "new.txt", "x"), "overwrite": write(c, "old.txt", "x"), "mkdir": c.Mkdir("x"), "link": c.Link("old.txt", "x"),
		"symlink": c.Symlink("old.txt", "x"), "grow": c.Truncate("old.txt", 100),
	} {
		if err == nil {
			t.Errorf("%s in a full home works", what)
		} else if !strings.Contains(err.Error(), "full") {
			t.Errorf("%s: %v does not say why", what, err)
		}
	}
	if text, err := read(c, "old.txt"); err != nil || text != "old" {
		t.Errorf("%q, %v", text, err)
	}
	if err := write(c, "shared/class/x", "x"); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
	if err := c.Remove("old.txt"); err != nil {
		t.Error(err)
	}
}

// Checksums are of files that the person may read, and the lab's own.
func TestSums(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	text := randomFile(t, filepath.Join(w.home(ada), "x.bin"), 5<<20)
	session, err := w.connect("ada").NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.RequestSubsystem("gpulab-sums"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `{"path":"x.bin"}{"path":"/etc/shadow"}`+"\n"+`{"path":"../../etc/passwd"} {"path":"."}`)
	_ = in.Close()
	replies, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	eventually(t, "the session has ended", func() bool { return children(t) == 0 })
	want := fmt.Sprintf("{\"sha256\":\"%x\"}\n", sha256.Sum256(text))
	if got := string(replies); !strings.HasPrefix(got, want) || strings.Count(got, `"error"`) != 3 || strings.Count(got, "\n") != 4 {
		t.Errorf("%s", got)
	}
}

// Nothing of a session is left when it ends, nor when gpulab is killed; what had arrived is written.
func TestNothingIsLeft(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	c := w.files("ada")
	if err := write(c, "x", "x"); err != nil {
		t.Fatal(err)
	}
	if n := children(t); n != 1 {
		t.Errorf("%d processes for one session", n)
	}
	if now, err := os.ReadFile("/proc/self/mountinfo"); err != nil || !bytes.Equal(now, mounts) {
		t.Error("the machine sees mounts of a session")
	}
	_ = c.Close()
	eventually(t, "no process is left", func() bool { return children(t) == 0 })

	server, address := w.killable(ada)
	w.address = address
	c = w.files("ada")
	text := randomFile(t, filepath.Join(w.dir, "big"), 8<<20)
	f, err := c.Create("big")
	if err != nil {
		t.Fatal(err)
	}
	uploaded := make(chan struct{})
	go func() {
		defer close(uploaded)
		for range 100 {
			if _, err := f.ReadFromWithConcurrency(bytes.NewReader(text), 64); err != nil {
				return
			}
		}
	}()
	eventually(t, "an upload is under way", func() bool {
		info, err := os.Stat(filepath.Join(w.home(ada), "big"))
		return err == nil && info.Size() > 1<<20
	})
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-uploaded
	eventually(t, "no process is left of a server that was killed", func() bool { return children(t) == 0 })
	stored, err := os.ReadFile(filepath.Join(w.home(ada), "big"))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(stored); at += len(text) {
		if piece := stored[at:min(at+len(text), len(stored))]; !bytes.Equal(piece, text[:len(piece)]) {
			t.Fatal("what was written when gpulab was killed has holes")
		}
	}
	if now, err := os.ReadFile("/proc/self/mountinfo"); err != nil || !bytes.Equal(now, mounts) {
		t.Error("mounts are left")
	}
}

// The process of a session is nobody but its person, and sees nobody else's.
func TestRightsOfTheSession(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	w.share(ada, Place{Name: "class", Path: w.folder("folders/1", 0, 60010, 0o770), GID: 60010})
	w.files("ada")
	var status string
	eventually(t, "a session runs", func() bool {
		pids, _ := exec.Command("pgrep", "-f", childProgram).Output()
		for _, pid := range strings.Fields(string(pids)) {
			text, err := os.ReadFile("/proc/" + pid + "/status")
			if err == nil && strings.Contains(string(text), "Uid:\t20000") {
				status = string(text)
				for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts"} {
					theirs, _ := os.Readlink("/proc/" + pid + "/ns/" + ns)
					ours, _ := os.Readlink("/proc/self/ns/" + ns)
					if theirs == ours || theirs == "" {
						t.Errorf("namespace %s: %q is the machine's", ns, theirs)
					}
				}
				mounts, err := os.ReadFile("/proc/" + pid + "/mountinfo")
				if err != nil {
					t.Error(err)
				}
				for line := range strings.Lines(string(mounts)) {
					if !strings.Contains(line, "nosuid,nodev,noexec") {
						t.Errorf("a mount with more rights than it needs: %s", line)
					}
				}
				return true
			}
		}
		return false
	})
	for _, want := range []string{"Uid:\t20000\t20000\t20000\t20000", "Gid:\t20000\t20000\t20000\t20000", "Groups:\t60010", "NoNewPrivs:\t1",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process lacks %q:\n%s", want, status)
		}
	}
}

// A program that does not read what it asked for does not keep the session alive.
func TestClientThatHangs(t *testing.T) {
	w := newWorld(t, Limits{Idle: 300 * time.Millisecond})
	ada := w.person("ada")
	randomFile(t, filepath.Join(w.home(ada), "big"), 32<<20)
	conn, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, channels, requests, err := ssh.NewClientConn(conn, w.address, &ssh.ClientConfig{User: "ada", Auth: []ssh.AuthMethod{ssh.Password(password)},
		HostKeyCallback: ssh.FixedHostKey(w.hostKey.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	client, err := sftp.NewClient(ssh.NewClient(c, channels, requests))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Stat("big"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an idle connection is closed", func() bool { return w.server.Count() == 0 && children(t) == 0 })
	if err := client.Wait(); err == nil {
		t.Error("the client was not told")
	}
}
