package client

import (
	"bytes"
	"io"
	"regexp"
	"unicode/utf8"
)

// saneWriter lets a program's lines and colours through to a terminal, and nothing else that would control it.
type saneWriter struct {
	out  io.Writer
	rest []byte // the beginning of what is not complete
}

// colour is a sequence that changes how text looks; what may become one is begun.
var (
	colour = regexp.MustCompile(`^\x1b\[[0-9;:]{0,40}m`)
	begun  = regexp.MustCompile(`^\x1b(\[[0-9;:]{0,40})?$`)
)

func (w *saneWriter) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	w.rest = nil
	var b bytes.Buffer
	for len(text) > 0 {
		if text[0] == '\x1b' {
			if begun.Match(text) {
				break
			}
			n := max(1, len(colour.Find(text)))
			if n > 1 {
				b.Write(text[:n])
			}
			text = text[n:]
			continue
		}
		if !utf8.FullRune(text) {
			break
		}
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteRune(r)
		case r < ' ' || r >= 0x7f && r < 0xa0:
		case r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069: // turn the direction of writing
		default:
			b.WriteRune(r) // what is no UTF-8 becomes U+FFFD
		}
		text = text[n:]
	}
	w.rest = bytes.Clone(text)
	_, err := w.out.Write(b.Bytes())
	return len(p), err
}
