"""What is deleted, and what comes back (gpulab_trash)."""

import errno
import os
import time
from pathlib import Path

import gpulab_trash as g

home = Path.home()
trash = home / ".local/share/Trash"


def write(path, text="text"):
    path = home / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def kept():
    return sorted(name for _, name, _ in g.Trash.of(str(home / "x")).entries())


# A file, a folder, a link to nothing, odd names and one of the same name, as other programs expect them.
odd = "ü 100%\n\udcff.txt"
folder = write("folder/below/file")
os.symlink("nowhere", home / "link")
for path in (write("a.txt"), str(home / "folder"), str(home / "link"), write(odd), write("n" * 250)):
    g.remove(path)
    assert not os.path.lexists(path)
g.remove(write("a.txt", "newer"))
assert len(kept()) == 6 and len(os.listdir(trash / "files")) == 6, kept()
info = (trash / "info/a.txt.trashinfo").read_text().splitlines()
assert info[0] == "[Trash Info]" and info[1] == f"Path={home}/a.txt" and info[2].startswith("DeletionDate=20"), info
assert (trash.stat().st_mode & 0o777) == 0o700

# What was deleted last comes back; it takes nothing's place.
a = str(home / "a.txt")
assert g.Trash.of(a).restore(a) and Path(a).read_text() == "newer"
try:
    g.Trash.of(a).restore(a)
except FileExistsError:
    pass
else:
    raise AssertionError("it took another file's place")
os.unlink(a)
assert g.Trash.of(a).restore(a) and Path(a).read_text() == "text" and not g.Trash.of(a).restore(a)
for path in (str(home / "folder"), str(home / "link"), str(home / odd), str(home / ("n" * 250))):
    assert g.Trash.of(path).restore(path) and os.path.lexists(path), path
assert Path(folder).read_text() == "text" and not kept()

# Names of wide characters, again and again.
wide = "名" * 50 + "." + "前" * 31
for _ in range(4):
    g.remove(write(wide))
assert len(kept()) == 4, kept()
g.Trash.of(a).empty()

# Through a link to a folder that is mounted elsewhere, as the paths of the trash there have it.
data = home / "vision/data"
(home / "vision").mkdir()
os.symlink("vision/data", home / "linked")
elsewhere = g.Trash(str(home / "vision/.Trash-1"), str(home / "vision"))
write("vision/data/x", "linked")
elsewhere.put(str(home / "linked/x"))
assert elsewhere.has(str(home / "linked/x")) and elsewhere.has(str(data / "x")) and not elsewhere.has(a)
assert elsewhere.restore(str(home / "linked/x")) and (data / "x").read_text() == "linked"

# In a shared folder, others cannot have somebody delete what they name: a link, a folder of theirs, and one that they can
# write to are not used.
shared = home / "shared"
theirs, mine = shared / ".Trash-mine", home / "precious"


def plant():
    (theirs / "info").mkdir(parents=True)
    (theirs / "info/precious.trashinfo").write_text("[Trash Info]\nPath=x\nDeletionDate=2001-01-01T00:00:00\n")
    os.symlink(home, theirs / "files")


def tricked():
    """Reports whether anything is used of what was planted."""
    path = write("shared/file")
    place = g.Trash(str(theirs), str(shared))
    used = place.entries() or place.empty() or place.restore(str(shared / "x"))
    try:
        g.Trash(str(theirs), str(shared)).put(path)
    except OSError:
        return used
    return True


write("precious")
plant()
os.chmod(theirs, 0o700)
os.chown(theirs, 12345, 12345)
assert not tricked() and mine.exists()
os.chown(theirs, os.getuid(), os.getgid())
os.chmod(theirs, 0o770)
assert not tricked() and mine.exists()
os.rename(theirs, shared / "elsewhere")
os.chmod(shared / "elsewhere", 0o700)
os.symlink("elsewhere", theirs)
assert not tricked() and mine.exists()

# One's own is used, and stays the same folder when somebody puts another in its place.
os.unlink(theirs)
own = g.Trash(str(theirs), str(shared))
own.put(write("shared/file"))
assert [where for _, _, where in own.entries()] == [str(shared / "file")] and (theirs.stat().st_mode & 0o777) == 0o700
os.rename(theirs, shared / "moved")
plant()
assert own.empty() == 1 and mine.exists() and os.listdir(shared / "moved/files") == []
g.shutil.rmtree(shared)

# What has been in it for long is deleted for good, folders included that nobody may write to.
g.remove(str(home / "folder"))
g.remove(a)
old = trash / "info/folder.trashinfo"
day = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - (g.KEEP + 1) * 86400))
old.write_text(f"[Trash Info]\nPath={home}/folder\nDeletionDate={day}\n")
os.chmod(trash / "files/folder/below", 0o500)
(trash / "info/broken.trashinfo").write_text("?")
g.expire_all(str(home))
assert kept() == ["a.txt"] and os.listdir(trash / "files") == ["a.txt"], kept()
assert sum(t.empty() for t in g.all_of(str(home))) == 1 and not kept()

# Where there is no room for one more, the oldest go first; with none left, files are deleted.
g.remove(write("first"))
g.remove(write("second"))
rename, full = os.rename, 1


def no_room(source, target):
    global full
    if full:
        full -= 1
        raise OSError(errno.ENOSPC, "no room", source)
    rename(source, target)


os.rename = no_room
g.remove(write("third"))
assert "third" in kept() and len(kept()) == 2, kept()
full = 10
last = write("last")
g.remove(last)
assert not os.path.lexists(last) and not kept()
os.rename = rename

# A folder without write permission goes to the trash, too, and comes back with the same mode. The test replaces
# os.rename, because root may move every folder.


def as_somebody(source, target):
    if os.path.isdir(source) and not os.stat(source).st_mode & 0o200:
        raise PermissionError(errno.EACCES, "no right to write", source)
    rename(source, target)


os.rename = as_somebody
data = Path(write("data/x")).parent
os.chmod(data, 0o555)
g.remove(str(data))
assert kept() == ["data"] and g.Trash.of(str(data)).has(str(data)), kept()
assert g.Trash.of(str(data)).restore(str(data))
assert data.stat().st_mode & 0o777 == 0o555 and (data / "x").read_text() == "text"


# If such a folder belongs to somebody else, remove fails and deletes nothing in it.
def not_yours(path, mode):
    raise PermissionError(errno.EPERM, "not yours", path)


os.chmod, chmod = not_yours, os.chmod
try:
    g.remove(str(data))
except PermissionError as error:
    assert error.filename == str(data), error
else:
    raise AssertionError("somebody else's folder was taken away")
assert (data / "x").read_text() == "text" and not kept()
os.rename, os.chmod = rename, chmod

# A trash that cannot be there, and what is in the trash, which is deleted for good.
g.remove(write("again"))
g.remove(str(trash / "files/again"))
assert os.listdir(trash / "files") == []
g.shutil.rmtree(home / ".local")
(home / ".local").write_text("")
last = write("last")
g.remove(last)
assert not os.path.lexists(last)
