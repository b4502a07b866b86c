package webui_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/webui"
)

// Admins see when the lab was saved last, and nobody else does; a failure hides it and nothing more.
func TestLastBackup(t *testing.T) {
	text, next, fails := "There is no backup of this lab yet", "`sudo gpulab backup FILE` makes one", error(nil)
	l := newLabWith(t, func(c *webui.Config) {
		c.Backup = func(context.Context) (string, string, error) { return text, next, fails }
	})
	ada := l.client(t, "ada")
	ada.get("/").want(t, http.StatusOK, "There is no backup of this lab yet.", "<code>sudo gpulab backup FILE</code>")
	if page := l.client(t, "ben").get("/"); strings.Contains(page.body, "no backup") {
		t.Error("a member is told of backups")
	}
	text, next = "Last backup 2 h 5 min ago, with homes", ""
	ada.get("/").want(t, http.StatusOK, "Last backup 2 h 5 min ago, with homes.")
	fails = errors.New("the disk is gone")
	if page := ada.get("/"); page.status != http.StatusOK || strings.Contains(page.body, "id=\"backup\"") {
		t.Errorf("status %d", page.status)
	}
}
