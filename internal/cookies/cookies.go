// Package cookies is the one place that reads, sets and expires the cookie of a browser's session, and that answers
// a browser that sends more cookies than a request may hold.
//
// Cookies know no ports: a script on a service's page can set cookies for the whole host. Session and Form have a
// prefix that browsers let no script set. Not every browser knows it, so a name that arrives twice counts as none.
//
// Anything that serves browsers may import it. It imports no other package of gpulab.
package cookies

import (
	"iter"
	"net/http"
	"strings"
	"time"
)

const (
	// Session is the cookie with the token of a session, see [Credential].
	Session = "__Host-Http-gpulab"
	// Form ties a form to the browser that it was shown in while that has no session.
	Form = "__Host-Http-gpulab-form"
	// Enter ties the hand-over of a session to a DNS name of notebooks to the browser that asked for it.
	Enter = "__Host-Http-gpulab-enter"
	// Port holds the port by which a session's browser reached the pages, if that is not the lab's own.
	Port = "__Host-Http-gpulab-port"
)

// former are the names of versions before, which scripts can set. They are worth nothing.
var former = []string{"__Host-gpulab", "__Host-gpulab-form"}

// A Credential is what the session's cookie holds.
type Credential struct {
	Token string // of the session
	// Key is what the pages' origin keeps in the browser that signed in, "" where it ran no script. A page of another
	// port can neither read nor write it, so a session that was planted does not have it.
	Key string
}

// String is the value of the cookie.
func (c Credential) String() string {
	if c.Key == "" {
		return c.Token
	}
	return c.Token + "." + c.Key
}

func parse(value string) Credential {
	token, key, _ := strings.Cut(value, ".")
	return Credential{Token: token, Key: Key(key)}
}

// Key is text if it can be a browser's key, otherwise "".
func Key(text string) string {
	if len(text) < 22 || len(text) > 64 {
		return ""
	}
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return text
}

// FromRequest finds the one session of a request. It is ok for one cookie of that name and for no other number: of
// two, nobody can say which the browser was given by gpulab.
func FromRequest(r *http.Request) (c Credential, ok bool) {
	value, ok := One(r, Session)
	if !ok {
		return Credential{}, false
	}
	return parse(value), true
}

// All are the credentials of a request that carries the session's cookie more than once, to say where they came from.
// They let nobody in.
func All(r *http.Request) []Credential {
	var list []Credential
	for _, p := range named(r, Session) {
		if len(list) < 8 {
			list = append(list, parse(p.value))
		}
	}
	return list
}

// One is the value of a cookie that arrived once, under exactly this name.
func One(r *http.Request, name string) (value string, ok bool) {
	found := named(r, name)
	if len(found) != 1 {
		return "", false
	}
	return found[0].value, true
}

// Values are those of every cookie that arrived under exactly this name.
func Values(r *http.Request, name string) (values []string) {
	for _, p := range named(r, name) {
		values = append(values, p.value)
	}
	return values
}

// Count is how many cookies of a request have this name.
func Count(r *http.Request, name string) int { return len(named(r, name)) }

// Set gives the browser a cookie for as long as it runs, in place of all that have the same name.
func Set(w http.ResponseWriter, r *http.Request, name, value string) { SetFor(w, r, name, value, 0) }

// SetFor is Set for a cookie that the browser forgets after some time.
func SetFor(w http.ResponseWriter, r *http.Request, name, value string, life time.Duration) {
	// First: a browser that knows no partitions would take the new one for what is expired.
	Expire(w, r, name)
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
		MaxAge:   int(life.Seconds())})
}

// Expire makes the browser forget a cookie, with and without a partition, and its twins in the request.
func Expire(w http.ResponseWriter, r *http.Request, name string) {
	names := []string{name}
	if Count(r, name) > 1 {
		names = append(names, "") // its value may be what passed for the name
		ExpireHere(w, r, name)
	}
	for _, name := range names {
		for _, line := range expiring(name, "/", "") {
			w.Header().Add("Set-Cookie", line)
		}
	}
}

// ExpireHere makes the browser forget the twins of a cookie that it sends to this path and not to all. The prefix of
// the name allows none, but a cookie without a name has no prefix.
func ExpireHere(w http.ResponseWriter, r *http.Request, name string) {
	where := r.URL.EscapedPath()
	if Count(r, name) < 2 || len(where) > 256 {
		return
	}
	for _, path := range pathsTo(where) {
		for _, name := range []string{name, ""} {
			for _, line := range expiring(name, path, "") {
				w.Header().Add("Set-Cookie", line)
			}
		}
	}
}

// ExpireFormer makes the browser forget the cookies of versions before, where the request has any.
func ExpireFormer(w http.ResponseWriter, r *http.Request) {
	for _, name := range former {
		if Count(r, name) > 0 {
			Expire(w, r, name)
		}
	}
}

// expiring are the headers that make a browser forget a cookie: one in no partition, and one in that of this site.
// A name is written as it came, since net/http would leave out one that is no token.
func expiring(name, path, domain string) []string {
	if domain != "" {
		domain = "; Domain=" + domain
	}
	value := ""
	if name == "" {
		value = "gone" // a cookie without a name needs a value
	}
	pair := name + "=" + value + "; Path=" + path + domain + "; Max-Age=0; Secure; HttpOnly"
	return []string{pair + "; SameSite=None; Partitioned", pair + "; SameSite=Lax"}
}

// A pair is a cookie as it arrived.
type pair struct{ name, value string }

// named are the cookies with exactly this name. A browser may keep a cookie without a name whose value reads like name
// and value, and sends the value alone. A name in another case or in quotes is another name: no browser takes it for
// this one, so it is no twin. Counting it would let a page keep people out, since no prefix protects such a name.
func named(r *http.Request, name string) (found []pair) {
	for p := range pairs(r.Header) {
		if p.name == name {
			found = append(found, p)
		}
	}
	return found
}

// pairs are all cookies of a request, byte for byte but for spaces around them. A "=" in front belongs to the name.
func pairs(h http.Header) iter.Seq[pair] {
	return func(yield func(pair) bool) {
		for _, line := range h["Cookie"] {
			for part := range strings.SplitSeq(line, ";") {
				part = strings.Trim(part, " \t")
				if part == "" {
					continue
				}
				bare := strings.TrimLeft(part, "=")
				name, value, _ := strings.Cut(bare, "=")
				if !yield(pair{part[:len(part)-len(bare)] + strings.TrimRight(name, " \t"), strings.TrimLeft(value, " \t")}) {
					return
				}
			}
		}
	}
}
