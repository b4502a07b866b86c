"""Runs a job in its pod: starts the program, and keeps the beginning and the end of what it says in a file of the home.

The job comes in the environment, as JSON in base64: no shell and no Kubernetes reads it on the way. What the program says
goes to the file at once. A file that has grown to its largest size is replaced by one with its beginning, a line that
says how much is left out, and its latest part. The program's exit code is this one's, and its last line the message that
the machine passes on.
"""
import base64
import json
import os
import select
import signal
import subprocess
import sys
import time

job = json.loads(base64.b64decode(os.environ.pop("GPULAB_JOB")))
home = os.environ["HOME"]


class Log:
    """The file with the beginning and the end of what was said."""

    def __init__(self, path):
        self.path, self.total, self.size, self.lost = path, 0, 0, 0
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if job["try"] == 1 and not job["append"]:
            self.file = open(path, "w+b", buffering=0)
            return
        self.file = open(path, "a+b", buffering=0)
        self.size = self.file.seek(0, os.SEEK_END)
        self.total = self.size + self.left_out()
        self.write(job["line"].encode())

    def left_out(self):
        """Return how many bytes more were said before than the file has."""
        self.file.seek(job["head"])
        line = self.file.read(len(job["cut"] % 0)).decode("ascii", "replace")
        self.file.seek(self.size)
        digits = "".join(filter(str.isdigit, line))
        if not digits or job["cut"] % int(digits) != line:
            return 0
        return int(digits) - len(line)

    def write(self, data):
        if self.lost:
            self.put(b"\n[gpulab could not write %d bytes here]\n" % self.lost)
        self.put(data)
        if self.size > job["most"]:
            self.cut()

    def put(self, data):
        """Write all of it, or count what a full home does not take."""
        while data:
            try:
                n = self.file.write(data)
            except OSError:
                self.lost += len(data)
                return
            self.size += n
            self.total += n
            data = data[n:]
        self.lost = 0

    def cut(self):
        """Leave the beginning, and half of what may follow it."""
        keep = (job["most"] - job["head"]) // 2
        self.file.seek(self.size - keep)
        tail = self.file.read(keep)
        tail = tail[tail.find(b"\n", 0, 8192) + 1:]
        self.file.seek(0)
        head = self.file.read(job["head"])
        part = self.path + ".part"
        try:
            new = open(part, "w+b", buffering=0)
            said = head + job["cut"].encode() % (self.total - len(head) - len(tail)) + tail
            for start in range(0, len(said), 1 << 20):
                new.write(said[start:start + (1 << 20)])
            if new.tell() != len(said):
                raise OSError("the disk is full")
            os.replace(part, self.path)
        except OSError:
            self.file.seek(self.size)
            if os.path.exists(part):
                os.unlink(part)
            return
        self.file.close()
        self.file, self.size = new, len(said)


def last_line(said):
    """Leave the message that says how it ended where the machine looks for it."""
    try:
        with open("/dev/termination-log", "wb") as file:
            file.write(said[-4000:])
    except OSError:
        pass


def give_up(code, words):
    print(words, file=sys.stderr)
    last_line(words.encode())
    sys.exit(code)


def program():
    """Return what to run: the command as it was given, or the script by its first line."""
    if not job["script"]:
        return job["args"]
    folder = "/tmp/.gpulab-job"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, job["name"])
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(job["script"])
    os.chmod(path, 0o700)
    return ([] if job["script"].startswith("#!") else ["bash"]) + [path, *job["args"]]


def start():
    """Start it in a process group of its own, which one signal reaches as a whole."""
    env = {**os.environ, "GPULAB_JOB_ID": str(job["id"]), "GPULAB_JOB_NAME": job["name"], "GPULAB_JOB_TRY": str(job["try"])}
    # What scripts that were written for Slurm ask for.
    env.update(SLURM_JOB_ID=str(job["id"]), SLURM_JOB_NAME=job["name"], SLURM_RESTART_COUNT=str(job["try"] - 1))
    env.update(job["env"] or {})
    if job["venv"]:
        env.update(VIRTUAL_ENV=job["venv"], PATH=os.path.join(job["venv"], "bin") + ":" + env.get("PATH", os.defpath))
    env.setdefault("PYTHONUNBUFFERED", "1")  # or a program's lines would come in lumps
    out, into = os.pipe()
    argv = program()
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=into, stderr=into, env=env,
            cwd=os.path.join(home, job["dir"]), start_new_session=True,
        )
    except FileNotFoundError as error:
        if error.filename == os.path.join(home, job["dir"]):
            return None, 72, f"gpulab: there is no folder {job['dir']} in the home"
        return None, 127, f"gpulab: {argv[0]}: there is no such program"
    except OSError as error:
        return None, 126, f"gpulab: {argv[0]}: {error.strerror}"
    os.close(into)
    return child, out, ""


def main():
    path = os.path.join(home, job["output"])
    try:
        log = Log(path)
    except OSError as error:
        give_up(73, f"gpulab: the file {job['output']} cannot be written: {error.strerror}")
    child, out, trouble = start()
    if child is None:
        log.write(trouble.encode() + b"\n")
        give_up(out, trouble)

    told = []

    def pass_on(number, _):
        if child.poll() is None:
            told.append(number)
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)

    said, ended = b"", 0.0
    while True:
        ready, _, _ = select.select([out], [], [], 0.1)
        data = os.read(out, 1 << 16) if ready else None
        if data:
            log.write(data)
            said = (said + data)[-4000:]
        if child.poll() is None:
            if data == b"":  # it has closed what it says things to, and goes on
                child.wait()
            continue
        # What it left running may go on speaking for ever.
        ended = ended or time.monotonic()
        if not data or time.monotonic() - ended > 2:
            break
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the program has ended, and its exit code stands
    if log.lost:
        log.write(b"")
    last_line(said)
    code = child.returncode
    if code == 0 and told:
        code = job["saved"]  # it was not done: it has ended because it was asked to
    sys.exit(code if code >= 0 else 128 - code)


main()
