// Command verify proves gpulab's NVIDIA layer on a machine with a real card and
// writes down what it saw, as a dated record for docs/verified:
//
//   - the probe reads every GPU, and says what NVIDIA's nvidia-smi says;
//   - CUDA computes on it, straight on the machine;
//   - where a lab runs on the machine, a pod gets a GPU through CDI and
//     computes on it, and the lab's command and metrics show the GPUs.
//
// It needs the driver, python3, and gpulab-probe (built here unless named). It
// ends with 1 when something is wrong; the record then says what.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/gpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	v := verification{ctx: ctx, now: time.Now()}
	flag.StringVar(&v.library, "lib", "libnvidia-ml.so.1", "NVIDIA's management library, a name or a `path`")
	flag.StringVar(&v.probe, "probe", "", "`path` of gpulab-probe; default: built for this run")
	flag.StringVar(&v.gpulab, "gpulab", "bin/gpulab", "`path` of gpulab, to ask the lab on this machine")
	flag.StringVar(&v.smi, "nvidia-smi", "nvidia-smi", "`path` of nvidia-smi")
	folder := flag.String("out", "docs/verified", "`folder` for the record")
	flag.Parse()
	path, err := v.write(*folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(1)
	}
	fmt.Println("record:", path)
	if v.failed > 0 {
		fmt.Fprintf(os.Stderr, "verify: %d checks failed\n", v.failed)
		os.Exit(1)
	}
}

// verification is one run and its record.
type verification struct {
	ctx                         context.Context
	now                         time.Time
	library, probe, gpulab, smi string

	record bytes.Buffer
	failed int
}

// check notes a check's outcome.
func (v *verification) check(name string, err error, detail string) {
	mark := "ok"
	if err != nil {
		v.failed++
		mark, detail = "**failed**", err.Error()
	}
	fmt.Fprintf(&v.record, "| %s | %s | %s |\n", name, mark, cell(detail))
	fmt.Fprintf(os.Stderr, "%-10s %s: %s\n", strings.Trim(mark, "*"), name, detail)
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(strings.TrimSpace(s))
}

// write runs all checks and writes the record, also of a failure.
func (v *verification) write(folder string) (string, error) {
	if v.probe == "" {
		dir, err := os.MkdirTemp("", "gpulab-verify-")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir)
		v.probe = filepath.Join(dir, "gpulab-probe")
		build := exec.CommandContext(v.ctx, "go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", v.probe,
			"./cmd/gpulab-probe")
		build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build gpulab-probe: %w: %s", err, out)
		}
	}
	s, took, err := v.sample()
	if err != nil {
		return "", err
	}
	v.header(s)
	v.checkProbe(s, took)
	v.checkSMI(s)
	v.checkCUDA()
	v.checkLab(s)
	v.readings(s)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(folder, v.now.Format("2006-01-02")+"-"+slug(s.GPUs[0].Name)+".md")
	return path, os.WriteFile(path, v.record.Bytes(), 0o644)
}

func slug(name string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name), "-")
}

// sample reads the GPUs once.
func (v *verification) sample() (gpu.Snapshot, time.Duration, error) {
	var s gpu.Snapshot
	began := time.Now()
	out, err := v.run(v.probe, "-once", "-lib", v.library)
	took := time.Since(began)
	if err != nil {
		return s, took, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, took, fmt.Errorf("the probe's sample: %w", err)
	}
	if len(s.GPUs) == 0 {
		return s, took, errors.New("the driver reports no GPU: there is nothing to verify")
	}
	return s, took, nil
}

// run returns what a program prints, or an error with its last words.
func (v *verification) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(v.ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w %s", filepath.Base(name), err, lastLine(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func (v *verification) header(s gpu.Snapshot) {
	fmt.Fprintf(&v.record, "# %d × %s, %s\n\n", len(s.GPUs), s.GPUs[0].Name, v.now.Format("2 January 2006"))
	if s.Simulated {
		v.record.WriteString("**These GPUs are simulated: this record proves nothing about a card.**\n\n")
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte("not known")
	}
	fmt.Fprintf(&v.record, "Driver %s, CUDA %s, Linux %s. Written by `go tool task verify-gpu`.\n\n| check | outcome | "+
		"seen |\n|---|---|---|\n",
		s.DriverVersion, s.CUDAVersion, strings.TrimSpace(string(kernel)))
}

// checkProbe: every GPU is read without an error, fast enough for once a second.
func (v *verification) checkProbe(s gpu.Snapshot, took time.Duration) {
	var wrong []string
	for _, g := range s.GPUs {
		if g.Error != "" {
			wrong = append(wrong, g.Error)
		}
		if g.UUID == "" || g.Name == "" {
			wrong = append(wrong, fmt.Sprintf("GPU %d has no name", g.Index))
		}
	}
	var err error
	if len(wrong) > 0 {
		err = errors.New(strings.Join(wrong, " "))
	}
	v.check("the probe reads every GPU", err,
		fmt.Sprintf("%d GPUs, %d ms from start to end", len(s.GPUs), took.Milliseconds()))
}

