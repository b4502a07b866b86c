package sftpd

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/pkg/sftp"
)

// BenchmarkUpload is how fast a file comes in over the loopback, client included, beside writing it to the disk.
func BenchmarkUpload(b *testing.B) {
	const size = 256 << 20
	text := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	b.Run("disk", func(b *testing.B) {
		b.SetBytes(size)
		path := filepath.Join(b.TempDir(), "x")
		for b.Loop() {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sftp", func(b *testing.B) {
		w := newWorld(b, Limits{})
		w.person("ada")
		conn := w.connect("ada")
		c, err := sftp.NewClient(conn)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		b.SetBytes(size)
		for b.Loop() {
			f, err := c.Create("x")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := f.ReadFromWithConcurrency(bytes.NewReader(text), 64); err != nil {
				b.Fatal(err)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSession is how long it takes from a connection until a session answers.
func BenchmarkSession(b *testing.B) {
	w := newWorld(b, Limits{})
	w.person("ada")
	conn := w.connect("ada")
	for b.Loop() {
		c, err := sftp.NewClient(conn)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Getwd(); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}
