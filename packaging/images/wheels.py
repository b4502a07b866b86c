"""Imports every module of the wheels in /wheels, and prints those that fail. wheels.sh runs it in the image."""
import concurrent.futures
import importlib.metadata
import os
import subprocess
import sys

# Modules that fail for reasons other than the image, and why.
EXPECTED = {
    "hydra": "needs pkg_resources, which newer setuptools lack",
    "mlflow": "needs an older protobuf",
    "pybullet_envs": "needs gym, which nothing maintains",
    "sounddevice": "needs PortAudio; a container has no microphone",
    "eglRenderer": "needs a screen",
}
NEVER = {"tests", "test", "docs", "doc", "dist", "examples", "benchmarks", "scripts", "images", "google", "azure", "pylint_plugins"}


def normal(name):
    return name.lower().replace("_", "-")


def modules(distribution):
    """Lists the modules of a wheel that people import."""
    found = set((distribution.read_text("top_level.txt") or "").split())
    if not found:
        for file in distribution.files or []:
            first, *rest = file.parts
            if rest == ["__init__.py"]:
                found.add(first)
            elif not rest and (first.endswith(".py") or ".so" in first):
                found.add(first.split(".")[0])
    return sorted(name for name in found if name.isidentifier() and not name.startswith("_") and not name.endswith("__mypyc") and name not in NEVER)


def fails(module):
    """Returns the last line of what an import says, or an empty string."""
    code = f"import sys; sys.path.insert(0, '/wheels'); import {module}"
    environment = {**os.environ, "HOME": "/tmp", "QT_QPA_PLATFORM": "offscreen"}
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, env=environment)
    except subprocess.TimeoutExpired:
        return "did not finish within 180 s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


with open("/wheels.txt", encoding="utf-8") as file:
    wanted = {normal(line.strip()) for line in file if line.strip() and not line.startswith("#")}
here = {normal(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=["/wheels"]) if d.metadata["Name"]}
failed = [f"{name} is not installed" for name in sorted(wanted - set(here))]
todo = [(name, module) for name in sorted(wanted & set(here)) for module in modules(here[name])]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for (name, module), why in zip(todo, pool.map(lambda pair: fails(pair[1]), todo)):
        if not why:
            continue
        if module in EXPECTED:
            print(f"{name}: {module} is not imported: it {EXPECTED[module]}")
        else:
            failed.append(f"{name}: import {module}: {why[:200]}")
print(f"{len(todo)} modules of {len(wanted)} wheels, {len(failed)} failures", *failed, sep="\n")
sys.exit(bool(failed))
