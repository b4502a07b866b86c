package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestServices: TensorBoard in one click, a program by its form, what is wrong
// with one, and all that its owner can do with it.
func TestServices(t *testing.T) {
	l := newLab(t)
	ben := l.client(t, "ben")
	ben.get("/services").want(t, http.StatusOK, "You have no service", "Nobody shares a service with you", "Open TensorBoard")
	ben.get("/services?port=7861").want(t, http.StatusOK, `value="7861"`)
	if page := ben.get("/services?port=66666"); strings.Contains(page.body, "66666") {
		t.Error("the form takes a port that there is not")
	}
	ben.post("/services", "/services", url.Values{"command": {"python app.py"}, "name": {"demo"}, "port": {"x"}}).want(t, http.StatusUnprocessableEntity, "The port is the number", "python app.py")
	ben.post("/services", "/services", url.Values{"command": {"python app.py"}, "name": {"demo"}, "port": {"7860"}, "share": {"nobody"}}).want(t, http.StatusUnprocessableEntity, "is nobody to share with")
	got := ben.post("/services", "/services/tensorboard", url.Values{"folder": {"runs"}})
	ben.get(got.header.Get("Location")).want(t, http.StatusOK, "tensorboard", "port 6006", "Nobody else", "/service/ben/", "tensorboard --logdir .")
	got = ben.post("/services", "/services", url.Values{"command": {"python app.py"}, "name": {"demo"}, "port": {"7860"}, "share": {"private"}, "stop-after": {"12h"}})
	page := got.header.Get("Location")
	ada := l.client(t, "ada")
	ada.get(page).want(t, http.StatusOK, "demo")
	ada.get(page+"/log").want(t, http.StatusForbidden)
	ada.get("/services").want(t, http.StatusOK, "Nobody shares a service with you")
	ben.post(page, page+"/share", url.Values{"share": {"lab"}})
	ben.get(page).want(t, http.StatusOK, "Everybody in the lab")
	ada.get("/services").want(t, http.StatusOK, "demo")
	ben.post(page, page+"/keep", url.Values{"stop-after": {"soon"}}).want(t, http.StatusUnprocessableEntity, "Nothing was changed")
	ben.post(page, page+"/stop", nil)
	ben.get(page).want(t, http.StatusOK, "It has ended", "Start again")
}
