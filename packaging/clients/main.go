// Command clients builds gpulab's commands for people's own computers, for each system, and packs them into the folder
// from which assets embeds them: one compressed file each, and index.json, which says what they are.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// targets are the systems that people's computers have.
var targets = []struct{ os, arch string }{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}, {"darwin", "amd64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// A build is one program in index.json.
type build struct {
	File   string `json:"file"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Size   int64  `json:"size"`   // bytes, as people get it
	SHA256 string `json:"sha256"` // of that
}

func main() {
	out := flag.String("out", "assets/clients", "folder to write to")
	version := flag.String("version", "", "version of this build")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, version string) (err error) {
	told := progress.New(os.Stdout)
	defer told.Close()
	shown := told.Begin("clients")
	defer func() {
		if err != nil {
			shown.Failed()
		}
	}()
	scratch, err := os.MkdirTemp("", "gpulab-clients-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	before := readIndex(out)
	flags := "-s -w"
	if version != "" {
		flags += " -X github.com/gpulab/gpulab/internal/version.Version=" + version
	}
	var index []build
	packed := int64(0)
	for _, t := range targets {
		b := build{File: "gpulab-" + t.os + "-" + t.arch, OS: t.os, Arch: t.arch}
		if t.os == "windows" {
			b.File += ".exe"
		}
		program := filepath.Join(scratch, b.File)
		compiling := gobuild.Build{
			Env:      append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch),
			Flags:    []string{"-ldflags", flags},
			Packages: []string{"./cmd/gpulab-client"},
			Out:      program,
			For:      t.os + "/" + t.arch,
		}
		if err := compiling.Run(ctx, shown, os.Stderr); err != nil {
			return fmt.Errorf("%s/%s: %w", t.os, t.arch, err)
		}
		size, err := pack(program, filepath.Join(out, b.File+".zst"), &b, before)
		if err != nil {
			return err
		}
		packed += size
		index = append(index, b)
	}
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(out, "index.json"), append(text, '\n')); err != nil {
		return err
	}
	shown.Done("%d systems, %.1f MB packed", len(index), float64(packed)/1e6)
	return removeOthers(out, index)
}

// pack compresses a program, unless it is the one that lies there already, and returns the compressed size.
func pack(program, path string, b *build, before []build) (int64, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(content)
	b.Size, b.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	if info, err := os.Stat(path); err == nil {
		for _, old := range before {
			if old == *b {
				return info.Size(), nil
			}
		}
	}
	var packed bytes.Buffer
	writer, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return 0, err
	}
	_, err = writer.Write(content)
	if err = errors.Join(err, writer.Close()); err != nil {
		return 0, err
	}
	return int64(packed.Len()), replace(path, packed.Bytes())
}

// readIndex is what was built before; none is nothing.
func readIndex(out string) []build {
	text, err := os.ReadFile(filepath.Join(out, "index.json"))
	if err != nil {
		return nil
	}
	var index []build
	if json.Unmarshal(text, &index) != nil {
		return nil
	}
	return index
}

// replace writes a file whole or not at all.
func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// removeOthers takes programs away that are built no more.
func removeOthers(out string, index []build) error {
	return filepath.WalkDir(out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".zst" {
			return err
		}
		for _, b := range index {
			if strings.TrimSuffix(entry.Name(), ".zst") == b.File {
				return nil
			}
		}
		return os.Remove(path)
	})
}
