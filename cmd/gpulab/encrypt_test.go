package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/wireguard"
)

func TestEncryptionSentence(t *testing.T) {
	for _, c := range []struct {
		wanted bool
		told   toldEncryption
		want   string // part of it, "" for none
	}{
		{false, toldEncryption{}, ""},
		{true, toldEncryption{encrypts: true}, ""},
		{true, toldEncryption{}, "gpu-two does not encrypt yet"},
		{true, toldEncryption{encrypts: true, cannot: true}, "The kernel of gpu-two has no WireGuard"},
		{false, toldEncryption{encrypts: true}, "gpu-two still encrypts"},
	} {
		if got := encryptionSentence("gpu-two", c.wanted, c.told); got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("wanted %v, told %+v: %q", c.wanted, c.told, got)
		}
	}
}

// A machine keeps what the head wants, tells what it cannot, and does not look
// outdated for it.
func TestMachineFollowsEncryption(t *testing.T) {
	file := &joinedFile{Name: "gpu-two", path: filepath.Join(t.TempDir(), "node.json"), Settings: nodeapi.Settings{DataDir: t.TempDir()}}
	g := &agent{file: file}
	before, err := file.inputs()
	if err != nil {
		t.Fatal(err)
	}
	g.encrypt(true)
	if text, err := os.ReadFile(file.path); err != nil || !strings.Contains(string(text), `"encrypt": true`) {
		t.Errorf("what is kept: %v\n%s", err, text)
	}
	if cannot := wireguard.Look("/") != nil; g.cannotEncrypt != cannot || !g.encrypts() {
		t.Errorf("it cannot: %v, and tells %v", cannot, g.cannotEncrypt)
	}
	if after, err := file.inputs(); err != nil || after != before {
		t.Errorf("it looks as if started with other settings: %v", err)
	}
	g.encrypt(false)
	if g.cannotEncrypt || g.encrypts() {
		t.Error("it still encrypts")
	}
}
