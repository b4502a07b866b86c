package metrics

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/metrics/promtest"
)

const token = "a token of the test, which is long enough"

// scraped serves a lab as gpulab does and has a real Prometheus read it every
// 200 ms.
func scraped(t *testing.T, lab *Lab) *promtest.Server {
	t.Helper()
	server := httptest.NewTLSServer(Access{Token: token}.Guard(Handler(func(*http.Request) *Lab { return lab })))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	files := map[string][]byte{
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		"right":  []byte(token + "\n"), "wrong": []byte("another\n"),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	job := func(name, token string) string {
		return fmt.Sprintf(`
  - job_name: %s
    scheme: https
    authorization: {credentials_file: %q}
    tls_config: {ca_file: %q}
    static_configs: [{targets: [%q]}]
`, name, filepath.Join(dir, token), filepath.Join(dir, "ca.crt"), server.Listener.Addr())
	}
	return promtest.Start(t, "global: {scrape_interval: 200ms}\nscrape_configs:"+job("lab", "right")+job("stranger", "wrong"))
}

func TestPrometheus(t *testing.T) {
	lab := rich(t)
	strange := "a\"b\\c\nd\x00e\xff}{=,#é漢"
	lab.Snapshots[0].GPUs[1].Processes[2].UnixUser = strange
	prometheus := scraped(t, lab)
	got := prometheus.Wait(t, `DCGM_FI_DEV_GPU_UTIL{gpu="0"}`)
	want := map[string]string{
		"__name__": "DCGM_FI_DEV_GPU_UTIL", "job": "lab", "instance": got[0].Labels["instance"],
		"gpu": "0", "UUID": "GPU-a", "pci_bus_id": "00000000:22:00.0", "device": "nvidia0", "modelName": "Simulated GPU 24GB", "Hostname": "head",
		"simulated": "true", "container": "notebook", "namespace": "user-anna", "pod": "jupyter-anna--work", "user": "anna", "notebook": "work",
	}
	if len(got) != 1 || got[0].Value != 37 || fmt.Sprint(got[0].Labels) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := prometheus.Wait(t, "gpulab_outside_gpu_utilization_ratio"); got[0].Labels["unix_user"] != "a\"b\\c\nd\uFFFDe\uFFFD}{=,#é漢" {
		t.Errorf("a strange name came as %q", got[0].Labels["unix_user"])
	}
	if got := prometheus.Wait(t, "sum(gpulab_user_gpu_held_ratio)"); got[0].Value != 2 {
		t.Errorf("two held GPUs are %v", got)
	}
	// Every series that was written has arrived, and none was refused.
	text, _ := render(t, lab)
	written := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			written++
		}
	}
	if got := prometheus.Wait(t, `scrape_samples_scraped{job="lab"}`); int(got[0].Value) != written {
		t.Errorf("%v of %d series arrived", got[0].Value, written)
	}
	if got := prometheus.Wait(t, `up{job="stranger"}`); got[0].Value != 0 {
		t.Error("a wrong token was let in")
	}
	for range 50 {
		if slices.ContainsFunc(prometheus.LastErrors(t), func(e string) bool { return strings.Contains(e, "401") }) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("a wrong token was refused with %v", prometheus.LastErrors(t))
}

// BenchmarkWrite is a lab of eight GPUs, ten processes on each.
func BenchmarkWrite(b *testing.B) {
	lab := &Lab{Now: began, Snapshots: []gpu.Snapshot{{Node: "head", Time: began}}}
	for i := range 8 {
		g := card(i, []gpu.Holder{holder("anna", "x"), holder("ben", "y")})
		for range 5 {
			g.Processes = append(g.Processes, process("anna", 7.0, 1<<28), process("ben", 3.0, 1<<28))
		}
		lab.Snapshots[0].GPUs = append(lab.Snapshots[0].GPUs, g)
	}
	var out bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		if err := Write(&out, lab); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(out.Len()), "bytes")
}
