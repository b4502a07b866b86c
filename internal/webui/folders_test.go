package webui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
)

// folder notes a shared folder without making it on disk, which takes root.
func (l *lab) folder(t testing.TB, name string, kind storage.Kind, groups ...string) {
	t.Helper()
	others, path, gid := "none", "", "(SELECT coalesce(max(gid) + 2, 60000) FROM folders)"
	if len(groups) == 0 {
		others = "read"
	}
	if kind == storage.Host {
		path, gid = "/srv/"+name, "NULL"
	}
	l.users.exec(t, "INSERT INTO folders (name, kind, note, others, path, gid, created_by, created_at) VALUES (?, ?, 'for the seminar', ?, ?, "+gid+", 'ada', ?)",
		name, kind, others, path, time.Now().Add(-50*time.Hour).UnixMilli())
	for _, g := range groups {
		l.users.exec(t, "INSERT INTO folder_groups SELECT (SELECT max(id) FROM folders), id FROM groups WHERE name = ?", g)
	}
}

// measured notes a size as if it had been measured some minutes ago.
func (l *lab) measured(t testing.TB, what string, id int64, bytes int64, largest ...storage.Entry) {
	t.Helper()
	list, err := json.Marshal(append([]storage.Entry{}, largest...))
	if err != nil {
		t.Fatal(err)
	}
	l.users.exec(t, "INSERT INTO sizes (what, id, bytes, files, largest, at) VALUES (?, ?, ?, 17, ?, ?) ON CONFLICT DO UPDATE SET bytes = excluded.bytes, largest = excluded.largest",
		what, id, bytes, string(list), time.Now().Add(-12*time.Minute-time.Second).UnixMilli())
}

// someFolders fills the lab: shared folders of each kind, and homes of some size.
func someFolders(t testing.TB, l *lab) {
	t.Helper()
	l.folder(t, "vision-data", storage.Group, "vision")
	l.folder(t, "exercises", storage.HandIn, "vision")
	l.folder(t, "imagenet", storage.Dataset)
	l.folder(t, "measurements-of-the-old-group", storage.Host, "vision")
	l.folder(t, "old-data", storage.Dataset)
	l.users.exec(t, "UPDATE folders SET deleted_at = ? WHERE name = 'old-data'", time.Now().Add(-24*time.Hour).UnixMilli())
	l.measured(t, "folder", 1, 3<<30)
	l.measured(t, "folder", 3, 157<<30)
	l.measured(t, "home", 1, 12<<30)
	l.measured(t, "home", 2, 49<<30, storage.Entry{Path: []byte("checkpoints"), Bytes: 31 << 30, Folder: true},
		storage.Entry{Path: []byte("checkpoints/a-model-with-a-very-long-name-that-says-what-was-tried-and-when-and-why-2026-10-12.safetensors"), Bytes: 14 << 30},
		storage.Entry{Path: []byte("raw \xff name"), Bytes: 2 << 30}, storage.Entry{Path: []byte("small"), Bytes: 1000})
}

