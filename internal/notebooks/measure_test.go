package notebooks

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A machine gone bad measures its own pods only, and its answer takes a bounded part of the head's memory.
func TestMeasureBelievesAMachineItsOwnPodsOnly(t *testing.T) {
	const entry = `{"podRef": {"uid": %q}, "cpu": {"time": "2026-11-02T09:00:00Z", "usageCoreNanoSeconds": 7}, "ephemeral-storage": {"inodesUsed": %d}}`
	var sent int64
	ended := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/nodes/bad/") {
			fmt.Fprintf(w, `{"pods": [`+entry+","+entry+`]}`, "his", 5, "hers", 1_000_000_000)
			return
		}
		defer close(ended)
		_, _ = io.WriteString(w, `{"pods": [`)
		for piece := []byte(strings.Repeat(" ", 1<<20)); sent < 300<<20; {
			n, err := w.Write(piece)
			if sent += int64(n); err != nil {
				return
			}
		}
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewKubeCluster(client, "gpulab-system", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	c.index.Store(&podIndex{notebooks: map[string]PodInfo{"his": {UID: "his", Node: "bad"}, "hers": {UID: "hers", Node: "endless"}}})
	got, err := c.Measure(t.Context())
	if len(got) != 1 || got["his"].Files != 5 {
		t.Errorf("%+v", got)
	}
	if err == nil || !strings.Contains(err.Error(), "ask endless what its notebooks use: its answer is longer than 8 MB") {
		t.Error(err)
	}
	<-ended
	if sent > 64<<20 {
		t.Errorf("%d bytes were taken in", sent)
	}
}
