package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name of a file that file systems take, in bytes.
const maxName = 255

var partialPattern = regexp.MustCompile(`\.[0-9a-f]{8}\.partial$`)

// partialName is the name under which a file is copied. It is the same for the same source only, so nothing is ever
// put together of two.
func partialName(of entry, name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", name, of.size, of.exact))
	end := "." + hex.EncodeToString(sum[:4]) + ".partial"
	if most := maxName - len(end); len(name) > most {
		for most > 0 && !utf8.RuneStart(name[most]) {
			most--
		}
		name = name[:most]
	}
	return name + end
}

// isPartialOf reports whether a name is that of some incomplete copy of a file.
func isPartialOf(candidate, name string) bool {
	at := partialPattern.FindStringIndex(candidate)
	return at != nil && candidate[:at[0]] == name
}

// checkName refuses names that a lab could send to write elsewhere than into its folder, or that this system cannot
// have.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is no name of a file", name)
	case !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator):
		return fmt.Errorf("this computer cannot have a file named %q; rename it in the lab", name)
	}
	return nil
}
