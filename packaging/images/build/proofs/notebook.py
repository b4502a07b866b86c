"""What a person does in a notebook, over the notebook server's own API."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from jupyter_client.blocking import BlockingKernelClient

BASE = "http://127.0.0.1:8888"
again = sys.argv[1] == "again"


def call(path, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Authorization": "token proof"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


server = subprocess.Popen(
    ["/opt/lab/bin/jupyter-lab", "--no-browser", "--ip=127.0.0.1", "--port=8888", "--IdentityProvider.token=proof"]
)
try:
    for _ in range(300):
        try:
            call("/api")
            break
        except OSError:
            time.sleep(0.1)

    page = call("/lab")
    assert "@jupyterlab/apputils-extension:announcements" in page, "JupyterLab would ask for news"
    bundle = page.split('src="')[1].split('"')[0]
    assert len(call(bundle)) > 1000, "JupyterLab's program is missing"
    assert json.loads(call("/api/terminals", "POST"))["name"] == "1", "no terminal"

    specs = json.loads(call("/api/kernelspecs"))["kernelspecs"]
    assert list(specs) == ["python3"], f"kernels: {list(specs)}"
    newest = "%d.%d" % sys.version_info[:2]
    assert specs["python3"]["spec"]["display_name"] == f"Python {newest}", specs
    choice = Path.home() / ".config/gpulab/python"
    choice.parent.mkdir(parents=True, exist_ok=True)
    choice.write_text("3.11\n")
    specs = json.loads(call("/api/kernelspecs"))["kernelspecs"]
    assert specs["python3"]["spec"]["display_name"] == "Python 3.11", specs
    said = call("/gpulab/home")
    assert f"run in a terminal: use-python {newest}." in said, said
    choice.unlink()
    assert json.loads(call("/gpulab/home"))["leftOut"] == [], call("/gpulab/home")
    assert json.loads(call("/gpulab/outputs?path=none.ipynb"))["runs"] == [], "outputs are not kept without a browser"
    kernel = json.loads(call("/api/kernels", "POST", {"name": "python3"}))["id"]
    client = BlockingKernelClient(connection_file=f"/tmp/.gpulab/runtime/kernel-{kernel}.json")
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def cell(code):
        printed = []
        client.execute_interactive(
            code, timeout=60, output_hook=lambda m: printed.append(m["content"].get("text") or "\n".join(m["content"].get("traceback", [])))
        )
        return "".join(printed)

    assert cell("import sys; print(sys.executable)").strip() == f"/usr/bin/python{newest}"
    assert cell("import os; print(os.getuid())").strip() == "20001"
    if not again:
        said = cell("%pip install --no-index /proof/gpulab_proof-1.0-py3-none-any.whl")
        assert "Successfully installed" in said, said
    said = cell("import gpulab_proof; print(gpulab_proof.__file__)")
    assert said.startswith(str(Path.home() / ".local")), said
    said = cell("!gpulab-proof")
    assert said.strip() == "proven", said
    said = cell("import gpulab_absent")
    assert "ModuleNotFoundError" in said and "use-python" not in said, said
    older = Path.home() / ".local/lib/python3.11/site-packages/gpulab_absent.py"
    older.parent.mkdir(parents=True, exist_ok=True)
    older.touch()
    said = cell("import gpulab_absent.part")
    assert "Your home has gpulab_absent for another Python." in said, said
    said = cell("import gpulab_proof.part")
    assert "ModuleNotFoundError" in said and "use-python" not in said, said
    older.unlink()
    # The next start of the server must not care what lies in the home.
    (Path.home() / f".local/lib/python{newest}/site-packages/jupyter_server.py").write_text("raise SystemExit(1)")

    stray = [p for p in Path.home().rglob("*") if p.suffix in {".sqlite", ".db"}]
    assert not stray, f"SQLite in the home: {stray}"
    call(f"/api/kernels/{kernel}", "DELETE")
finally:
    server.terminate()
    server.wait(20)
