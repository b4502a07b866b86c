"""srun, module, ml and scontrol for scripts that were written for Slurm; which one it is says the name it is called by.

srun runs its program in place of itself: a job is one program on one machine. module and ml load nothing, say once for
each name what to write instead, and succeed, so that a script goes on. scontrol knows `show hostnames`.
"""
import os
import re
import signal
import sys

# Of srun: options that take a value, those that may have one behind =, and the others are switches.
VALUES = (
    "ntasks nodes cpus-per-task partition account time job-name output error input gres gpus gpus-per-task "
    "gpus-per-node gpus-per-socket cpus-per-gpu mem mem-per-cpu mem-per-gpu ntasks-per-node ntasks-per-gpu "
    "ntasks-per-core ntasks-per-socket tasks-per-node mpi nodelist exclude constraint chdir export jobid dependency relative "
    "wait distribution threads-per-core threads qos reservation comment mail-type mail-user hint begin licenses "
    "sockets-per-node cores-per-socket deadline epilog prolog task-epilog task-prolog signal slurmd-debug tmp wckey "
    "cpu-freq gpu-freq open-mode gid uid bcast-exclude container profile acctg-freq clusters cluster"
).split()
SHORT = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "p": "partition", "A": "account", "t": "time", "J": "job-name",
    "o": "output", "e": "error", "i": "input", "G": "gpus", "w": "nodelist", "x": "exclude", "C": "constraint",
    "D": "chdir", "d": "dependency", "r": "relative", "W": "wait", "m": "distribution", "T": "threads", "q": "qos",
    "b": "begin", "L": "licenses", "B": "cores-per-socket", "S": "threads-per-core", "M": "clusters",
}
ONE = {"ntasks", "nodes", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket", "tasks-per-node"}
REFUSED = {"multi-prog": "it runs one program"}

name = os.path.basename(sys.argv[0])


def fail(text, code=1):
    print(f"{name}: {text}", file=sys.stderr)
    sys.exit(code)


def options(words):
    """Take the options off the words, and return them by their long names."""
    found = []
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            long, has, value = word[2:].partition("=")
            if not has and long in VALUES:
                if not words:
                    fail(f"--{long} needs a value")
                value = words.pop(0)
            found.append((long, value))
            continue
        rest = word[1:]
        while rest:
            letter, rest = rest[0], rest[1:]
            if letter in SHORT:
                if not rest and not words:
                    fail(f"-{letter} needs a value")
                value = rest or words.pop(0)
                found.append((SHORT[letter], value[1:] if value.startswith("=") else value))
                break
    return found


def filled(pattern):
    """Return a file's name with what Slurm's patterns stand for."""
    job = os.environ.get("SLURM_JOB_ID", "")
    stands = {
        "%": "%", "t": "0", "n": "0", "s": "0", "j": job, "J": job + ".0",
        "A": os.environ.get("SLURM_ARRAY_JOB_ID", job), "a": os.environ.get("SLURM_ARRAY_TASK_ID", "0"),
        "N": os.environ.get("SLURMD_NODENAME", ""), "u": os.environ.get("SLURM_JOB_USER", ""),
        "x": os.environ.get("SLURM_JOB_NAME", "").replace("/", "-"),
    }
    return re.sub(r"%(\d*)([a-zA-Z%])", lambda m: stands.get(m[2], m[0]).zfill(min(int(m[1] or 0), 10)), pattern)


def redirect(file, mode, number):
    try:
        opened = os.open(filled(file), mode, 0o666)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    os.dup2(opened, number)


def srun(words):
    files = {}
    for option, value in options(words):
        if option in REFUSED:
            fail(f"--{option}: {REFUSED[option]}")
        if option in ONE and value.split("-")[0] != "1":
            fail(
                f"--{option}={value}: a job here is one program on one machine. Leave the option out; for many programs"
                " of one kind make an array (#SBATCH --array=0-3), or start them with & and wait for them"
            )
        if option == "chdir":
            try:
                os.chdir(value)
            except OSError as error:
                fail(f"{value}: {error.strerror}")
        elif option == "export":
            os.environ.update(part.split("=", 1) for part in value.split(",") if part.find("=") > 0)
        elif option in ("output", "error", "input") and value not in ("all", "none", "0"):
            files[option] = value
    if not words:
        fail("no program was named")
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if "input" in files:
        redirect(files["input"], os.O_RDONLY, 0)
    if "output" in files:
        redirect(files["output"], write, 1)
    if "error" in files:
        redirect(files["error"], write, 2)
    elif "output" in files:
        os.dup2(1, 2)
    os.environ.update(SLURM_STEP_ID="0", SLURM_STEPID="0", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1")
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # Python ignores them, and the program would, too
    try:
        os.execvp(words[0], words)
    except FileNotFoundError:
        fail(f"{words[0]}: there is no such program", 127)
    except OSError as error:
        fail(f"{words[0]}: {error.strerror}", 126)


def module(words):
    verb = next((word for word in words if not word.startswith("-")), "")
    quiet = "purge list unload rm del delete remove use unuse reset restore save refresh update avail av spider keyword"
    if verb in quiet.split():
        return
    names = [word for word in words if not word.startswith(("-", "+"))]
    if name == "module" or verb in ("load", "add", "try-load", "swap", "switch", "show", "help", "whatis"):
        names = names[1:]
    told = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..", "modules")
    with open(told, "a+", encoding="utf-8") as file:
        file.seek(0)
        known = file.read().split("\n")
        new = [one for one in dict.fromkeys(names) if one not in known]
        file.write("".join(one + "\n" for one in new))
    for one in new:
        print(
            f"module: this lab has no modules, and {one} is not loaded. What a job has comes from its image and its"
            " environment: choose one with `gpulab submit --env NAME` or #GPULAB --env=NAME; `gpulab env` lists them.",
            file=sys.stderr,
        )


def scontrol(words):
    if words[:2] not in (["show", "hostnames"], ["show", "hostname"]):
        fail("it knows `show hostnames` alone; `gpulab jobs` tells of jobs")
    for host in (words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")).split(","):
        print(host)


{"srun": srun, "module": module, "ml": module, "scontrol": scontrol}[name](sys.argv[1:])
