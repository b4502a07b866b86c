package webui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/assets"
)

// files serves the embedded files under URLs that contain a hash of their
// content, so that a browser may keep them for ever.
type files struct {
	byURL map[string]file
	urls  map[string]string // name → URL
}

type file struct {
	contentType   string
	plain, zipped []byte
}

func loadFiles() (*files, error) {
	f := &files{byURL: map[string]file{}, urls: map[string]string{}}
	err := fs.WalkDir(assets.Web(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(assets.Web(), name)
		if err != nil {
			return err
		}
		return f.add(name, content)
	})
	if err != nil {
		return nil, err
	}
	return f, f.addHTMX()
}

// htmxBundle is htmx and its server-sent-events extension in one file: htmx
// starts as soon as it is loaded, and would not see an extension that arrives
// in a file of its own a moment later.
const htmxBundle = "htmx.js"

func (f *files) addHTMX() error {
	var bundle bytes.Buffer
	for _, name := range []string{"vendor/htmx/htmx.min.js", "vendor/htmx/hx-sse.min.js"} {
		bundle.Write(f.byURL[f.url(name)].plain)
		bundle.WriteString("\n;\n")
	}
	return f.add(htmxBundle, bundle.Bytes())
}

func (f *files) add(name string, content []byte) error {
	var zipped bytes.Buffer
	writer, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := writer.Write(content); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	contentType := mime.TypeByExtension(path.Ext(name))
	if contentType == "" {
		contentType = "text/plain; charset=utf-8"
	}
	sum := sha256.Sum256(content)
	url := "/assets/" + hex.EncodeToString(sum[:6]) + "/" + name
	f.urls[name] = url
	f.byURL[url] = file{contentType: contentType, plain: content, zipped: zipped.Bytes()}
	return nil
}

// url returns the address of an embedded file. An unknown name is a mistake in
// a template, which any test of the page meets.
func (f *files) url(name string) string {
	url, ok := f.urls[name]
	if !ok {
		panic("webui: no embedded file " + name)
	}
	return url
}

// ServeHTTP implements http.Handler.
func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, ok := f.byURL[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Type", found.contentType)
	header.Set("Cache-Control", "public, max-age=31536000, immutable")
	header.Set("Vary", "Accept-Encoding")
	body := found.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		body = found.zipped
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		// The only possible error is a client that went away.
		_, _ = w.Write(body)
	}
}

// icons maps each vendored icon's name to the shapes inside its <svg>.
var icons = loadIcons()

var svgInside = regexp.MustCompile(`(?s)<svg[^>]*>(.*)</svg>`)

func loadIcons() map[string]template.HTML {
	names, err := fs.Glob(assets.Web(), "vendor/lucide/*.svg")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprintf("webui: no icons embedded: %v", err))
	}
	found := map[string]template.HTML{}
	for _, name := range names {
		content, err := fs.ReadFile(assets.Web(), name)
		if err != nil {
			panic(err)
		}
		inside := svgInside.FindSubmatch(content)
		if inside == nil {
			panic("webui: " + name + " is no SVG")
		}
		// Vendored and committed, so trusted as markup.
		found[strings.TrimSuffix(path.Base(name), ".svg")] = template.HTML(bytes.TrimSpace(inside[1]))
	}
	return found
}
