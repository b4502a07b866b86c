// Command packages is the lab's package cache: a Python package index that asks
// another one, PyPI for example, and keeps what that gave for whoever wants the
// same. It runs in a pod, writes to one folder, and fetches from the index and
// from where that says its files are, nowhere else.
//
// Nobody can put anything into it: it knows GET and HEAD alone, and what it keeps
// under an address is what the index gave for that address.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], log); err != nil {
		log.Error("the package cache has ended", "err", err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("packages", flag.ContinueOnError)
	listen := flags.String("listen", ":8080", "where to answer")
	dir := flags.String("dir", "/cache", "folder for what is kept")
	index := flags.String("index", "https://pypi.org/simple", "address of the index to ask")
	files := flags.String("files", "files.pythonhosted.org", "names, with commas between, of further machines that the index has its files on")
	keep := flags.Int64("keep", 20<<30, "how many bytes are kept at most; 0 keeps nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	kept, err := openStore(*dir, *keep)
	if err != nil {
		return fmt.Errorf("the folder of the cache: %w", err)
	}
	handler, err := newProxy(kept, *index, strings.Split(*files, ","), http.DefaultTransport.(*http.Transport).Clone(), log)
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: *listen, Handler: handler, ConnState: (&crowd{connections: map[string]int{}}).watch,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Whoever downloads goes on for a moment; the next cache begins anew what is cut off.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
