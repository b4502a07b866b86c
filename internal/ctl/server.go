package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/history"
)

// Problem is an error on the wire: one sentence for the person at the terminal.
type Problem struct {
	Message string `json:"error"`
	// Wrong says that the question could not be answered because of how it was
	// asked.
	Wrong bool `json:"wrong,omitempty"`
}

func (p *Problem) Error() string { return p.Message }

// Serve answers on the socket until ctx ends. A socket that a killed daemon
// left behind is replaced; one that a running daemon answers on is an error.
func Serve(ctx context.Context, socket string, d Daemon) error {
	return serveOn(ctx, socket, handler(d))
}

func serveOn(ctx context.Context, socket string, h http.Handler) error {
	l, err := listen(socket)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// private gives a socket the mode that its file is made with. The umask would do,
// but it is that of the whole process, which makes other files meanwhile.
func private(_, _ string, c syscall.RawConn) error {
	var wrong error
	if err := c.Control(func(fd uintptr) { wrong = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return wrong
}

// listen opens the socket for root alone, without a moment in which another user
// could connect.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("the control socket's folder: %w", err)
	}
	if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("gpulab already runs on this machine (it answers on %s); see `gpulab status`", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := (&net.ListenConfig{Control: private}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the control socket: %w", err)
	}
	return l, nil
}

func handler(d Daemon) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", answer(func(r *http.Request) (any, error) { return d.Status(r.Context()) }))
	mux.HandleFunc("GET /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		var text bytes.Buffer
		if err := d.Metrics(r.Context(), &text); err != nil {
			answer(func(*http.Request) (any, error) { return nil, err })(w, r)
			return
		}
		if _, err := text.WriteTo(w); err != nil {
			slog.Debug("the control client went away", "err", err)
		}
	})
	mux.HandleFunc("GET /v1/charts", answer(func(r *http.Request) (any, error) { return d.Charts(r.Context()) }))
	mux.HandleFunc("POST /v1/admin-link", answer(func(r *http.Request) (any, error) { return d.AdminLink(r.Context()) }))
	mux.HandleFunc("POST /v1/users", answer(withBody(largeBody, func(r *http.Request, u NewUser) (any, error) {
		return d.AddUser(r.Context(), u)
	})))
	mux.HandleFunc("POST /v1/users/import", answer(withBody(maxImport,
		func(r *http.Request, in ImportRequest) (any, error) {
			return d.ImportUsers(r.Context(), in)
		})))
	mux.HandleFunc("POST /v1/users/{handle}/password-link", answer(func(r *http.Request) (any, error) {
		return d.PasswordLink(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("POST /v1/gpus/{gpu}/lend", answer(withBody(smallBody, func(r *http.Request, in lendGPU) (any, error) {
		return d.LendGPU(r.Context(), r.PathValue("gpu"), in.Anyway)
	})))
	// A question, asked by POST because of its length.
	mux.HandleFunc("POST /v1/usage", answer(withBody(smallBody, func(r *http.Request, q usageQuestion) (any, error) {
		return d.Usage(r.Context(), q.Filter, q.By)
	})))
	mux.HandleFunc("GET /v1/report", answer(func(r *http.Request) (any, error) {
		weeks, _ := strconv.Atoi(r.URL.Query().Get("weeks")) // 0 is refused
		return d.Report(r.Context(), weeks)
	}))
	mux.HandleFunc("POST /v1/gpus/check", answer(func(r *http.Request) (any, error) { return d.CheckGPU(r.Context()) }))
	handlePeople(mux, d)
	handleImages(mux, d)
	handleQuotas(mux, d)
	handleWaysIn(mux, d)
	handleFolders(mux, d)
	handleEnvironments(mux, d)
	handleSSHKeys(mux, d)
	handleDisks(mux, d)
	handleTailnet(mux, d)
	handleMail(mux, d)
	handleNodes(mux, d)
	mux.HandleFunc("GET /v1/boot", watchBoot(d))
	auditRoutes(mux, d)
	return mux
}

// usageQuestion is the body of a question to the ledger of use.
type usageQuestion struct {
	history.Filter
	By history.By `json:"by"`
}

// lendGPU is the body of a request to lend a GPU.
type lendGPU struct {
	Anyway bool `json:"anyway"`
}

// How much a request may carry, in bytes.
const (
	smallBody = 4 << 10
	largeBody = 64 << 10
)

// readBody decodes what a request carries.
func readBody[T any](r *http.Request, limit int64) (in T, err error) {
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit)).Decode(&in); err != nil {
		return in, fmt.Errorf("the request could not be read: %w", err)
	}
	return in, nil
}

// withBody is fn for answer, with what the request carries.
func withBody[T any](limit int64, fn func(*http.Request, T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		in, err := readBody[T](r, limit)
		if err != nil {
			return nil, err
		}
		return fn(r, in)
	}
}

// answer turns a function into a handler that writes JSON.
func answer(fn func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := fn(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			var wrong *history.WrongError
			v = Problem{Message: err.Error(), Wrong: errors.As(err, &wrong)}
		}
		if err := json.NewEncoder(w).Encode(v); err != nil {
			slog.Debug("the control client went away", "err", err)
		}
	}
}
