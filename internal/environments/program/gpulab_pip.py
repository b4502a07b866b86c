"""Says what to do when pip cannot change this environment, which is read-only.

gpulab_pip.pth loads this when the environment's Python starts, and it acts only if that
Python runs pip. A kernel on top of the environment does not read that file.
"""
import os
import sys

SAYS = (
    "This environment is shared by the lab and read-only. To install packages, run `!own-kernel NAME` in a cell, "
    "choose the new kernel at the top right of the notebook, and run `%pip install` in it."
)
# In a kernel or a virtual environment of the person's own that has no pip, the shell finds the environment's.
SAYS_OWN = (
    "This pip belongs to a read-only environment of the lab. Run `%pip install` in a cell, "
    "or `python3 -m pip install` in a terminal."
)
# With these options pip works elsewhere, or changes nothing.
ELSEWHERE = ("--dry-run", "--prefix", "--python", "--root", "--target", "-t")


def changes(words):
    """Reports whether Python's arguments have pip change this environment."""
    program = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    if os.path.basename("".join(words[program:program + 1])).rstrip("0123456789.") != "pip":
        return False
    rest = words[program + 1:]
    return ("install" in rest or "uninstall" in rest) and not any(word.split("=")[0] in ELSEWHERE for word in rest)


if changes(sys.orig_argv[1:]) and not os.access(os.path.dirname(__file__), os.W_OK):
    # pip ends with sys.exit. What it has said comes first.
    def leave(status=None, leave=sys.exit):
        if status:
            own = os.environ.get("VIRTUAL_ENV", sys.prefix) != sys.prefix
            print(SAYS_OWN if own else SAYS, file=sys.stderr)
        leave(status)

    sys.exit = leave
