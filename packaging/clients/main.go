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
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// A target is a system.
type target struct{ os, arch string }

// targets are the systems that people's computers have.
var targets = []target{
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

// file is the name that its program has.
func (t target) file() string {
	name := "gpulab-" + t.os + "-" + t.arch
	if t.os == "windows" {
		name += ".exe"
	}
	return name
}

// flags are those of its compiler, by flags of the linker.
func (t target) flags(linker string) []string {
	flags := []string{"-ldflags", linker}
	if t.os == "linux" { // others look names up as the system does, which knows more
		flags = append(flags, "-tags", gobuild.PureGo)
	}
	return flags
}

// wanted are all systems, or this machine's own and those that were built before.
func wanted(own bool, before []build) []target {
	if !own {
		return targets
	}
	var list []target
	for _, t := range targets {
		if t == (target{runtime.GOOS, runtime.GOARCH}) || has(before, t.file()) {
			list = append(list, t)
		}
	}
	return list
}

func main() {
	out := flag.String("out", "assets/clients", "folder to write to")
	version := flag.String("version", "", "version of this build")
	own := flag.Bool("own", false, "build for this machine's system, and for those that the folder has already")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *version, *own); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, version string, own bool) (err error) {
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
	for _, t := range wanted(own, before) {
		b := build{File: t.file(), OS: t.os, Arch: t.arch}
		program := filepath.Join(scratch, b.File)
		compiling := gobuild.Build{
			Env:      append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch),
			Flags:    t.flags(flags),
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
	systems := fmt.Sprintf("%d systems", len(index))
	if len(index) == 1 {
		systems = index[0].OS + "/" + index[0].Arch + " only"
	}
	shown.Done("%s, %.1f MB packed", systems, float64(packed)/1e6)
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
		if has(index, strings.TrimSuffix(entry.Name(), ".zst")) {
			return nil
		}
		return os.Remove(path)
	})
}

func has(index []build, file string) bool {
	return slices.ContainsFunc(index, func(b build) bool { return b.File == file })
}
