package notebooks

import (
	"encoding/base64"
	"io"
	"net/http"
	"testing"
)

// aToken has the form of gpulab's access tokens, and their checksum.
const aToken = "gpulab_0000000000000000000000000000000000000etOEM"

// An access token of gpulab reaches no notebook; all other credentials do.
func TestTokensStayHere(t *testing.T) {
	o := newOrigin(t)
	seen := make(chan []string, 1)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header["Authorization"]
		_, _ = io.WriteString(w, "hello")
	})
	pair := func(user, password string) string {
		return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	}
	for value, passes := range map[string]bool{
		"Bearer " + aToken:              false,
		"bEARER   " + aToken:            false,
		"token " + aToken:               false,
		aToken:                          false,
		"Basic " + pair("ada", aToken):  false,
		"basic  " + pair("ada", aToken): false,
		"BASIC " + base64.RawURLEncoding.EncodeToString([]byte("ö>?:"+aToken)): false,
		"Basic " + pair(aToken, ""):      false,
		"Basic " + pair("ada", "secret"): true,
		"Bearer abc":                     true,
		"Bearer gpulab_":                 true,
		"Bearer gpulab_a-token-that-the-service-made-by-itself-00": true,
		"Bearer " + aToken[:len(aToken)-1] + "X":                   true, // another checksum
		"token abc":                                                true,
	} {
		res, _ := o.get("/user/alice/gpu/api", cookie("alice-1"), header("Sec-Fetch-Mode", "cors"), header("Authorization", value))
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", value, res.StatusCode)
		}
		got := <-seen
		if passes && (len(got) != 1 || got[0] != value) || !passes && len(got) != 0 {
			t.Errorf("%q: the notebook sees %q", value, got)
		}
	}

	h := http.Header{"Authorization": {"Bearer abc", "Bearer " + aToken}}
	dropTokens(h)
	if got := h["Authorization"]; len(got) != 1 || got[0] != "Bearer abc" {
		t.Errorf("of two values remain %q", got)
	}
}
