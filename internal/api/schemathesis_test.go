package api_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/users"
)

// schemathesisTime is how long one run may take; at rest it is less than one minute.
const schemathesisTime = 10 * time.Minute

// TestSchemathesis lets schemathesis ask what the description says the API takes, and what it says it does not take: no
// answer is an error of ours, each is described, what does not fit is refused, and nothing is done without a token.
func TestSchemathesis(t *testing.T) {
	program := schemathesis(t)
	began := time.Now()
	for _, run := range []struct {
		name, handle string
		phases       string
		succeed      int // operations that are done at least once
	}{
		{"admin", "ann", "examples,coverage,fuzzing", 52},
		{"student", "ben", "examples,fuzzing", 24},
		{"nobody", "", "examples,fuzzing", 2},
	} {
		t.Run(run.name, func(t *testing.T) {
			w := &witness{lab: apitest.New(t), handle: run.handle, asked: map[string][]int{}}
			server := httptest.NewServer(w)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), schemathesisTime)
			defer cancel()
			args := []string{"run", server.URL + api.Prefix + "/openapi.json", "--phases", run.phases, "--max-examples", "3",
				// What the description allows may still be refused, such as a password that is too weak.
				"--exclude-checks", "positive_data_acceptance",
				// One worker: hypothesis reads its own source with ast.parse, which in CPython 3.11 may fail with
				// a SystemError where two threads do so at once: they share the count of its recursion depth.
				"--seed", "20261122", "--workers", "1", "--no-color", "--request-timeout", "30", "--suppress-health-check", "all"}
			if run.handle != "" {
				args = append(args, "--header", "Authorization: Bearer "+standIn)
			}
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Dir = t.TempDir() // where it keeps what it learns
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("schemathesis: %v\n%s", err, end(string(out), 12000))
			}
			w.check(t, run.succeed)
		})
	}
	t.Logf("all of it took %s", time.Since(began).Round(time.Second))
}

// standIn stands for a token of the run's account in what schemathesis sends: tokens end during a run, as they should
// when an account is suspended, and a run whose token has ended would show nothing.
const standIn = "gpulab_stand-in"

// A witness passes requests on to the API and notes what came of them.
type witness struct {
	lab    *apitest.Lab
	handle string

	strangers atomic.Int32

	mu    sync.Mutex
	token string
	asked map[string][]int // statuses by operation
}

func (w *witness) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "Bearer "+standIn && w.handle != "" {
		token, err := w.valid()
		if err != nil {
			panic(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if r.Header.Get("Authorization") == "" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer gpulab_") {
		// Wrong tokens from one address are refused for a while: each comes from another one.
		n := w.strangers.Add(1)
		r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", n>>16&255, n>>8&255, n&255)
	}
	recorder := &statusRecorder{ResponseWriter: to}
	w.lab.API.ServeHTTP(recorder, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.lab.API.Operations() {
		if o.Method == r.Method && operationPattern(api.Prefix+o.Path).MatchString(r.URL.EscapedPath()) {
			w.asked[o.ID] = append(w.asked[o.ID], recorder.status)
		}
	}
}

// valid is a token that counts at this moment.
func (w *witness) valid() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.token != "" {
		if _, _, err := w.lab.Users.TokenUser(context.Background(), w.token, "", false); err == nil {
			return w.token, nil
		}
	}
	var err error
	w.token, err = w.lab.NewToken(w.handle, users.ScopeFull)
	return w.token, err
}

// check looks whether the run has shown anything.
func (w *witness) check(t *testing.T, atLeast int) {
	t.Helper()
	done, requests := 0, 0
	var never []string
	for _, o := range w.lab.API.Operations() {
		statuses := w.asked[o.ID]
		requests += len(statuses)
		if len(statuses) == 0 {
			t.Errorf("%s was never asked", o.ID)
		}
		if slices.ContainsFunc(statuses, func(s int) bool { return s >= 200 && s < 300 }) {
			done++
			if o.Need != "" && w.handle == "" {
				t.Errorf("%s was done without a token", o.ID)
			}
		} else {
			never = append(never, o.ID)
		}
		if slices.ContainsFunc(statuses, func(s int) bool { return s >= 500 }) {
			t.Errorf("%s: an error of ours", o.ID)
		}
	}
	t.Logf("%d requests; %d of %d operations were done; never: %s", requests, done, len(w.lab.API.Operations()), strings.Join(never, ", "))
	if done < atLeast {
		t.Errorf("only %d operations were done, want %d", done, atLeast)
	}
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func end(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// schemathesis is the program, in an environment of its own that is made once per lock file in the user's cache folder.
func schemathesis(t *testing.T) string {
	t.Helper()
	lock, err := filepath.Abs("testdata/schemathesis/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(cache, "gpulab", "test-schemathesis-"+hex.EncodeToString(sum[:6]))
	program := filepath.Join(dir, "bin", "schemathesis")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return program
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	t.Logf("making %s", dir)
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:", "-r", lock},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v (Python 3.11 or newer with venv is needed)\n%s", strings.Join(args, " "), err, end(string(out), 3000))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return program
}