func TestFoldersPage(t *testing.T) {
	l := newLab(t)
	l.client(t, "ben").get("/folders").want(t, http.StatusOK, "No shared folders", "not measured yet", "no limit of its own")
	l.vision(t)
	if err := l.users.SetMember(t.Context(), "vision", 2, false); err != nil {
		t.Fatal(err)
	}
	someFolders(t, l)
	setSomeQuotas(t, l)
	ben := l.client(t, "ben")
	ben.get("/folders").want(t, http.StatusOK, "vision-data", "the group vision writes, guests in it read", "your own part", "157 GiB", "measured 12 min ago",
		"49 GiB", "50 GiB (for everybody)", "is nearly full", "checkpoints", "raw � name", `value="raw+%FF+name"`)
	for page, not := range map[string][]string{"/folders": {"Make a folder", "old-data", ">small<", "/srv/"}, "/folders/measurements-of-the-old-group": {"/srv/", "Delete"}} {
		for _, text := range not {
			if strings.Contains(ben.get(page).body, text) {
				t.Errorf("ben sees %q on %s", text, page)
			}
		}
	}
	ben.get("/").want(t, http.StatusOK, "Your folders", "shared/exercises", "is nearly full", "Make room", "home size", "measured 12 min ago")
	gus := l.client(t, "gus")
	gus.get("/folders").want(t, http.StatusOK, "imagenet")
	gus.get("/folders/vision-data").want(t, http.StatusForbidden)
	gus.get("/folders/nothing").want(t, http.StatusForbidden)
	lea, ada := l.client(t, "lea"), l.client(t, "ada")
	lea.get("/folders").want(t, http.StatusOK, "Make a folder", "Computer vision")
	if body := lea.get("/folders").body; strings.Contains(body, "Dataset:") || strings.Contains(body, "old-data") {
		t.Error("a lead is offered what only admins may")
	}
	lea.get("/folders/imagenet").want(t, http.StatusOK, "everybody reads, admins write")
	lea.post("/folders", "/folders/imagenet/delete", url.Values{"confirm": {"imagenet"}}).want(t, http.StatusForbidden)
	lea.post("/folders", "/folders", url.Values{"name": {"mine"}, "kind": {"dataset"}}).want(t, http.StatusForbidden)
	lea.post("/folders", "/folders", url.Values{"name": {"mine"}, "kind": {"group"}, "group": {"audio"}}).want(t, http.StatusForbidden)
	ada.get("/folders").want(t, http.StatusOK, "Dataset:", "old-data", "deleted, until")
	ada.get("/folders/measurements-of-the-old-group").want(t, http.StatusOK, "/srv/measurements")
	ada.get("/folders/nothing").want(t, http.StatusNotFound)
	ada.get("/users/ben").want(t, http.StatusOK, "49 GiB, measured 12 min ago")
}

func TestChangeAndDeleteAFolder(t *testing.T) {
	l := newLab(t)
	l.vision(t)
	someFolders(t, l)
	lea := l.client(t, "lea")
	lea.post("/folders", "/folders/vision-data", url.Values{"guests": {"none"}, "others": {"yes"}, "note": {"<b>new</b>"}}).want(t, http.StatusSeeOther)
	lea.get("/folders/vision-data").want(t, http.StatusOK, "guests in it see nothing, everybody reads", "&lt;b&gt;new&lt;/b&gt;")
	lea.post("/folders", "/folders/vision-data", url.Values{"guests": {"all"}}).want(t, http.StatusUnprocessableEntity, "write, read or have none")
	lea.post("/folders", "/folders/vision-data/delete", url.Values{"confirm": {"vision"}}).want(t, http.StatusUnprocessableEntity, "Type vision-data to delete it. Nothing was deleted.")
	lea.post("/folders", "/folders/vision-data/delete", url.Values{"confirm": {"vision-data"}}).want(t, http.StatusSeeOther)
	lea.get("/folders/vision-data").want(t, http.StatusOK, "This folder is deleted.", "Bring back")
	l.client(t, "gus").get("/folders/vision-data").want(t, http.StatusForbidden)
	lea.post("/folders", "/folders/vision-data/undelete", nil).want(t, http.StatusSeeOther)
	lea.get("/folders/vision-data").want(t, http.StatusOK, "Delete this folder")
	ada := l.client(t, "ada")
	ada.post("/folders", "/folders/imagenet", url.Values{"groups": {"vision audio"}}).want(t, http.StatusUnprocessableEntity, "no group &#34;audio&#34;", `value="vision audio"`)
	ada.post("/folders", "/folders/imagenet", url.Values{"groups": {""}}).want(t, http.StatusUnprocessableEntity, "Nobody would see it")
	ada.post("/folders", "/folders/imagenet", url.Values{"groups": {"vision"}}).want(t, http.StatusSeeOther)
	ada.get("/folders/imagenet").want(t, http.StatusOK, "the group vision reads, admins write")
	if got, want := l.actions(t), "lea folder.change vision-data, lea folder.delete vision-data, lea folder.undelete vision-data, ada folder.change imagenet"; got != want {
		t.Errorf("audit: %s", got)
	}
}

func TestMakeAFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: folders that belong to several people need root")
	}
	l := newLab(t)
	l.vision(t)
	lea, ada := l.client(t, "lea"), l.client(t, "ada")
	form := func(name, kind, group, path string) url.Values {
		return url.Values{"name": {name}, "kind": {kind}, "group": {group}, "guests": {"read"}, "path": {path}, "note": {""}}
	}
	got := lea.post("/folders", "/folders", form("vision-data", "group", "vision", "/etc"))
	got.want(t, http.StatusSeeOther)
	if to := got.header.Get("Location"); to != "/folders/vision-data" {
		t.Errorf("led to %s", to)
	}
	lea.post("/folders", "/folders", form("vision-data", "group", "vision", "")).want(t, http.StatusUnprocessableEntity, "already", `value="vision-data"`)
	lea.post("/folders", "/folders", form("Vision data", "group", "vision", "")).want(t, http.StatusUnprocessableEntity, "cannot be a folder")
	ada.post("/folders", "/folders", form("bad", "host", "", "/etc/ssl")).want(t, http.StatusUnprocessableEntity, "belongs to the machine", `value="/etc/ssl"`)
	ada.post("/folders", "/folders", form("sets", "group", "", "")).want(t, http.StatusUnprocessableEntity, "for one group")
	ada.post("/folders", "/folders", form("sets", "dataset", "", "")).want(t, http.StatusSeeOther)
	if got, want := l.actions(t), "lea folder.add vision-data, ada folder.add sets"; got != want {
		t.Errorf("audit: %s", got)
	}
}

// What takes room in the own home is deleted on the page, and nothing elsewhere.
func TestClearHome(t *testing.T) {
	l := newLab(t)
	ben := l.client(t, "ben")
	clearing := func(path string) answer {
		return ben.post("/folders", "/home/clear", url.Values{"path": {url.QueryEscape(path)}})
	}
	for i, path := range []string{"big \xff name", "work/data"} {
		file := filepath.Join(l.storage.Home(2), path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strconv.Itoa(i)), 0o600); err != nil {
			t.Fatal(err)
		}
		clearing(path).want(t, http.StatusSeeOther)
		if _, err := os.Lstat(file); !os.IsNotExist(err) {
			t.Errorf("%q is there: %v", path, err)
		}
	}
	for _, path := range []string{"", "../1/x", "/etc/passwd", "shared", "nothing"} {
		clearing(path).want(t, http.StatusConflict, "It was not deleted")
	}
	ben.post("/folders", "/home/clear", url.Values{"path": {"%zz"}}).want(t, http.StatusBadRequest)
	if got := l.actions(t); got != "ben home.clear ben, ben home.clear ben" {
		t.Errorf("audit: %s", got)
	}
	ben.get("/folders?done=cleared").want(t, http.StatusOK, "It is deleted.")
}

// A quota of home sizes is set, granted and shown as the others are.
func TestHomeQuota(t *testing.T) {
	l := newLab(t)
	ada, ben := l.client(t, "ada"), l.client(t, "ben")
	ada.post("/quotas", "/quotas", url.Values{"subject": {"everybody"}, "kind": {string(quota.HomeSize)}, "value": {"much"}}).want(t, http.StatusUnprocessableEntity, "home size", "Write it like 64Gi")
	ada.post("/quotas", "/quotas", url.Values{"subject": {"everybody"}, "kind": {string(quota.HomeSize)}, "value": {"10Gi"}}).want(t, http.StatusSeeOther)
	ada.get("/quotas").want(t, http.StatusOK, "home size", "10 GiB")
	ben.get("/").want(t, http.StatusOK, "home size", "not measured yet")
	for gib, says := range map[int64]string{9: "is getting full", 11: "is full"} {
		l.measured(t, "home", 2, gib<<30)
		ben.get("/").want(t, http.StatusOK, says, fmt.Sprintf("%d GiB of 10 GiB (for everybody)", gib))
	}
	ada.post("/quotas", "/quotas/grants", url.Values{"user": {"ben"}, "kind": {string(quota.HomeSize)}, "extra": {"10Gi"}, "ends": {time.Now().AddDate(0, 0, 3).Format(time.DateOnly)}}).want(t, http.StatusSeeOther)
	if body := ben.get("/").body; strings.Contains(body, "is full") || !strings.Contains(body, "10 GiB of it is granted until") {
		t.Error("a grant does not count")
	}
}
