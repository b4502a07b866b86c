//go:build e2e

package e2e

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// admin is a session of the administrator's, made once.
func (a *appliance) admin(t *testing.T) *http.Client {
	t.Helper()
	if a.adminClient == nil {
		a.adminClient = signIn(t, a, adminHandle, adminPassword)
	}
	return a.adminClient
}

// launchBy starts a notebook as a click on its launch card does, where the page is not what is tested.
func launchBy(t *testing.T, client *http.Client, profile, title string) {
	t.Helper()
	status, body := sendForm(t, client, "/", "/launch", url.Values{"profile": {profile}, "title": {title}})
	if status != http.StatusSeeOther {
		t.Fatalf("launch %s: status %d\n%.500s", title, status, body)
	}
}

// running counts the notebooks of a title that run, as the admin's page has them.
func (a *appliance) running(t *testing.T, title string) int {
	t.Helper()
	_, body, _ := request(t, a.admin(t), "GET", pages+"/", nil)
	n := 0
	for _, row := range strings.Split(body, "<tr")[1:] {
		if strings.Contains(row, title) && strings.Contains(row, ">running<") {
			n++
		}
	}
	return n
}

// stopOf finds the action that ends somebody's notebook.
func stopOf(t *testing.T, client *http.Client, handle string) string {
	t.Helper()
	_, body, _ := request(t, client, "GET", pages+"/", nil)
	for _, row := range strings.Split(body, "<tr")[1:] {
		if strings.Contains(row, ">"+handle+"<") {
			if found := regexp.MustCompile(`action="(/launches/\d+/stop)"`).FindStringSubmatch(row); found != nil {
				return found[1]
			}
		}
	}
	return ""
}
