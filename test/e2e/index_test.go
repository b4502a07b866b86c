//go:build e2e

package e2e

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// The package that the index below offers.
const (
	demoPackage = "gl-demo"
	demoWheel   = "gl_demo-1.0-py3-none-any.whl"
	demoIndex   = "http://" + lab.InternetAddress + ":3141/simple/"
)

// servePackageIndex runs a Python package index with one small wheel in
// what stands for the internet: a test host has no way to the real one.
func servePackageIndex(t *testing.T, a *appliance) {
	t.Helper()
	wheel := makeWheel(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/"+demoPackage+"/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><a href="/files/%[1]s">%[1]s</a>`, demoWheel)
	})
	mux.HandleFunc("GET /files/"+demoWheel, func(w http.ResponseWriter, _ *http.Request) { w.Write(wheel) })
	listener, err := a.Listen("tcp", net.JoinHostPort(lab.InternetAddress, "3141"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
}

// makeWheel packs a module with one function and one command.
func makeWheel(t *testing.T) []byte {
	t.Helper()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	const info = "gl_demo-1.0.dist-info/"
	for _, file := range []struct{ name, content string }{
		{"gl_demo.py", "def answer():\n    return 42\n\ndef main():\n    print('demo says', answer())\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: gl-demo\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\ngl-demo = gl_demo:main\n"},
		{info + "RECORD", "gl_demo.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "entry_points.txt,,\n" + info + "RECORD,,\n"},
	} {
		writer, err := archive.Create(file.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(file.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
