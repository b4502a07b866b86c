package webui_test

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
)

// A client is a browser without a screen: it keeps cookies, follows no
// redirect and sends forms as a page of the lab would.
type client struct {
	t    testing.TB
	lab  *lab
	http *http.Client
}

// client opens a browser, signed in where a handle is given.
func (l *lab) client(t testing.TB, handle string) *client {
	t.Helper()
	c := &client{t: t, lab: l, http: l.server.Client()}
	copied := *c.http
	copied.Jar = &jar{cookies: map[string]*http.Cookie{}}
	copied.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &copied
	if handle != "" {
		c.http.Jar.SetCookies(nil, []*http.Cookie{{Name: cookies.Session, Value: l.session(t, handle)}})
	}
	return c
}

// jar keeps the cookies of the one host there is.
type jar struct{ cookies map[string]*http.Cookie }

func (j *jar) SetCookies(_ *url.URL, cookies []*http.Cookie) {
	for _, c := range cookies {
		if c.MaxAge < 0 {
			delete(j.cookies, c.Name)
		} else {
			j.cookies[c.Name] = c
		}
	}
}

func (j *jar) Cookies(*url.URL) []*http.Cookie {
	var list []*http.Cookie
	for _, c := range j.cookies {
		list = append(list, c)
	}
	return list
}

// An answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (c *client) do(method, path string, form url.Values, edit func(*http.Request)) answer {
	c.t.Helper()
	return c.doBody(method, path, strings.NewReader(form.Encode()), edit)
}

func (c *client) doBody(method, path string, content io.Reader, edit func(*http.Request)) answer {
	c.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, c.lab.server.URL+path, content)
	if err != nil {
		c.t.Fatal(err)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if edit != nil {
		edit(request)
	}
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

func (c *client) get(path string) answer {
	c.t.Helper()
	return c.do(http.MethodGet, path, nil, nil)
}

var tokenField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// token reads the form token of a page.
func (c *client) token(page string) string {
	c.t.Helper()
	found := tokenField.FindStringSubmatch(c.get(page).body)
	if found == nil {
		c.t.Fatalf("no form on %s", page)
	}
	return found[1]
}

// post sends a form that was opened on page.
func (c *client) post(page, path string, form url.Values) answer {
	c.t.Helper()
	if form == nil {
		form = url.Values{}
	}
	form.Set("csrf", c.token(page))
	return c.do(http.MethodPost, path, form, nil)
}

// want checks a status and that the page says each of some texts.
func (a answer) want(t testing.TB, status int, texts ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d", a.status, status)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("the page does not say %q:\n%s", text, visible(a.body))
		}
	}
}

// comeBack opens the address that a provider sends a browser to, and sends the page on that is there.
func (c *client) comeBack(address string) answer {
	c.t.Helper()
	return c.comeBackAs(address, nil)
}

func (c *client) comeBackAs(address string, edit func(*http.Request)) answer {
	c.t.Helper()
	page := c.do(http.MethodGet, address, nil, edit)
	if page.status != http.StatusOK {
		return page
	}
	form := url.Values{}
	for _, field := range returnField.FindAllStringSubmatch(page.body, -1) {
		form.Add(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
	}
	path, _, _ := strings.Cut(address, "?")
	return c.do(http.MethodPost, path, form, edit)
}

var returnField = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)

var markup = regexp.MustCompile(`(?s)<head>.*?</head>|<[^>]*>`)

// visible is a page's text, for messages.
func visible(page string) string {
	return strings.Join(strings.Fields(markup.ReplaceAllString(page, " ")), " ")
}
