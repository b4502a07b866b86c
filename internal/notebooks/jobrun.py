"""Runs a job in its pod: starts the program, and keeps the beginning and the end of what it says in files of the home.

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
import socket
import subprocess
import sys
import time

job = json.loads(base64.b64decode(os.environ.pop("GPULAB_JOB")))
home = os.environ["HOME"]
where = os.path.normpath(os.path.join(home, job["dir"]))
folder = "/tmp/.gpulab-job"


class Log:
    """The file with the beginning and the end of what was said."""

    def __init__(self, path):
        self.path, self.total, self.size, self.lost, self.said = path, 0, 0, 0, b""
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
    """Return what to run: the command as it was given, or the script by its reader or its first line."""
    if not job["script"]:
        return job["args"]
    path = put("script/" + job["file"], job["script"])  # apart from the tools
    if job["reader"] == "run-notebook":
        return ["run-notebook", path, where]
    if job["reader"]:
        return [job["reader"], path, *job["args"]]
    return ([] if job["script"].startswith("#!") else ["bash"]) + [path, *job["args"]]


def put(name, text):
    """Write a program of the job's own beside its home."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.chmod(path, 0o700)
    return path


def surroundings():
    """Return the environment of the program."""
    number, name = str(job["id"]), job["name"]
    env = {**os.environ, "GPULAB_JOB_ID": number, "GPULAB_JOB_NAME": name, "GPULAB_JOB_TRY": str(job["try"])}
    # What scripts that were written for Slurm ask for.
    env.update(SLURM_JOB_ID=number, SLURM_JOB_NAME=name, SLURM_RESTART_COUNT=str(job["try"] - 1))
    before, behind = [], []
    if job["tools"]:
        env.update(slurm(env))
        behind = [os.path.join(folder, "bin")]
        put("modules", "")
        for name in job["tools"]["names"]:
            put("bin/" + name, f"#!{sys.executable} -I\n" + job["tools"]["text"])
    env.update(job["env"] or {})
    if job["venv"]:
        before = [os.path.join(job["venv"], "bin")]
        env["VIRTUAL_ENV"] = job["venv"]
    if before or behind:
        env["PATH"] = os.pathsep.join(before + [env.get("PATH", os.defpath)] + behind)
        # A login shell sets PATH anew, and reads this afterwards.
        lines = [f'case ":$PATH:" in *":{one}:"*) ;; *) PATH="{one}:$PATH" ;; esac\n' for one in before]
        lines += [f'case ":$PATH:" in *":{one}:"*) ;; *) PATH="$PATH:{one}" ;; esac\n' for one in behind]
        env.setdefault("BASH_ENV", put("path.sh", "".join(lines)))
    if job["reader"] == "python3":  # its modules are where it runs, as if the script were there
        env["PYTHONPATH"] = os.pathsep.join([where, *filter(None, [env.get("PYTHONPATH")])])
    env.setdefault("PYTHONUNBUFFERED", "1")  # or a program's lines would come in lumps
    return env


def slurm(env):
    """Return what Slurm tells a script that has one task on one machine."""
    host, cores = socket.gethostname(), str(bound())
    said = {
        "SLURM_JOBID": env["SLURM_JOB_ID"], "SLURM_CLUSTER_NAME": "gpulab", "SLURM_SUBMIT_DIR": where,
        "SLURM_SUBMIT_HOST": host, "SLURM_TMPDIR": env.get("SCRATCH", "/tmp"),
    }
    for value, names in [
        (host, ["SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"]),
        (cores, ["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"]),
        ("1", ["SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE"]),
        ("0", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"]),
    ]:
        said.update(dict.fromkeys(names, value))
    return said


def bound():
    """Return how many cores the job may use, where its profile does not say."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return len(os.sched_getaffinity(0))


def start(logs):
    """Start it in a process group of its own, which one signal reaches as a whole."""
    pipes = [os.pipe() for _ in logs]
    argv = program()
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[-1][1], env=surroundings(),
            cwd=where, start_new_session=True,
        )
    except FileNotFoundError as error:
        if error.filename == where:
            return None, 72, f"gpulab: there is no folder {job['dir']} in the home"
        return None, 127, f"gpulab: {argv[0]}: there is no such program"
    except OSError as error:
        return None, 126, f"gpulab: {argv[0]}: {error.strerror}"
    for _, into in pipes:
        os.close(into)
    return child, {out: log for (out, _), log in zip(pipes, logs)}, ""


def main():
    logs = []
    for file in filter(None, [job["output"], job["errors"]]):
        try:
            logs.append(Log(os.path.join(home, file)))
        except OSError as error:
            give_up(73, f"gpulab: the file {file} cannot be written: {error.strerror}")
    child, speaks, trouble = start(logs)
    if child is None:
        logs[-1].write(trouble.encode() + b"\n")
        give_up(speaks, trouble)

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

    ended = 0.0
    while True:
        heard = False
        for out in select.select(list(speaks), [], [], 0.1)[0] if speaks else []:
            data = os.read(out, 1 << 16)
            if not data:  # it has closed what it says things to, and may go on
                del speaks[out]
                continue
            heard, log = True, speaks[out]
            log.write(data)
            log.said = (log.said + data)[-4000:]
        if child.poll() is None:
            if not speaks:
                child.wait()
            continue
        # What it left running may go on speaking for ever.
        ended = ended or time.monotonic()
        if not heard or time.monotonic() - ended > 2:
            break
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the program has ended, and its exit code stands
    for log in logs:
        if log.lost:
            log.write(b"")
    last_line(logs[-1].said if logs[-1].said.strip() else logs[0].said)
    code = child.returncode
    if code == 0 and told:
        code = job["saved"]  # it was not done: it has ended because it was asked to
    sys.exit(code if code >= 0 else 128 - code)


main()
