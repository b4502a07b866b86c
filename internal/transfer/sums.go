package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"unicode/utf8"
)

// sumsSubsystem is where a gpulab says what the checksum of a file is.
const sumsSubsystem = "gpulab-sums"

// sums asks for checksums over one session of a connection.
type sums struct {
	mu       sync.Mutex
	requests *json.Encoder
	replies  *json.Decoder
}

// openSums opens the session for checksums once per connection.
func (w *wire) openSums() (*sums, error) {
	session, err := w.ssh.NewSession()
	if err != nil {
		return nil, err
	}
	in, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := session.RequestSubsystem(sumsSubsystem); err != nil {
		_ = session.Close()
		if w.broke(err) {
			return nil, err
		}
		return nil, &Refusal{fmt.Errorf("this lab cannot compare checksums (%w); copy without --check", err)}
	}
	return &sums{requests: json.NewEncoder(in), replies: json.NewDecoder(io.LimitReader(out, 1<<30))}, nil
}

// sum asks for the SHA-256 of a file of the lab.
func (l lab) sum(ctx context.Context, path string) (sum string, err error) {
	err = l.link.with(ctx, func(w *wire) error {
		s, err := l.link.sumsOf(w)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		request := map[string]any{"path": path}
		if !utf8.ValidString(path) {
			request["bytes"] = []byte(path) // a JSON string cannot hold invalid UTF-8
		}
		if err := s.requests.Encode(request); err != nil {
			return err
		}
		var reply struct{ SHA256, Error string }
		if err := s.replies.Decode(&reply); err != nil {
			return err
		}
		if reply.Error != "" {
			return labError(reply.Error)
		}
		sum = reply.SHA256
		return nil
	})
	return sum, err
}

// labError is what the lab says of a file.
type labError string

func (e labError) Error() string { return string(e) }

func (l *link) sumsOf(w *wire) (*sums, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.sums == nil {
		s, err := w.openSums()
		if err != nil {
			return nil, err
		}
		w.sums = s
	}
	return w.sums, nil
}

func sumOfFile(_ context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	return sumOf(f)
}

func sumOfRooted(root *os.Root, path string) (string, error) {
	f, err := root.Open(filepath.FromSlash(path))
	if err != nil {
		return "", err
	}
	return sumOf(f)
}

func sumOf(f *os.File) (string, error) {
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	if _, err := io.CopyBuffer(hash, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
