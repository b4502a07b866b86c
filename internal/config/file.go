package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Save writes the configuration with the documentation of each key, in one step, if the file would change.
func Save(path string, c Config) (changed bool, err error) {
	content, err := c.file()
	if err != nil {
		return false, err
	}
	if changed, err = atomicfile.Update(path, content, 0o644, 0o755); err != nil {
		return false, fmt.Errorf("the configuration: %w", err)
	}
	return changed, nil
}

// file returns the content of the file.
func (c *Config) file() ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("# gpulab's configuration. Every key may be left out. After a change: gpulab init\n")
	all := keys()
	for _, k := range all {
		above := strings.Count(k.path, ".")
		indent := strings.Repeat("  ", above)
		if above == 0 {
			out.WriteString("\n")
		}
		if k.doc != "" {
			out.WriteString(prefixed(indent+"# ", k.doc))
		}
		value, name := c.field(k.path), k.path[strings.LastIndex(k.path, ".")+1:]
		if k.isSection(all) {
			fmt.Fprintf(&out, "%s:\n", name)
			continue
		}
		text, err := written(value)
		if err != nil {
			return nil, fmt.Errorf("the configuration: %s: %w", k.path, err)
		}
		if k.recent && c.isDefault(k.path) {
			indent += "# "
		}
		if strings.Contains(text, "\n") {
			text = "\n" + strings.TrimSuffix(prefixed(indent+"  ", text), "\n")
		} else {
			text = " " + text
		}
		fmt.Fprintf(&out, "%s%s:%s\n", indent, name, text)
	}
	return out.Bytes(), nil
}

// isDefault reports whether a key has the value that it would have if it were absent.
func (c *Config) isDefault(path string) bool {
	without := *c
	without.field(path).SetZero()
	without.SetDefaults()
	return reflect.DeepEqual(without.field(path).Interface(), c.field(path).Interface())
}

// isSection reports whether the table has keys below the key.
func (k *key) isSection(all []key) bool {
	return slices.ContainsFunc(all, func(other key) bool { return strings.HasPrefix(other.path, k.path+".") })
}

// prefixed puts the prefix in front of each line.
func prefixed(prefix, text string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimSuffix(text, "\n") + "\n") {
		out.WriteString(strings.TrimRight(prefix+line, " \n") + "\n")
	}
	return out.String()
}

// plain are texts that need no quotation marks.
var plain = regexp.MustCompile(`^([a-z]+(-[a-z]+)?|[0-9]+-[0-9]+)$`)

// notPlain are words that YAML reads as something else.
var notPlain = []string{"off", "on", "no", "yes", "n", "y", "false", "true", "null"}

// written returns a value in YAML: scalars and lists of them on one line, others on lines of their own.
func written(v reflect.Value) (string, error) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch word := v.Interface().(type) {
	case Word, Ports:
		if text := fmt.Sprint(word); plain.MatchString(text) && !slices.Contains(notPlain, text) {
			return text, nil
		}
	}
	switch {
	case isScalar(v.Type()) || v.Kind() == reflect.Slice && isScalar(v.Type().Elem()) && v.Len() > 0:
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		err := e.Encode(v.Interface())
		return strings.ReplaceAll(strings.TrimSpace(out.String()), `","`, `", "`), err
	case v.Kind() == reflect.Slice && v.Len() == 0:
		return "[]", nil
	case v.Kind() == reflect.Map && v.Len() == 0 || v.IsZero():
		return "{}", nil
	}
	text, err := yaml.Marshal(v.Interface())
	return strings.TrimSpace(string(text)), err
}

// isScalar reports whether values of a type are written as one text or number.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int:
		return true
	}
	return t.Implements(reflect.TypeFor[json.Marshaler]())
}
