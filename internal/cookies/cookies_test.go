package cookies

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func request(lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://lab.example/", nil)
	for _, line := range lines {
		r.Header.Add("Cookie", line)
	}
	return r
}

const key = "0123456789abcdef0123456789abcdef"

// One cookie of the name is a session. Any other number is none, in whatever order and spelling they come.
func TestFromRequest(t *testing.T) {
	for _, test := range []struct {
		cookies []string
		want    string
	}{
		{nil, ""},
		{[]string{"a=1; __Host-Http-gpulab=mine; b=2"}, "mine"},
		{[]string{"a=1", "__Host-Http-gpulab=mine"}, "mine"},
		{[]string{" __Host-Http-gpulab = mine "}, "mine"},
		{[]string{"__Host-Http-gpulab=mine; __Host-Http-gpulab=evil"}, ""},
		{[]string{"__Host-Http-gpulab=evil; __Host-Http-gpulab=mine"}, ""},
		{[]string{"__Host-Http-gpulab=mine; __Host-Http-gpulab=mine"}, ""},
		{[]string{"__Host-Http-gpulab=mine", "__Host-Http-gpulab=evil"}, ""},
		{[]string{"__Host-Http-gpulab=mine;__Host-Http-gpulab=evil"}, ""},
		{[]string{"__Host-Http-gpulab=mine;\t __Host-Http-gpulab\t=evil"}, ""},
		{[]string{"__Host-Http-gpulab=mine; __HOST-HTTP-GPULAB=evil"}, "mine"},
		{[]string{`"__Host-Http-gpulab"=evil; __Host-Http-gpulab=mine`}, "mine"},
		{[]string{"__Host-Http-gpulab=mine; =__Host-Http-gpulab=evil"}, "mine"},
		{[]string{"__Host-Http-gpulab=mine; __Host-Http-gpulab"}, ""},
		{[]string{"__Host-Http-gpulab=mine; __Host-Http-gpulab="}, ""},
		{[]string{"__host-http-gpulab=evil"}, ""},
		{[]string{"=__Host-Http-gpulab=evil"}, ""},
		{[]string{`"__Host-Http-gpulab"=evil`}, ""},
		{[]string{"__Host-gpulab=evil; __Host-Http-gpulab-form=x; __Host-Http-gpulab2=y"}, ""},
		{[]string{"__Host-Http-gpulab=mine; __Host-gpulab=evil; x=__Host-Http-gpulab"}, "mine"},
	} {
		got, ok := FromRequest(request(test.cookies...))
		if got.Token != test.want || ok != (test.want != "") {
			t.Errorf("%q: %q %v, want %q", test.cookies, got.Token, ok, test.want)
		}
	}
}

func TestCredential(t *testing.T) {
	for _, c := range []Credential{{Token: "t"}, {Token: "t", Key: key}} {
		if got := parse(c.String()); got != c {
			t.Errorf("%+v, want %+v", got, c)
		}
	}
	for _, text := range []string{"", "short", key + ";", strings.Repeat("a", 65), strings.Repeat("ü", 20)} {
		if Key(text) != "" {
			t.Errorf("%q is taken for a key", text)
		}
	}
	if got := All(request("__Host-Http-gpulab=a." + key + "; __Host-Http-gpulab=b")); !slices.Equal(got, []Credential{{"a", key}, {"b", ""}}) {
		t.Errorf("%+v", got)
	}
}

// Both variants of a cookie go, before the new one comes.
func TestSetAndExpire(t *testing.T) {
	w := httptest.NewRecorder()
	twins := request("__Host-Http-gpulab=a; __Host-Http-gpulab=b")
	twins.URL.Path = "/account"
	Set(w, twins, Session, "new")
	lines := w.Header()["Set-Cookie"]
	if last := lines[len(lines)-1]; last != "__Host-Http-gpulab=new; Path=/; HttpOnly; Secure; SameSite=Lax" {
		t.Errorf("the last is %s", last)
	}
	for _, want := range []string{
		"__Host-Http-gpulab=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=None; Partitioned",
		"__Host-Http-gpulab=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax",
		"__Host-Http-gpulab=; Path=/account; Max-Age=0; Secure; HttpOnly; SameSite=Lax",
		"=gone; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax",
		"=gone; Path=/account; Max-Age=0; Secure; HttpOnly; SameSite=None; Partitioned",
	} {
		if !slices.Contains(lines[:len(lines)-1], want) {
			t.Errorf("%s is not in %q", want, lines)
		}
	}
	w = httptest.NewRecorder()
	ExpireFormer(w, request("__Host-Http-gpulab=a; b=2"))
	if got := w.Header()["Set-Cookie"]; got != nil {
		t.Errorf("%q", got)
	}
	ExpireFormer(w, request("__Host-gpulab=a"))
	if got := strings.Join(w.Header()["Set-Cookie"], "\n"); strings.Count(got, "__Host-gpulab=;") != 2 {
		t.Errorf("%q", got)
	}
}
