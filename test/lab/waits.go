package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// waited is how long this program's tests have waited for something to become so.
var waited atomic.Int64

// NoteWait adds the time since then to what the tests have waited.
func NoteWait(since time.Time) { waited.Add(int64(time.Since(since))) }

// TellWaits prints what the tests have waited so far, in seconds, as the attribute "waited" of a test.
func TellWaits(t testing.TB) {
	t.Attr("waited", fmt.Sprintf("%.1f", time.Duration(waited.Load()).Seconds()))
}

// Begin waits until no other test makes or starts a lab, whichever program it is of: that takes all the processors
// there are, and several at once would come near to the patience of each. It keeps others waiting until end is called.
func Begin(t testing.TB) (end func()) {
	t.Helper()
	return Lock(t, filepath.Join(os.TempDir(), "gpulab-test-begin.lock"))
}
