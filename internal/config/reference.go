package config

import (
	"fmt"
	"strings"
)

// Reference returns docs/configuration.md: every key with its default and its documentation.
func Reference() (string, error) {
	var usual Config
	usual.setNumbers()
	usual.SetDefaults()
	var out strings.Builder
	out.WriteString(introduction)
	all := keys()
	for _, k := range all {
		depth := strings.Count(k.path, ".")
		fmt.Fprintf(&out, "\n%s `%s`\n", strings.Repeat("#", 2+depth), k.path)
		if !k.isSection(all) {
			value, err := written(usual.field(k.path))
			if err != nil {
				return "", err
			}
			if value != `""` && value != "[]" && value != "{}" && !k.recent {
				fmt.Fprintf(&out, "\nDefault: `%s`\n", value)
			}
		}
		out.WriteString(markdown(k.doc))
	}
	return out.String(), nil
}

var introduction = strings.ReplaceAll(`# Configuration

The head reads '`+DefaultPath+`'. Every key may be left out. After a change, run 'sudo gpulab init'.
It checks the file, names the line of a mistake, writes the file back with the comments below and restarts the lab.
Notebooks keep running. 'gpulab config check' checks the file and changes nothing.
A joined machine has no such file: it gets its settings from the head.

Times are written as '90s', '30m' or '168h', sizes as '500Mi' or '20Gi'.
`, "'", "`")

// markdown returns a key's documentation with its example as a block of code.
func markdown(doc string) string {
	var prose, example []string
	for line := range strings.SplitSeq(doc, "\n") {
		if strings.HasPrefix(line, "  ") {
			example = append(example, line[2:])
		} else if line != "" {
			prose = append(prose, line)
		}
	}
	var out strings.Builder
	if len(prose) > 0 {
		out.WriteString("\n" + strings.Join(prose, "\n") + "\n")
	}
	if len(example) > 0 {
		out.WriteString("\n```yaml\n" + strings.Join(example, "\n") + "\n```\n")
	}
	return out.String()
}
