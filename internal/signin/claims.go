package signin

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// maxValues bounds what is read of one claim: nobody is in more groups.
const maxValues = 5000

// claimValues reads a claim as a list of texts. A dot in the path leads into an object, unless the name itself has it;
// lists on the way are all read. What is no text, number or yes and no is left out.
func claimValues(claims map[string]any, path string) []string {
	var out []string
	readClaim(claims, path, 0, &out)
	return out
}

// claimText is the first value of a claim, empty without one.
func claimText(claims map[string]any, path string) string {
	if values := claimValues(claims, path); len(values) > 0 {
		return strings.TrimSpace(values[0])
	}
	return ""
}

// claimTrue tells whether a claim says yes. Some providers write it as text.
func claimTrue(claims map[string]any, path string) bool {
	values := claimValues(claims, path)
	return len(values) == 1 && (values[0] == "true" || values[0] == "1")
}

// hasClaim reports whether a claim is there; it may be empty.
func hasClaim(claims map[string]any, path string) bool {
	if _, ok := claims[path]; ok {
		return true
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		if inner, ok := claims[path[:i]].(map[string]any); ok {
			return hasClaim(inner, path[i+1:])
		}
	}
	return false
}

func readClaim(value any, path string, depth int, out *[]string) {
	if depth > 16 || len(*out) >= maxValues {
		return
	}
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			readClaim(v, path, depth+1, out)
		}
	case map[string]any:
		if path == "" {
			return
		}
		if v, ok := value[path]; ok {
			readClaim(v, "", depth+1, out)
			return
		}
		for i := range len(path) {
			if path[i] != '.' {
				continue
			}
			if v, ok := value[path[:i]]; ok {
				readClaim(v, path[i+1:], depth+1, out)
				return
			}
		}
	default:
		if text, ok := scalar(value); ok && path == "" {
			*out = append(*out, text)
		}
	}
}

func scalar(value any) (string, bool) {
	switch value := value.(type) {
	case string:
		return value, true
	case bool:
		return strconv.FormatBool(value), true
	case json.Number:
		return value.String(), true
	case float64:
		if value != math.Trunc(value) || math.Abs(value) > 1<<53 {
			return "", false // a number that was rounded is somebody else's
		}
		return strconv.FormatFloat(value, 'f', -1, 64), true
	}
	return "", false
}
