// Package journal writes the log to systemd's journal, with a priority and
// fields of its own, or as text where no journal listens.
//
// Every line says which part of gpulab it is from: the name of the package
// that wrote it. It imports no other package of gpulab.
package journal

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"runtime"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// Identifier marks gpulab's own lines (SYSLOG_IDENTIFIER).
const Identifier = "gpulab"

// ComponentField holds the part of gpulab that a line is from.
const ComponentField = "GPULAB_COMPONENT"

// ComponentKey is the same in a text.
const ComponentKey = "component"

// Handler is where the log goes: to the journal if that is where the standard
// error output of this program leads, as text to out otherwise.
func Handler(out io.Writer) slog.Handler {
	if Listens() {
		return &handler{}
	}
	return &named{slog.NewTextHandler(out, nil)}
}

// Listens tells whether systemd's journal reads what this program writes.
func Listens() bool {
	is, err := journal.StderrIsJournalStream()
	return err == nil && is && journal.Enabled()
}

// Component names the part of gpulab that a program counter lies in: "charts",
// "notebooks", or "gpulab" for what wires them together; "" for others' code.
func Component(pc uintptr) string {
	if pc == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	// github.com/gpulab/gpulab/internal/charts.(*Manager).Apply, main.run
	dir, name := path.Split(frame.Function)
	pkg, _, _ := strings.Cut(name, ".")
	switch {
	case pkg == "main" && dir == "", strings.HasSuffix(dir, "/cmd/"):
		return Identifier
	case strings.HasPrefix(dir, "github.com/gpulab/gpulab/internal/"):
		sub, _, _ := strings.Cut(strings.TrimPrefix(dir, "github.com/gpulab/gpulab/internal/")+pkg, "/")
		return sub
	}
	return ""
}

// named adds the component to a text.
type named struct{ slog.Handler }

func (n *named) Handle(ctx context.Context, r slog.Record) error {
	if c := Component(r.PC); c != "" {
		r = r.Clone()
		r.AddAttrs(slog.String(ComponentKey, c))
	}
	return n.Handler.Handle(ctx, r)
}

func (n *named) WithAttrs(attrs []slog.Attr) slog.Handler { return &named{n.Handler.WithAttrs(attrs)} }

func (n *named) WithGroup(name string) slog.Handler { return &named{n.Handler.WithGroup(name)} }

// handler sends records to the journal.
type handler struct {
	prefix string // of the keys that follow, from groups
	attrs  []slog.Attr
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.prefix, flatten(append([]slog.Attr(nil), h.attrs...), h.prefix, attrs)}
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.prefix + name + ".", h.attrs}
}

// flatten adds attributes with the names of their groups before their own.
func flatten(to []slog.Attr, prefix string, attrs []slog.Attr) []slog.Attr {
	for _, a := range attrs {
		a.Value = a.Value.Resolve()
		switch {
		case a.Equal(slog.Attr{}):
		case a.Value.Kind() == slog.KindGroup && a.Key == "":
			to = flatten(to, prefix, a.Value.Group())
		case a.Value.Kind() == slog.KindGroup:
			to = flatten(to, prefix+a.Key+".", a.Value.Group())
		default:
			to = append(to, slog.Attr{Key: prefix + a.Key, Value: a.Value})
		}
	}
	return to
}

// Handle sends one record. Its attributes stand in the message, for people, and
// as fields, for programs.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	attrs := append([]slog.Attr(nil), h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		attrs = flatten(attrs, h.prefix, []slog.Attr{a})
		return true
	})
	fields := map[string]string{"SYSLOG_IDENTIFIER": Identifier}
	if c := Component(r.PC); c != "" {
		fields[ComponentField] = c
	}
	if r.PC != 0 {
		frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		fields["CODE_FILE"], fields["CODE_LINE"], fields["CODE_FUNC"] = frame.File, strconv.Itoa(frame.Line), frame.Function
	}
	var message strings.Builder
	message.WriteString(r.Message)
	for _, a := range attrs {
		text := a.Value.String()
		fmt.Fprintf(&message, " %s=%s", a.Key, quoted(text))
		fields[fieldOf(a.Key)] = text
	}
	if err := journal.Send(message.String(), priority(r.Level), fields); err != nil {
		return fmt.Errorf("the journal: %w", err)
	}
	return nil
}

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// words are attributes that have a name of their own as a field.
var words = map[string]string{"err": "ERROR", "handle": "USER", "server": "NOTEBOOK"}

// fieldOf is the journal's name for an attribute: capital letters, digits and
// underscores, and at most 64 of them.
func fieldOf(key string) string {
	if word := words[key]; word != "" {
		key = word
	}
	name := "GPULAB_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	return name[:min(len(name), 64)]
}

// quoted writes a value so that it is seen where it ends.
func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, " =\"\n\r\t") || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}
