package manifest

import (
	"bytes"
	"strings"
	"testing"
)

var sum = strings.Repeat("ab", 32)

func TestRoundTrip(t *testing.T) {
	m := New([]File{
		{Name: "k3s", SHA256: sum, Size: 3, Mode: 0o755, Version: "v1"},
		{Name: "kubectl", Link: "k3s"},
		{Name: "simdriver/libcuda.so.1+b", SHA256: sum, Size: 4, Mode: 0o644},
	})
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := back.Encode()
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("came back as\n%s(%v)\nwant\n%s", again, err, text)
	}
	if got := back.TotalSize(); got != 7 {
		t.Errorf("total size %d, want 7", got)
	}
}

func TestDecodeRefuses(t *testing.T) {
	file := func(name string) string {
		return `{"name":"` + name + `","sha256":"` + sum + `","mode":493}`
	}
	tests := []struct{ name, text, want string }{
		{"no JSON", `x`, "read the manifest"},
		{"another format", `{"format":2}`, "format 2"},
		{"nothing in it", `{"format":1}`, "no files"},
		{"absolute", `{"format":1,"files":[` + file("/etc/passwd") + `]}`, "relative"},
		{"parent", `{"format":1,"files":[` + file("a/../../b") + `]}`, "relative"},
		{"hidden", `{"format":1,"files":[` + file(".lock") + `]}`, "begins with a dot"},
		{"backslash", `{"format":1,"files":[` + file(`a\\b`) + `]}`, "letters"},
		{"line break", `{"format":1,"files":[` + file(`a\n`) + `]}`, "letters"},
		{"twice", `{"format":1,"files":[` + file("a") + `,` + file("a") + `]}`, "twice"},
		{"itself", `{"format":1,"files":[` + file(Name) + `]}`, "twice"},
		{"file and folder", `{"format":1,"files":[` + file("a/b") + `,` + file("a") + `]}`, "as a file and as a folder"},
		{"sum", `{"format":1,"files":[{"name":"a","sha256":"00","mode":493}]}`, "64 hexadecimal"},
		{"size", `{"format":1,"files":[{"name":"a","sha256":"` + sum + `","mode":493,"size":-1}]}`, "negative"},
		{"setuid", `{"format":1,"files":[{"name":"a","sha256":"` + sum + `","mode":2541}]}`, "mode"},
		{"link away", `{"format":1,"files":[{"name":"a","link":"../../etc/passwd"}]}`, "leaves the folder"},
		{"link to nothing", `{"format":1,"files":[{"name":"a","link":"b"}]}`, "no entry before it"},
		{"link with content", `{"format":1,"files":[` + file("b") + `,{"name":"a","link":"b","size":1}]}`, "no content"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Decode([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one about %q", err, test.want)
			}
		})
	}
}
