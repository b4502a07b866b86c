package charts

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What the API server says of a release counts; that it said nothing does not.
func TestUnanswered(t *testing.T) {
	timeout := apierrors.NewTimeoutError("request did not complete within requested timeout - context deadline exceeded", 0)
	for err, want := range map[error]bool{
		timeout:                             true,
		fmt.Errorf("creating: %w", timeout): true,
		errors.New("cannot patch: " + timeout.Error() + " && another"):                                true, // as Helm keeps it
		apierrors.NewServiceUnavailable("starting"):                                                   true,
		apierrors.NewForbidden(schema.GroupResource{}, "hub", nil):                                    false,
		errors.New(`cannot patch: Patch "https://127.0.0.1:6443/api": http2: client connection lost`): true,
		apierrors.NewTooManyRequests("later", 1):                                                      true,
		io.ErrUnexpectedEOF:                                                                           true,
		errors.New("not ready after 3m0s: hub: pod 0/1 ready"):                                        false,
		notReadyError("ErrImagePull: dial tcp: connection refused"):                                   false,
		notReadyError("not ready after 3m0s: hub: pod 0/1 ready"):                                     false,
		// What a pod says of its own connections is no word on the API server.
		fmt.Errorf("release hub failed: %w", notReadyError("hub ends again and again: connection refused")): false,
		errors.Join(notReadyError("not ready"), timeout):                                                    false,
	} {
		if got := unanswered(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
	if unanswered(nil) {
		t.Error("no error counts as no answer")
	}
}

// A release goes on once the API server has time again, and gives up after some tries.
func TestBusyServer(t *testing.T) {
	for name, busy := range map[string]int32{"for a moment": 2, "for good": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if asked.Add(1) <= busy {
					w.WriteHeader(http.StatusGatewayTimeout)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Timeout","code":504}`)
					return
				}
				fmt.Fprint(w, `{"kind":"SecretList","apiVersion":"v1","items":[]}`)
			}))
			t.Cleanup(server.Close)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			config := fmt.Sprintf("{clusters: [{name: x, cluster: {server: %q}}], contexts: [{name: x, context: {cluster: x}}], current-context: x}", server.URL)
			if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := (&Manager{kubeconfig: kubeconfig, log: slog.New(slog.DiscardHandler)}).open()
			if err != nil {
				t.Fatal(err)
			}
			said := 0
			j := &job{session: s, release: Release{Name: "hub", Namespace: "lab", Absent: true}, report: func(e Event) {
				if strings.Contains(e.Detail, "too busy") {
					said++
				}
			}}
			phase, _, err := j.run(t.Context())
			if busy == 2 && (err != nil || phase != Unchanged || said != 2) {
				t.Errorf("%q, %v; said %d times", phase, err, said)
			}
			if busy > 2 && (!apierrors.IsTimeout(err) || said != tries-1) {
				t.Errorf("%v; said %d times", err, said)
			}
		})
	}
}
