//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/test/lab"
)

// TestCatalogue is a lab whose environments have what those of the catalogue have: programs of Debian, and the
// catalogue's own, with the real packages. PyTorch is left to a run by hand: it is several gigabytes.
//
//test:about internal/environments assets/environments
func TestCatalogue(t *testing.T) {
	t.Parallel()
	readyIndex(t).live(t, slices.Concat([]chapter{
		{"packages of Debian", testDebianPackages, false},
		{"TensorBoard", testTensorBoard, false},
	}, byHand(t, chapter{"PyTorch", testPyTorch, false})))
}

// TestCatalogueR is a lab with the catalogue's R.
//
//test:about internal/environments assets/environments
func TestCatalogueR(t *testing.T) {
	t.Parallel()
	readyIndex(t).live(t, []chapter{{"R", testR, false}})
}

// TestCataloguePrograms is a lab with the catalogue's programs for everybody, and its CUDA compiler.
//
//test:about internal/environments assets/environments
func TestCataloguePrograms(t *testing.T) {
	t.Parallel()
	a := readyIndex(t)
	a.second = work(a.guest.For(t), guestHandle, "Ben's")
	a.live(t, []chapter{{"programs for everybody", testPrograms, false}, {"nvcc", testNvcc, false}})
}

// maxPrograms is how much room the catalogue's programs may take on a machine, in bytes.
const maxPrograms = 500 << 20

