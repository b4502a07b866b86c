package notebooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

// codeLife is how long a browser has from gpulab's pages to a label.
const codeLife = time.Minute

// Labels are the DNS names of people's notebooks, such as n21042.lab.example.org in a
// lab with the wildcard name *.lab.example.org. The number is the person's port, so a
// label never becomes another person's either. A nil Labels has none.
//
// A session's cookie is for one host, so a label has a cookie of its own. It holds a
// child credential: the session's ID with a MAC over it and the label. It counts at
// this label and nowhere else, and ends with its session.
type Labels struct {
	bases     []string
	httpsPort int
	key       []byte
	sessions  func(ctx context.Context, id string) (users.Session, error)
	now       func() time.Time
}

// NewLabels returns the labels below bases, which are names of gpulab's pages, at
// httpsPort. key signs credentials and must outlast restarts. sessions finds a session
// by its ID.
func NewLabels(bases []string, httpsPort int, key []byte,
	sessions func(context.Context, string) (users.Session, error)) *Labels {
	l := &Labels{httpsPort: httpsPort, key: key, sessions: sessions, now: time.Now}
	for _, base := range bases {
		l.bases = append(l.bases, strings.ToLower(base))
	}
	return l
}

// name is the label of a port for those who use gpulab's pages under base.
func (l *Labels) name(base string, port int) (name string, ok bool) {
	base = strings.ToLower(base)
	if l == nil || !slices.Contains(l.bases, base) {
		return "", false
	}
	return "n" + strconv.Itoa(port) + "." + base, true
}

// parse finds the port of a label, and the name of gpulab's pages that it belongs to.
func (l *Labels) parse(host string) (port int, base string, ok bool) {
	host = strings.ToLower(host)
	first, base, _ := strings.Cut(host, ".")
	number, _ := strings.CutPrefix(first, "n")
	port, err := strconv.Atoi(number)
	if err != nil || port <= 0 {
		return 0, "", false
	}
	name, ok := l.name(base, port)
	return port, base, ok && name == host // one way to write it: "n021042" and "n+1" are others
}

// authority is where the notebooks of a port are for those who use gpulab under host.
func (l *Labels) authority(host string, port int) string {
	host = strings.Trim(host, "[]")
	if name, ok := l.name(host, port); ok {
		return authorityAt(name, l.httpsPort)
	}
	return authorityAt(host, port)
}

// authorityAt writes a host and its port as browsers do.
func authorityAt(host string, port int) string {
	switch {
	case port != 443:
		return net.JoinHostPort(host, strconv.Itoa(port))
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	}
	return host
}

// mac signs parts that contain no zero byte.
func (l *Labels) mac(parts ...string) string {
	m := hmac.New(sha256.New, l.key)
	_, _ = m.Write([]byte(strings.Join(parts, "\x00")))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func sameText(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// child is the credential that stands for a session at a label.
func (l *Labels) child(label, session string) string {
	return session + "." + l.mac("child", label, session)
}

// childOf returns the ID of the session that a credential stands for at a label.
func (l *Labels) childOf(label, credential string) (session string, ok bool) {
	session, _, _ = strings.Cut(credential, ".")
	return session, session != "" && sameText(credential, l.child(label, session))
}

// code lets the browser that holds a nonce into a label with a session, for a minute.
func (l *Labels) code(label, session, nonceHash string) string {
	return l.signedCode(label, session, nonceHash, strconv.FormatInt(l.now().Add(codeLife).Unix(), 10))
}

func (l *Labels) signedCode(label, session, nonceHash, until string) string {
	return strings.Join([]string{session, until, l.mac("code", label, session, nonceHash, until)}, ".")
}

// redeem returns the ID of the session of a code.
func (l *Labels) redeem(code, label, nonceHash string) (session string, ok bool) {
	parts := strings.Split(code, ".")
	if len(parts) != 3 || !sameText(code, l.signedCode(label, parts[0], nonceHash, parts[1])) {
		return "", false
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	return parts[0], err == nil && l.now().Unix() <= until
}

func hashOf(nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// arrival is where a request has come in: at a person's notebooks.
type arrival struct {
	port int // of the person
	// label and base are empty at a port, see [Labels].
	label, base string
}

type arrivalKey struct{}

func arrivalOf(r *http.Request) (o arrival, personal bool) {
	o, personal = r.Context().Value(arrivalKey{}).(arrival)
	return o, personal
}

func at(o arrival, next http.Handler, w http.ResponseWriter, r *http.Request) {
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrivalKey{}, o)))
}

// AtPort says that requests come in at the port of a person's notebooks.
func AtPort(port int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { at(arrival{port: port}, next, w, r) })
}

// AtLabels passes what comes in by a person's label to their notebooks, and all else to
// others: a label that nobody has is a name like any other that the lab does not go by.
func (o *Origins) AtLabels(notebooks, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostname(r)
		if port, base, ok := o.label(host); ok {
			at(arrival{port: port, label: strings.ToLower(host), base: base}, notebooks, w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// IsLabel reports whether a host is the label of somebody's notebooks.
func (o *Origins) IsLabel(host string) bool {
	_, _, ok := o.label(host)
	return ok
}

// label finds whose port a label names. A nil Origins has none.
func (o *Origins) label(host string) (port int, base string, ok bool) {
	if o == nil {
		return 0, "", false
	}
	if port, base, ok = o.labels.parse(host); ok {
		_, ok = o.Owner(port)
	}
	return port, base, ok
}

// sessionsAt finds the session of a request by what counts where it has come in.
type sessionsAt struct {
	Sessions
	labels *Labels
}

// FromRequest implements [Sessions].
func (s sessionsAt) FromRequest(r *http.Request) (users.Session, bool) {
	o, _ := arrivalOf(r)
	if o.label == "" {
		return s.Sessions.FromRequest(r)
	}
	credential, ok := cookies.One(r, cookies.Session)
	if !ok {
		return users.Session{}, false
	}
	return s.labels.session(r.Context(), o.label, credential)
}

func (l *Labels) session(ctx context.Context, label, credential string) (users.Session, bool) {
	id, ok := l.childOf(label, credential)
	if !ok {
		return users.Session{}, false
	}
	session, err := l.sessions(ctx, id)
	return session, err == nil
}
