package journal

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

// followEvery is how often a followed file is looked at.
const followEvery = time.Second

// longest is how much of a line is passed on, in bytes.
const longest = 16 << 10

// Follow passes on to the journal, under an identifier of its own, what a child
// process writes to its log file from now on, until ctx ends. The child writes
// to the file itself, because it may outlive gpulab. Without a journal it
// returns at once.
func Follow(ctx context.Context, file, identifier string) error {
	if !Listens() {
		return nil
	}
	var at int64
	if info, err := os.Stat(file); err == nil {
		at = info.Size()
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		at = passOn(file, at, identifier)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// passOn sends what stands in the file behind an offset, in whole lines, and
// returns the offset behind them. A file that has become shorter is read anew.
func passOn(file string, at int64, identifier string) int64 {
	f, err := os.Open(file)
	if err != nil {
		return 0 // it is not there yet, or was rotated
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() < at {
		at = 0
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return at
	}
	in := bufio.NewReaderSize(f, longest)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
			at += int64(len(line))
			if text := strings.TrimRight(string(line), "\r\n"); text != "" {
				_ = journal.Send(text, levelOf(text), map[string]string{
					"SYSLOG_IDENTIFIER": identifier, ComponentField: identifier,
				})
			}
		default:
			return at // the rest of a line comes later
		}
	}
}

// The beginnings of Kubernetes' lines, such as W0302 10:20:30.000000, and the
// level in those of k3s and containerd.
var (
	klogLine   = regexp.MustCompile(`^([IWEF])\d{4} \d\d:`)
	levelField = regexp.MustCompile(`\blevel=(\w+)`)
)

// levelOf reads how grave a line is that another program wrote.
func levelOf(line string) journal.Priority {
	level := ""
	if m := klogLine.FindStringSubmatch(line); m != nil {
		level = m[1]
	} else if m := levelField.FindStringSubmatch(line); m != nil {
		level = m[1]
	}
	switch level {
	case "F", "fatal", "panic":
		return journal.PriCrit
	case "E", "error":
		return journal.PriErr
	case "W", "warning", "warn":
		return journal.PriWarning
	case "debug", "trace":
		return journal.PriDebug
	}
	return journal.PriInfo
}