// testPrograms: a notebook that runs already finds them, so does a job, and they can be taken to another lab.
func testPrograms(t *testing.T, a *appliance) {
	offer, err := environments.Offered("programs")
	if err != nil {
		t.Fatal(err)
	}
	a.index.addDebs(t, offer.Requirements)
	const ask = `set -e
cd "$(mktemp -d)"
echo 'digraph { a -> b }' | dot -Tpng -o graph.png
echo 'digraph { a -> b }' | dot -Tsvg | grep -c '<svg'
file graph.png
ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64:rate=8 -pix_fmt yuv420p film.mp4
ffprobe -v error -show_entries stream=codec_name,nb_frames -of csv=p=0 film.mp4
echo '# A *title*' | pandoc -t html
man 1 ls | head -3
man git-log | grep -m1 -o 'git-log - .*'
man 7 ascii | grep -m1 -o 'ASCII character set'
`
	want := []string{"graph.png: PNG image data", "h264,8", "<em>title</em>", "LS(1)", "git-log - Show commit logs", "ASCII character set"}
	shell := fmt.Sprintf("import subprocess\ngot = subprocess.run(['bash', '-lc', %q], capture_output=True, text=True)\nprint(got.returncode, got.stdout, got.stderr)", ask)
	if got := a.second.in(t).run(t, shell); strings.HasPrefix(got, "0 ") {
		t.Fatalf("the image has these programs without the environment: %s", got)
	}
	began := time.Now()
	init := a.MustGpulab(a.ctx, append(initArgs, "--programs")...)
	t.Logf("built in %s\n%s", time.Since(began).Round(time.Second), init)
	if !strings.Contains(init, "Its programs are on the path of every notebook and job.") {
		t.Error("init does not say that the programs are there")
	}
	if again := a.MustGpulab(a.ctx, append(initArgs, "--programs")...); strings.Contains(again, "Installing") {
		t.Errorf("a second init installs them again:\n%s", again)
	}
	notebook := func() {
		t.Helper()
		got := a.second.in(t).run(t, shell)
		for _, word := range want {
			if !strings.HasPrefix(got, "0 ") || !strings.Contains(got, word) {
				t.Errorf("a notebook does not print %q:\n%s", word, got)
				return
			}
		}
	}
	notebook()
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--", "bash", "-c", ask}, want...)
	// Programs of the image come first.
	l.gpulab(t, 0, []string{"run", "--", "bash", "-c", "command -v ls git man"}, "/usr/bin/ls\n/usr/bin/git\n"+environments.MountPath+"/.bin/man")
	var list []environments.Environment
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "env", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].HasKernel() || list[0].Size > maxPrograms {
		t.Errorf("the lab has %+v", list)
	}
	t.Logf("they take %d MiB", list[0].Size>>20)
	checkFailure(t, a.Gpulab(a.ctx, "env", "default", "programs"), exitFailure, "has no kernel")
	if got := a.second.in(t).run(t, "!jupyter kernelspec list --json | grep -c programs"); strings.TrimSpace(got) != "0" {
		t.Errorf("the programs are a kernel: %s", got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/environments/" + list[0].ID())
	b.WaitText("main", "none; its programs are on the path of every notebook and job")
	b.WaitText("main", "the option --env is not needed")
	b.Pictures("environment-programs")
	// To a lab without a network.
	a.MustGpulab(a.ctx, "env", "export", "programs", "/root/programs.env")
	a.MustGpulab(a.ctx, "env", "remove", list[0].ID())
	if got := a.second.in(t).run(t, "!command -v dot || echo gone"); strings.TrimSpace(got) != "gone" {
		t.Errorf("after they were removed, dot is %s", got)
	}
	a.MustGpulab(a.ctx, "env", "import", "/root/programs.env")
	notebook()
	for requirements, why := range map[string]string{
		"# programs: everywhere\nnumpy\n": "only packages of Debian can be named",
		"# programs: everywhere\n":        "at least one package of Debian",
		"numpy\n# man: pool/main/c/coreutils/coreutils_9.1-1_amd64.deb 61038f857e346e8500adf53a2a0a20859f4d3a3b51570cc876b153a2d51a3091\n": "needs the line",
	} {
		a.WriteFile("/root/programs.txt", requirements)
		checkFailure(t, a.Gpulab(a.ctx, "env", "create", "other", "-r", "/root/programs.txt"), exitFailure, "was not built", why)
	}
}

// testNvcc compiles a CUDA program and runs it. With the simulated driver, any answer of CUDA to that program will do.
func testNvcc(t *testing.T, a *appliance) {
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	fromCatalogue(t, a, "cuda")
	l.gpulab(t, 0, []string{"run", "--env", "cuda", "--", "sh", "-ec", `cd "$(mktemp -d)"
cat > add.cu <<'CU'
#include <cstdio>
#include <cub/cub.cuh>
__global__ void add(float *x, float y) { x[threadIdx.x] += y; }
int main() { int n = -1; cudaError_t e = cudaGetDeviceCount(&n); printf("asked: %s\n", cudaGetErrorName(e)); }
CU
nvcc -arch=sm_80 -o add add.cu
nvcc --version | grep release
ptxas --version | grep -o 'ptxas: NVIDIA'
./add`}, "release 13.", "ptxas: NVIDIA", "asked: cuda")
}

// jq is a program of Debian, and the libraries that it needs.
const jq = `# deb: pool/updates/main/j/jq/jq_1.6-2.1+deb12u3_amd64.deb c25f3fda201207ed98b1d63686f2d81b9dfeb99f1ab2d1d35fb3f7b6a1c107dc
# deb: pool/updates/main/j/jq/libjq1_1.6-2.1+deb12u3_amd64.deb 5e9a7081ba10ce826f6d3d103aa9b912170c5adc836e2561000733571995dd5b
# deb: pool/main/libo/libonig/libonig5_6.9.8-1_amd64.deb 59ecfce6d88c7c4b09496ce182b3b8303e8e8477664e009b16ae83a09cd12be7
`

// testDebianPackages: their programs are on the environment's path, and what is not the named file is not unpacked.
func testDebianPackages(t *testing.T, a *appliance) {
	a.index.addDebs(t, jq)
	const nothing = "0000000000000000000000000000000000000000000000000000000000000000"
	first, _, _ := strings.Cut(jq, "\n")
	for requirements, why := range map[string]string{
		first[:len(first)-len(nothing)] + nothing:               "is another file than the one that was asked for",
		"# deb: pool/main/../../jq_1_amd64.deb " + nothing:      "names no package of Debian",
		"# deb: pool/main/n/none/none_1_amd64.deb " + nothing:   "cannot be had from " + mirrorURL,
		"# deb: pool/main/n/none/none_1_2_amd64.deb " + nothing: "names no package of Debian",
	} {
		a.WriteFile("/root/debian.txt", requirements+"\n")
		checkFailure(t, a.Gpulab(a.ctx, "env", "create", "query", "-r", "/root/debian.txt"), exitFailure, "was not built", why)
	}
	a.WriteFile("/root/debian.txt", jq)
	a.MustGpulab(a.ctx, "env", "create", "query", "--version", "1", "-r", "/root/debian.txt")
	if lock := a.MustGpulab(a.ctx, "env", "show", "--lock", "query"); !strings.Contains(lock, jq) || !strings.Contains(lock, "ipykernel==") {
		t.Errorf("the lock:\n%s", lock)
	}
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--env", "query", "--", "jq", "-n", "6 * 7"}, "42")
	// What was kept of a download is believed no more than the download was.
	a.MustRun(a.ctx, "sh", "-c", "for f in /var/lib/gpulab/environments/cache/debian/*.deb; do echo broken >$f; done")
	a.MustGpulab(a.ctx, "env", "create", "query", "--version", "2", "-r", "/root/debian.txt")
	for _, version := range []string{"1", "2"} {
		a.MustGpulab(a.ctx, "env", "remove", "query/"+version)
	}
}

// fromCatalogue builds what the catalogue offers under a name, with the real packages.
func fromCatalogue(t *testing.T, a *appliance, name string) {
	t.Helper()
	offer, err := environments.Offered(name)
	if err != nil {
		t.Fatal(err)
	}
	a.index.add(t, wheels(t, offer.Requirements+"ipykernel\npip\n"))
	began := time.Now()
	t.Log(a.MustGpulab(a.ctx, "env", "create", "--from", name))
	t.Logf("%s is built in %s", name, time.Since(began).Round(time.Second))
}

// testTensorBoard: a service shows what a job has written.
func testTensorBoard(t *testing.T, a *appliance) {
	cleo := a.guest.For(t).Tab()
	l := newLaptopFor(t, a, cleo, guestHandle, "launch")
	fromCatalogue(t, a, "tensorboard")
	l.gpulab(t, 0, []string{"run", "--env", "tensorboard", "--", "python", "-c", `
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
w = EventFileWriter("runs/one")
for step in range(20):
    w.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="the loss", simple_value=1 / (step + 1))])))
w.close()`})
	l.gpulab(t, 0, []string{"service", "tensorboard", "runs", "--wait"}, "ready")
	cleo.Open(pages + "/services")
	cleo.WaitText("#services", "ready")
	cleo.Open(hub + lab.Evaluate[string](cleo, `() => new URL([...document.querySelectorAll("#services a")].find(a => a.href.includes("/service/")).href).pathname`))
	cleo.WaitFor("the curve that the job has written", `document.title === "TensorBoard" && document.body.innerText.includes("the loss")`)
	cleo.Pictures("tensorboard")
}

// testPyTorch: PyTorch computes in a job.
func testPyTorch(t *testing.T, a *appliance) {
	l := newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")
	fromCatalogue(t, a, "pytorch")
	said := l.gpulab(t, 0, []string{"run", "--env", "pytorch", "--", "python", "-c", `
import torch, torchvision
x = torch.arange(6.0).reshape(2, 3)
print("torch", torch.__version__, "torchvision", torchvision.__version__, "CUDA", torch.version.cuda, "product", (x @ x.T).sum().item())`}, "product 83.0")
	t.Log(said)
}

// testR: the catalogue's R computes in a notebook and in a job, and what somebody installs is in their home.
func testR(t *testing.T, a *appliance) {
	offer, err := environments.Offered("r")
	if err != nil {
		t.Fatal(err)
	}
	a.index.addDebs(t, offer.Requirements)
	began := time.Now()
	t.Log(a.MustGpulab(a.ctx, "env", "create", "--from", "r", "--version", "1"))
	t.Logf("R is built in %s", time.Since(began).Round(time.Second))
	b := a.guest.For(t)
	launch(b, "cpu", "Ben's")
	waitJupyterLab(b, guestHandle)
	k := &kernel{lab.NewKernelOf(b, "r.1"), b}
	if got := k.run(t, `suppressMessages(library(tidyverse)); cat(R.version$major, nrow(filter(mtcars, cyl == 4)), .libPaths()[1])`); got != "4 11 /home/ben/R/x86_64-pc-linux-gnu-library/4.5" {
		t.Errorf("the cell printed %q", got)
	}
	b.Open(hub + "/user/" + guestHandle + "/ben-s/lab?reset")
	b.WaitFor("its card", `document.querySelector('.jp-LauncherCard[data-category="Notebook"][title="R (1)"]')`)
	lab.TypeCellIn(b, "R (1)", `print(6 * 7); ggplot2::qplot(wt, mpg, data = mtcars, main = "Weight and use")`)
	b.WaitFor("the plot", `document.querySelector(".jp-OutputArea-output img")`)
	b.Pictures("environment-r")
	l := newLaptopFor(t, a, b.Tab(), guestHandle, "launch")
	l.gpulab(t, 0, []string{"run", "--env", "r", "--", "Rscript", "-e", `
library(data.table)
writeLines(c("# Sum", "", "It is ` + "`r data.table(x = 1:4)[, sum(x)]`" + `."), "sum.Rmd")
rmarkdown::render("sum.Rmd", quiet = TRUE)
cat(grep("It is", readLines("sum.html"), value = TRUE), length(system2("fc-list", stdout = TRUE)) > 0, Sys.timezone())`}, "<p>It is 10.</p> TRUE Etc/UTC")
}