// checkSMI compares with NVIDIA's own program what does not change meanwhile.
func (v *verification) checkSMI(s gpu.Snapshot) {
	out, err := v.run(v.smi, "--query-gpu=uuid,memory.total,temperature.gpu", "--format=csv,noheader,nounits")
	if err == nil {
		err = compare(s, out)
	}
	v.check("nvidia-smi says the same", err, "UUID, memory, temperature")
}

// compare holds a sample against nvidia-smi's lines: UUID, MiB, °C.
func compare(s gpu.Snapshot, lines string) error {
	seen := map[string]bool{}
	for line := range strings.Lines(lines) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) != 3 {
			return fmt.Errorf("nvidia-smi printed %q", line)
		}
		i := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == f[0] })
		if i < 0 {
			return fmt.Errorf("nvidia-smi knows %s, the probe does not", f[0])
		}
		seen[f[0]] = true
		g := s.GPUs[i]
		if mib, err := strconv.ParseFloat(f[1], 64); err == nil &&
			(g.MemoryTotal == nil || math.Abs(float64(*g.MemoryTotal)/(1<<20)-mib) > 1) {
			return fmt.Errorf("GPU %d has %s MiB for nvidia-smi, %v bytes for the probe", g.Index, f[1], known(g.MemoryTotal))
		}
		// Some seconds lie between the two.
		if celsius, err := strconv.ParseFloat(f[2], 64); err == nil &&
			(g.Temperature == nil || math.Abs(*g.Temperature-celsius) > 10) {
			return fmt.Errorf("GPU %d has %s °C for nvidia-smi, %v for the probe", g.Index, f[2], known(g.Temperature))
		}
	}
	if len(seen) != len(s.GPUs) {
		return fmt.Errorf("nvidia-smi knows %d GPUs, the probe %d", len(seen), len(s.GPUs))
	}
	return nil
}

func known[T any](p *T) any {
	if p == nil {
		return "unknown"
	}
	return *p
}

// checkCUDA computes on the first GPU, without a container.
func (v *verification) checkCUDA() {
	out, err := v.run("python3", "-c", assets.VectorAdd)
	v.check("CUDA computes", err, out)
}

// checkLab asks the lab on this machine, if there is one.
func (v *verification) checkLab(s gpu.Snapshot) {
	if _, err := v.run(v.gpulab, "status", "--json"); err != nil {
		fmt.Fprintf(&v.record, "| a lab on this machine | not tried | %s |\n", cell(err.Error()))
		return
	}
	saw, err := v.run(v.gpulab, "gpus", "check")
	v.check("a pod gets a GPU through CDI and computes on it", err, saw)
	shown, err := v.run(v.gpulab, "gpus", "--json")
	for _, g := range s.GPUs {
		if err == nil && !strings.Contains(shown, g.UUID) {
			err = fmt.Errorf("the lab does not show %s", g.UUID)
		}
	}
	v.check("the lab shows the same GPUs", err, fmt.Sprintf("%d GPUs", len(s.GPUs)))
	metrics, err := v.run(v.gpulab, "metrics")
	if err == nil && strings.Count(metrics, "\nDCGM_FI_DEV_GPU_TEMP{") != len(s.GPUs) {
		err = errors.New("the metrics lack a GPU's temperature")
	}
	v.check("the metrics have every GPU", err, "DCGM_FI_DEV_GPU_TEMP")
	labels, err := v.run(v.gpulab, "kubectl", "get", "nodes", "-o",
		`jsonpath={.items[0].metadata.labels.nvidia\.com/gpu\.product}`)
	if want := strings.ReplaceAll(s.GPUs[0].Name, " ", "-"); err == nil && labels != want && labels != want+"-SHARED" {
		err = fmt.Errorf("the node is labelled %q, want %q", labels, want)
	}
	v.check("the node is labelled with the model", err, labels)
}

// readings lists what the first card tells and what it does not, from the
// fields of the types themselves.
func (v *verification) readings(s gpu.Snapshot) {
	var told, untold []string
	g := s.GPUs[0]
	for _, part := range []any{g.Device, g.Reading, g.Health} {
		value := reflect.ValueOf(part)
		for i := range value.NumField() {
			field := value.Type().Field(i)
			if kind := field.Type.Kind(); kind != reflect.Pointer {
				continue
			}
			if value.Field(i).IsNil() {
				untold = append(untold, field.Name)
			} else {
				told = append(told, fmt.Sprintf("%s %v", field.Name, value.Field(i).Elem()))
			}
		}
	}
	fmt.Fprintf(&v.record, "\nThe first card, idle or not, told: %s.\n\nIt did not tell: %s.\n", strings.Join(told, ", "),
		orNone(untold))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "nothing is missing"
	}
	return strings.Join(list, ", ")
}
