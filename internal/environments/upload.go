package environments

import (
	"io"
	"net/http"
	"time"
)

// stalled is how long a sender may be silent while a file comes over HTTP.
const stalled = time.Minute

// Received reads a file that somebody sends in a request: for as long as it keeps coming, not for as long as a server
// gives forms.
func Received(w http.ResponseWriter, body io.Reader) io.Reader {
	return &received{body, http.NewResponseController(w)}
}

type received struct {
	io.Reader
	control *http.ResponseController
}

func (r *received) Read(p []byte) (int, error) {
	// Not every server has deadlines (tests).
	_ = r.control.SetReadDeadline(time.Now().Add(stalled))
	return r.Reader.Read(p)
}
