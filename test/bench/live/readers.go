package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/test/bench/part"
)

// arrivals are what the pages have got.
type arrivals struct {
	// At are the times, in microseconds since 1970, at which pages had a value:
	// "UUID PERCENT".
	At map[string][]int64
	// Shows counts the pages that show a GPU.
	Shows map[string]int
	// Bytes counts what all pages read, by the second since 1970.
	Bytes map[int64]int
}

// page is one open page.
type page struct {
	cookie, query string
	uuid          string // the GPU it shows, "" for all
	shown         map[string]string
	at            map[string][]int64
	bytes         map[int64]int
}

// pageOf is what the i-th page shows.
func pageOf(cfg config, i int) *page {
	p := &page{
		cookie: cfg.Cookies[i], query: "view=gpus", shown: map[string]string{}, at: map[string][]int64{},
		bytes: map[int64]int{},
	}
	switch i % 5 {
	case 3:
		p.query = "view=home"
	case 4:
		p.uuid = cfg.UUIDs[i/5%len(cfg.UUIDs)]
		p.query = "view=gpu&id=" + p.uuid
	}
	return p
}

// read opens every page and reads until it is told to stop.
func read(ctx context.Context, file string) error {
	cfg, err := part.Config[config](file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cfg.CA)
	var open, reading sync.WaitGroup
	failed := make(chan error, len(cfg.Cookies))
	list := make([]*page, len(cfg.Cookies))
	for i := range list {
		list[i] = pageOf(cfg, i)
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}}
		open.Add(1)
		opened := sync.OnceFunc(open.Done)
		reading.Go(func() {
			defer opened()
			if err := list[i].follow(ctx, client, cfg.Address, opened); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("page %d (%s): %w", i, list[i].query, err)
			}
		})
	}
	open.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(ready{}); err != nil {
		return err
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	cancel()
	reading.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	return out.Encode(sum(cfg, list))
}

// sum puts together what the pages have got.
func sum(cfg config, list []*page) arrivals {
	all := arrivals{At: map[string][]int64{}, Shows: map[string]int{}, Bytes: map[int64]int{}}
	for _, p := range list {
		for key, at := range p.at {
			all.At[key] = append(all.At[key], at...)
		}
		for second, n := range p.bytes {
			all.Bytes[second] += n
		}
		for _, uuid := range cfg.UUIDs {
			if p.uuid == "" || p.uuid == uuid {
				all.Shows[uuid]++
			}
		}
	}
	return all
}

// follow reads the page's events until ctx ends; opened is called after the first.
func (p *page) follow(ctx context.Context, client *http.Client, address string, opened func()) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/events?"+p.query, nil)
	if err != nil {
		return err
	}
	request.AddCookie(&http.Cookie{Name: cookies.Session, Value: p.cookie})
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		return fmt.Errorf("answer %s over %s", response.Status, response.Proto)
	}
	in := bufio.NewReaderSize(response.Body, 64<<10)
	var event []byte
	for {
		line, err := in.ReadSlice('\n')
		event = append(event, line...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return errors.Join(errors.New("the stream ended"), noEOF(err))
		}
		if len(line) > 1 {
			continue // an event ends with an empty line
		}
		p.note(event, time.Now())
		event = event[:0]
		opened()
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

var (
	target  = []byte(`hx-target="#`)
	percent = []byte(` <span class="unit">%`)
)

// note finds a GPU's use in an event.
func (p *page) note(event []byte, now time.Time) {
	p.bytes[now.Unix()] += len(event)
	_, rest, ok := bytes.Cut(event, target)
	if !ok {
		return
	}
	id, rest, _ := bytes.Cut(rest, []byte(`"`))
	uuid, ok := bytes.CutPrefix(id, []byte("gpu-GPU"))
	switch {
	case ok:
		uuid = append([]byte("GPU"), uuid...)
	case p.uuid != "" && string(id) == "gpu-now":
		uuid = []byte(p.uuid)
	default:
		return
	}
	before, _, ok := bytes.Cut(rest, percent)
	value := string(before[bytes.LastIndexByte(before, '>')+1:])
	if !ok || p.shown[string(uuid)] == value {
		return
	}
	p.shown[string(uuid)] = value
	key := string(uuid) + " " + value
	p.at[key] = append(p.at[key], now.UnixMicro())
}
