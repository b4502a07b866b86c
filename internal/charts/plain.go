package charts

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var (
	// A template's own fail: what stands before it are places in the chart.
	failed = regexp.MustCompile(`(?s)^execution error at \([^)]*\): (.*)$`)

	// One finding of the schema: - at '/hub/db': additional properties 'x' not allowed
	finding = regexp.MustCompile(`^\s*- at '([^']*)': (.*)$`)
	unknown = regexp.MustCompile(`^additional properties (.*) not allowed$`)
)

// plain turns what Helm says about values into sentences for whoever wrote
// them: what is refused by a template comes without the place in the template,
// what is against the schema with the value's name as people write it.
func plain(err error) error {
	if err == nil {
		return nil
	}
	if m := failed.FindStringSubmatch(err.Error()); m != nil {
		return errors.New(m[1])
	}
	if !strings.Contains(err.Error(), "specifications of the schema") {
		return err
	}
	var said []string
	for _, line := range strings.Split(err.Error(), "\n") {
		if m := finding.FindStringSubmatch(line); m != nil {
			said = append(said, schemaFinding(m[1], m[2]))
		}
	}
	if said == nil {
		return err
	}
	return errors.New(strings.Join(said, "\n"))
}

// schemaFinding says one finding about the value at a JSON pointer.
func schemaFinding(pointer, what string) string {
	name := strings.ReplaceAll(strings.Trim(pointer, "/"), "/", ".")
	if m := unknown.FindStringSubmatch(what); m != nil {
		var names []string
		for _, quoted := range strings.Split(m[1], ", ") {
			names = append(names, strings.Trim(name+"."+strings.Trim(quoted, "'"), "."))
		}
		if len(names) == 1 {
			return names[0] + ": gpulab's chart has no such value; leave it out."
		}
		return strings.Join(names, ", ") + ": gpulab's chart has no such values; leave them out."
	}
	if name == "" {
		return what + "."
	}
	return fmt.Sprintf("%s: %s.", name, what)
}
