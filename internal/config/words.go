package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"sigs.k8s.io/yaml"
)

// explain turns the YAML library's error into plain words.
func explain(data []byte, problem error) error {
	text := problem.Error()
	for _, of := range []string{
		"error unmarshaling JSON: ", "while decoding JSON: ", "json: ", "error converting YAML to JSON: ", "yaml: ",
		"unmarshal errors:",
	} {
		text = strings.TrimSpace(strings.TrimPrefix(text, of))
	}
	// The library returns its reasons only as text. Decode again to get them as values.
	plain, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return errors.New(text)
	}
	strict := json.NewDecoder(bytes.NewReader(plain))
	strict.DisallowUnknownFields()
	err = strict.Decode(new(Config))
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) && mistyped.Field == "" {
		return errors.New("it must consist of lines such as \"lab: Physics lab\"")
	}
	if mistyped != nil {
		return atLine(lineOfPath(data, mistyped.Field),
			fmt.Errorf("%s must be %s, and is %s", mistyped.Field, kindInWords(mistyped.Type), valueInWords(mistyped.Value)))
	}
	if err != nil {
		text = strings.TrimPrefix(err.Error(), "json: ")
	}
	if key, unknown := strings.CutPrefix(text, "unknown field "); unknown {
		key = strings.Trim(key, `"`)
		return atLine(lineOfKey(data, key), unknownKey(key))
	}
	return errors.New(text)
}

// unknownKey names the keys that may have been meant.
func unknownKey(key string) error {
	places := configKeys(reflect.TypeFor[Config](), "", map[string][]string{})
	if in := places[key]; len(in) > 0 && in[0] != "" {
		return fmt.Errorf("%s stands at a place where there is no such key; it belongs into %s", key,
			strings.Join(in, " or "))
	}
	var meant []string
	for known := range places {
		a, b := strings.ToLower(key), strings.ToLower(known)
		if a != "" && strings.HasPrefix(b, a) || levenshtein.ComputeDistance(a, b) <= 2 {
			meant = append(meant, known)
		}
	}
	if len(meant) > 0 {
		slices.Sort(meant)
		return fmt.Errorf("there is no key %s; did you mean %s?", key, strings.Join(meant, " or "))
	}
	return fmt.Errorf("there is no key %s", key)
}

// configKeys collects all keys, each with the keys above it; "" for the top level.
func configKeys(of reflect.Type, below string, places map[string][]string) map[string][]string {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || isScalar(of) {
		return places
	}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		places[name] = append(places[name], below)
		configKeys(of.Field(i).Type, name, places)
	}
	return places
}

// kindInWords names the values of a type.
func kindInWords(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "keys of its own, on lines that are further in"
	default:
		return "text"
	}
}

// valueInWords names the value that was found. JSON's words are "string", "number 2.5", "bool", "array" and "object".
func valueInWords(value string) string {
	if number, is := strings.CutPrefix(value, "number "); is {
		return number
	}
	switch value {
	case "string":
		return "text"
	case "number":
		return "a number"
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	default:
		return "keys of its own"
	}
}
