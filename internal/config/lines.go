package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpulab/gpulab/internal/signin"
)

// withLine begins an error with the line of its mistake, where that is known. Sentences about a key begin with the key,
// as in "k3s.podMaxPids is 7".
func withLine(data []byte, problem error) error {
	var wrong *signin.ConfigError
	if errors.As(problem, &wrong) {
		return atLine(lineOf(data, "signin", wrong.Index, wrong.Key), problem)
	}
	key, _, _ := strings.Cut(problem.Error(), " ")
	return atLine(lineOfPath(data, strings.TrimSuffix(key, ":")), problem)
}

// lineOfPath returns the line of a key by its path, such as metrics.networks; 0 if it is absent.
func lineOfPath(data []byte, path string) int {
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return 0
	}
	line, at := 0, document.Content[0]
	for key := range strings.SplitSeq(path, ".") {
		name, value := child(at, key)
		if at.Kind == yaml.SequenceNode {
			name, value = onlyChild(at, key)
		}
		if name == nil {
			return 0
		}
		line, at = name.Line, value
	}
	return line
}

// onlyChild finds a key that exactly one entry of a list has; nil for none or several.
func onlyChild(list *yaml.Node, key string) (name, value *yaml.Node) {
	for _, entry := range list.Content {
		if n, v := child(entry, key); n != nil {
			if name != nil {
				return nil, nil
			}
			name, value = n, v
		}
	}
	return name, value
}

// atLine begins an error with its line; 0 is none.
func atLine(line int, err error) error {
	if line == 0 {
		return err
	}
	return fmt.Errorf("line %d: %w", line, err)
}

// lineOf returns the line of a key in an entry of a list, or of the entry if it has no such key; 0 without the entry.
func lineOf(data []byte, list string, index int, key string) int {
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return 0
	}
	_, entries := child(document.Content[0], list)
	if entries == nil || index >= len(entries.Content) {
		return 0
	}
	entry := entries.Content[index]
	if name, _ := child(entry, key); name != nil {
		return name.Line
	}
	return entry.Line
}

// lineOfKey returns the first line with a key of that name; 0 for none.
func lineOfKey(data []byte, key string) int {
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil {
		return 0
	}
	return firstKey(&document, key)
}

func firstKey(node *yaml.Node, key string) int {
	if name, _ := child(node, key); name != nil {
		return name.Line
	}
	for _, inside := range node.Content {
		if line := firstKey(inside, key); line != 0 {
			return line
		}
	}
	return 0
}

// child finds a key and its value in a mapping; nil for none.
func child(node *yaml.Node, key string) (name, value *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}
