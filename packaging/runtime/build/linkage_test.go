package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestLinkage(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		flags, want string
		linkage     linkage
	}{
		{"-static", "", nothing},
		{"-Wl,-z,lazy", "linked statically", nothing},
		{"-Wl,-z,lazy", "", lazyOnLibc},
		{"-Wl,-z,now", "at its start", lazyOnLibc},
		{"-Wl,-z,lazy -Wl,--no-as-needed -lm", "libc.so.6 only", lazyOnLibc},
		{"-Wl,-z,now", "", anything},
	}
	for _, test := range tests {
		t.Run(test.flags, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "program")
			args := append([]string{"-o", program, source}, strings.Fields(test.flags)...)
			if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
				t.Fatalf("gcc %v: %v\n%s", args, err, out)
			}
			err := test.linkage.check(program)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	if nothing.check(source) == nil {
		t.Error("a file that is no program passed")
	}
}
