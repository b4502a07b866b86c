package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// fill sets everything below v to something of its own that is no zero value.
func fill(t *testing.T, v reflect.Value, path string, n *int) {
	t.Helper()
	*n++
	switch v.Addr().Interface().(type) {
	case *Duration:
		v.Set(reflect.ValueOf(newDuration(fmt.Sprintf("%dm", *n))))
		return
	case *Size:
		v.Set(reflect.ValueOf(newSize(fmt.Sprintf("%dGi", *n))))
		return
	case *Prefix:
		v.Set(reflect.ValueOf(newPrefix(fmt.Sprintf("10.%d.0.0/16", *n))))
		return
	case *Ports:
		v.Set(reflect.ValueOf(newPorts(fmt.Sprintf("%d-%d", 9000+*n, 9500+*n))))
		return
	case *Day:
		v.Set(reflect.ValueOf(newDay(fmt.Sprintf("20%02d-10-12", *n%100))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("it's \"%d\" # %s", *n, path))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), path, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), path, n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, path, n)
			fill(t, value, path, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("json") != "-" {
				fill(t, v.Field(i), path+"."+f.Name, n)
			}
		}
	default:
		t.Fatalf("%s is a %s, which this test cannot fill", path, v.Kind())
	}
}

// What init writes back is what it has read: the file is a text of its own, which
// may not forget a key.
func TestConfigIsWrittenWhole(t *testing.T) {
	var c Config
	n := 0
	fill(t, reflect.ValueOf(&c).Elem(), "Config", &n)
	c.LocalName = "vision" // it has no capital letters
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := Save(path, c); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got Config
	if err := yaml.UnmarshalStrict(text, &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if reflect.DeepEqual(c, got) {
		return
	}
	for i, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if want, got := reflect.ValueOf(c).Field(i).Interface(), reflect.ValueOf(got).Field(i).Interface(); !reflect.DeepEqual(want, got) {
			t.Errorf("%s:\nwritten %+v\nread    %+v", f.Name, want, got)
		}
	}
}

// A gpulab of before refuses a configuration with keys that it does not know, and then no rollback leads to it.
func TestUpgradeWritesNoNewKey(t *testing.T) {
	for text, written := range map[string]bool{"lab: Physics\n": false, "servicePorts: 21000-21100\n": false, "notebookPorts: 24000-24999\n": true} {
		path := write(t, text)
		before, err := Load(path)
		mustDo(t, err)
		_, err = Save(path, before)
		mustDo(t, err)
		now, err := os.ReadFile(path)
		mustDo(t, err)
		if strings.Contains(string(now), "\nnotebookPorts:") != written {
			t.Errorf("%q has become\n%s", text, now)
		}
		if after, err := Load(path); err != nil || !reflect.DeepEqual(after.NotebookPorts, before.NotebookPorts) {
			t.Errorf("%q: %s, %v, want %s", text, after.NotebookPorts, err, before.NotebookPorts)
		}
	}
}

func TestConfigWithProfilesIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	const text = "gpuSharing: 3\nprofiles:\n  - slug: big\n    title: \"Large: 80 GiB\"\n    gpus: 1\n    gpuMemory: " +
		"80Gi\n    image: lab.example/torch:1\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Save(path, c); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Profiles) != 1 || again.Profiles[0] != c.Profiles[0] || again.Profiles[0].GPUMemory != "80Gi" ||
		again.Profiles[0].Image != "lab.example/torch:1" || again.GPUSharing != 3 {
		written, _ := os.ReadFile(path)
		t.Errorf("%+v\n%s", again.Profiles, written)
	}
	if changed, err := Save(path, again); err != nil || changed {
		t.Errorf("written again: %v, %v", changed, err)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll([]byte(text), []byte("slug: big"), []byte("slug: Big One")),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "Big One") {
		t.Errorf("a wrong profile: %v", err)
	}
}
