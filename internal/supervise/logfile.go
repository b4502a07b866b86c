package supervise

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxLog is the size in bytes from which a log file is moved to NAME.1; two of
// them are kept at most.
const maxLog = 32 << 20

// OpenLog opens a log file for appending, which begins anew when it is full.
func OpenLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	trimLog(path)
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// trimLog copies a full log file to NAME.1 and empties it. It copies instead
// of renaming because the child holds the file open.
func trimLog(path string) {
	info, err := os.Stat(path)
	if err != nil || info.Size() < maxLog {
		return
	}
	if err := copyFile(path, path+".1"); err != nil {
		slog.Warn("a log file could not be kept", "path", path, "err", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		slog.Warn("a log file could not be emptied", "path", path, "err", err)
	}
}

// keepLogSmall trims the log file while the child runs.
func (c *Child) keepLogSmall(done <-chan struct{}) {
	if c.spec.LogFile != "" {
		KeepLogSmall(c.spec.LogFile, done)
	}
}

// KeepLogSmall looks after a log file that was opened with OpenLog, until done is closed.
func KeepLogSmall(path string, done <-chan struct{}) {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			trimLog(path)
		}
	}
}

// tail returns the last n lines of a file, looking at its last 64 KiB only.
func tail(path string, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 64<<10 {
		_, _ = f.Seek(-64<<10, io.SeekEnd)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
