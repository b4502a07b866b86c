package notebooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// LogPart is a piece of a job's log. Positions count all that the job has said.
type LogPart struct {
	Data []byte
	From int64 // where Data begins
	Next int64 // where the next piece begins
	// LeftOut is how many bytes between the position that was asked for and From
	// are not kept.
	LeftOut int64
}

// maxLogPart is how much one piece has at most, in bytes.
const maxLogPart = 256 << 10

// ErrNoLog says that the file of a job's log is not there, or is no file.
var ErrNoLog = errors.New("the log is not there")

// Log reads a job's log from a position on; a negative one counts from the end.
func (s *Service) Log(l Launch, from int64) (LogPart, error) {
	if l.IsArray() {
		return LogPart{}, ErrNoLog // its elements have
	}
	if l.Job == nil || s.cfg.Home == nil {
		return LogPart{}, ErrNotFound
	}
	return readLog(s.cfg.Home(l.UserID), l.Job.Output, from)
}

// readLog reads a file that somebody else controls: nothing outside of the home
// is opened, and nothing that is not a file.
func readLog(home, name string, from int64) (part LogPart, err error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return part, ErrNoLog
	}
	defer func() { _ = root.Close() }()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if errors.Is(err, fs.ErrNotExist) {
		return LogPart{From: max(from, 0), Next: max(from, 0)}, ErrNoLog
	}
	if err != nil {
		return part, ErrNoLog
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return part, ErrNoLog
	}
	return readPart(file, info.Size(), logHead, from)
}

// readPart reads from a log, of which something may be left out.
func readPart(file io.ReaderAt, size, head, from int64) (part LogPart, err error) {
	left := leftOut(file, size, head)
	cut := int64(0) // what the line that says so takes
	if left > 0 {
		cut = int64(len(fmt.Sprintf(logCut, 0)))
	}
	total := size - cut + left
	switch {
	case from < 0:
		from = max(0, total+from)
	case from > total: // it is another file than before
		from = 0
	}
	part.From = from
	if left > 0 && from >= head && from < head+left {
		part.From, part.LeftOut = head+left, head+left-from
	}
	at, most := part.From, int64(maxLogPart)
	switch {
	case left > 0 && part.From < head:
		most = min(most, head-part.From)
	case left > 0:
		at = part.From - left + cut
	}
	part.Data = make([]byte, max(0, min(most, size-at)))
	n, err := file.ReadAt(part.Data, at)
	part.Data = part.Data[:n]
	part.Next = part.From + int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return part, err
}

// leftOut is how many bytes a log has not kept.
func leftOut(file io.ReaderAt, size, head int64) int64 {
	line := make([]byte, len(fmt.Sprintf(logCut, 0)))
	if size < head+int64(len(line)) {
		return 0
	}
	if _, err := file.ReadAt(line, head); err != nil {
		return 0
	}
	digits := bytes.TrimPrefix(line, []byte("\n[gpulab left out "))
	n, err := strconv.ParseInt(string(digits[:min(20, len(digits))]), 10, 64)
	if err != nil || n <= 0 || fmt.Sprintf(logCut, n) != string(line) {
		return 0
	}
	return n
}
