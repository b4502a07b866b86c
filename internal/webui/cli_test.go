package webui_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

// program is what the fake programs for people's computers hold.
var program = bytes.Repeat([]byte("\x7fELF no real program "), 4096)

// someClients are programs as packaging/clients packs them.
func someClients(t testing.TB) fs.FS {
	t.Helper()
	var packed bytes.Buffer
	writer, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	files := fstest.MapFS{}
	var index []map[string]any
	for file, system := range map[string][2]string{"gpulab-linux-amd64": {"linux", "amd64"}, "gpulab-darwin-arm64": {"darwin", "arm64"}, "gpulab-windows-amd64.exe": {"windows", "amd64"}} {
		files[file+".zst"] = &fstest.MapFile{Data: packed.Bytes()}
		index = append(index, map[string]any{"file": file, "os": system[0], "arch": system[1], "size": len(program), "sha256": hex.EncodeToString(sum[:])})
	}
	text, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	files["index.json"] = &fstest.MapFile{Data: text}
	return files
}

func TestCLIPage(t *testing.T) {
	l := newLab(t)
	sum := sha256.Sum256(program)
	page := l.client(t, "ben").do("GET", "/cli", nil, func(r *http.Request) { r.Header.Set("User-Agent", "Mozilla/5.0 (Windows NT 10.0; Win64; x64)") })
	page.want(t, http.StatusOK, hex.EncodeToString(sum[:]), "/cli/gpulab-linux-amd64", "sha256sum -c", "Get-FileHash", "gpulab login https://"+strings.TrimPrefix(l.server.URL, "https://"), "--fingerprint ")
	if windows, linux := strings.Index(page.body, "Get-FileHash"), strings.Index(page.body, "sha256sum"); windows > linux {
		t.Error("the visitor's own system does not come first")
	}
	download := l.client(t, "").get("/cli/gpulab-linux-amd64")
	download.want(t, http.StatusOK)
	if download.body != string(program) || download.header.Get("Content-Length") != strconv.Itoa(len(program)) || !strings.Contains(download.header.Get("Content-Disposition"), "gpulab-linux-amd64") {
		t.Errorf("%d bytes, %v", len(download.body), download.header)
	}
	for _, path := range []string{"/cli/gpulab-plan9-amd64", "/cli/index.json", "/cli/..%2findex.json", "/cli/gpulab-linux-amd64.zst"} {
		l.client(t, "").get(path).want(t, http.StatusNotFound)
	}
	page.want(t, http.StatusOK, "has no program for Linux on ARM, Mac on Intel and Windows on ARM.")
	one := newLabOf(t, fstest.MapFS{"index.json": {Data: []byte(`[{"file": "gpulab-linux-amd64", "os": "linux", "arch": "amd64"}]`)}})
	one.client(t, "ben").get("/cli").want(t, http.StatusOK, "/cli/gpulab-linux-amd64", "has no program for Linux on ARM, Mac and Windows")
	none := newLabOf(t, fstest.MapFS{})
	none.client(t, "ben").get("/cli").want(t, http.StatusOK, "go tool task clients")
	none.client(t, "").get("/cli/gpulab-linux-amd64").want(t, http.StatusNotFound)
}
