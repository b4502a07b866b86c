package config

import (
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

// paths collects the keys of a struct, without those of lists and maps and of other packages' types.
func paths(of reflect.Type, above string) (list []string) {
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() {
			continue
		}
		path := strings.TrimPrefix(above+"."+name, ".")
		if f.Type.Kind() == reflect.Struct && !isScalar(f.Type) && f.Type.PkgPath() == of.PkgPath() {
			list = append(list, paths(f.Type, path)...)
		} else {
			list = append(list, path)
		}
	}
	return list
}

// Each key that the file may have is in the table once, with documentation of its own or of its section, and each
// default is one that Check accepts.
func TestKeys(t *testing.T) {
	var leaves []string
	documented := map[string]bool{}
	all := keys()
	for _, k := range all {
		documented[k.path] = k.doc != ""
		if !k.isSection(all) {
			leaves = append(leaves, k.path)
			section, _, _ := strings.Cut(k.path, ".")
			if !documented[k.path] && !documented[section] {
				t.Errorf("%s has no documentation", k.path)
			}
		}
		for line := range strings.Lines(k.doc) {
			if len(line) > 110 {
				t.Errorf("%s: the line %q is too long for the file", k.path, line)
			}
		}
	}
	want := paths(reflect.TypeFor[Config](), "")
	slices.Sort(want)
	slices.Sort(leaves)
	if !slices.Equal(leaves, want) {
		t.Errorf("the table has\n%q, the file may have\n%q", leaves, want)
	}
	if _, err := Load(write(t, "")); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

// docs/configuration.md is what Reference returns. `go test ./internal/config -run Reference -update` writes it.
func TestReference(t *testing.T) {
	const path = "../../docs/configuration.md"
	want, err := Reference()
	mustDo(t, err)
	if *update {
		mustDo(t, os.WriteFile(path, []byte(want), 0o644))
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not up to date (%v); run: go test ./internal/config -run Reference -update", path, err)
	}
}
