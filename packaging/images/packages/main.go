// Command packages is the lab's cache: a Python package index that asks another
// one, PyPI for example, and a hub of models that asks another one, Hugging Face's
// for example; both keep what they were given for whoever wants the same. It runs
// in a pod, writes to one folder for each, and fetches from the index, the hub, and
// from where these say their files are, nowhere else.
//
// Nobody can put anything into it: it gives alone, and what it keeps under an
// address is what the index gave for that address, and under a SHA-256 what has it.
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
	modelsListen := flags.String("models-listen", ":8082", "where to answer as the hub")
	modelsDir := flags.String("models-dir", "/models", "folder for what is kept of the hub")
	hub := flags.String("hub", "https://huggingface.co", "address of the hub of models to ask")
	hubFiles := flags.String("hub-files", ".hf.co,.huggingface.co", "names, with commas between, of further machines that the hub has its files on; with a dot before, of all below it")
	modelsKeep := flags.Int64("models-keep", 50<<30, "how many bytes of the hub are kept at most; 0 keeps nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	kept, err := openStore(*dir, *keep)
	if err != nil {
		return fmt.Errorf("the folder of the cache: %w", err)
	}
	keptModels, err := openStore(*modelsDir, *modelsKeep)
	if err != nil {
		return fmt.Errorf("the folder of the models: %w", err)
	}
	packages, err := newProxy(kept, *index, names(*files), transport(), log)
	if err != nil {
		return err
	}
	models, err := newModels(keptModels, *hub, names(*hubFiles), transport(), log)
	if err != nil {
		return err
	}
	return serve(ctx, map[string]http.Handler{*listen: packages, *modelsListen: models})
}

func names(list string) (names []string) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// serve answers at these addresses until ctx ends.
func serve(ctx context.Context, handlers map[string]http.Handler) error {
	ended := make(chan error, len(handlers))
	var servers []*http.Server
	for address, handler := range handlers {
		server := &http.Server{
			Addr: address, Handler: handler, ConnState: (&crowd{connections: map[string]int{}}).watch,
			ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		}
		servers = append(servers, server)
		go func() { ended <- server.ListenAndServe() }()
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Whoever downloads goes on for a moment; the next cache begins anew what is cut off.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, server := range servers {
		if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return nil
}
