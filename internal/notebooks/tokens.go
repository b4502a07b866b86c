package notebooks

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// dropTokens removes access tokens of gpulab, which a program may send by mistake to a notebook or service: with one,
// its owner could act as the visitor. Other credentials are for the program.
func dropTokens(h http.Header) {
	kept := slices.DeleteFunc(h["Authorization"], carriesToken)
	if len(kept) == 0 {
		delete(h, "Authorization")
		return
	}
	h["Authorization"] = kept
}

// carriesToken looks at a value of the header Authorization, whatever its scheme.
func carriesToken(value string) bool {
	if users.HoldsToken(value) {
		return true
	}
	scheme, credentials, _ := strings.Cut(strings.TrimSpace(value), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return false
	}
	plain := strings.NewReplacer("-", "+", "_", "/", "=", "").Replace(strings.TrimSpace(credentials))
	pair, err := base64.RawStdEncoding.DecodeString(plain)
	return err == nil && users.HoldsToken(string(pair))
}
