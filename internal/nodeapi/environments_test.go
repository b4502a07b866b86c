package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
)

func (h *head) Environments(context.Context) (Environments, error) {
	return Environments{Version: "3", List: []Environment{{ID: "small/1", Mark: "ab", Size: 10}}, Default: "small/1"}, nil
}

// Environment knows small/1, and one that breaks off.
func (h *head) Environment(_ context.Context, id string, w io.Writer) error {
	switch id {
	case "small/1":
	case "broken/1":
		_, err := w.Write(make([]byte, 3*transferPiece))
		return errors.Join(err, errors.New("a file could not be read"))
	default:
		return errors.New("there is no such environment")
	}
	for range 3 {
		if _, err := w.Write(bytes.Repeat([]byte("x"), transferPiece)); err != nil {
			return err
		}
	}
	return nil
}

// An environment comes whole or not at all; who is no machine of the pool gets nothing.
func TestEnvironments(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	list, err := c.Environments(t.Context())
	if err != nil || list.Version != "3" || len(list.List) != 1 || list.Default != "small/1" {
		t.Errorf("%+v, %v", list, err)
	}
	r, err := c.Environment(t.Context(), "small/1")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil || len(data) != 3*transferPiece {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	_ = r.Close()
	// One that breaks off does not look like the whole.
	if r, err := c.Environment(t.Context(), "broken/1"); err == nil {
		if _, err = io.Copy(io.Discard, r); err == nil {
			t.Error("what broke off ended as if that were all")
		}
		_ = r.Close()
	}
	refused := func(c *Client, id string, status int) {
		t.Helper()
		r, err := c.Environment(t.Context(), id)
		if err == nil {
			_ = r.Close()
		}
		if p := (*Problem)(nil); !errors.As(err, &p) || p.Status != status {
			t.Errorf("%s: %v", id, err)
		}
	}
	refused(c, "other/1", http.StatusNotFound)
	refused(c, "..%2f../etc", http.StatusNotFound)
	refused(Stranger(l.invite(t)), "small/1", http.StatusUnauthorized)
	if _, err := Stranger(l.invite(t)).Environments(t.Context()); err == nil {
		t.Error("a stranger is told of environments")
	}
	if _, err := l.registry.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	refused(c, "small/1", http.StatusForbidden)
}
