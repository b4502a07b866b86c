package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds, so that nobody takes the cache from the others.
const (
	connectionsEach = 64
	filesAtOnce     = 48 // that come from the index
	filesEach       = 16 // Hugging Face's client gets eight at once
	pagesAtOnce     = 4  // each lies in memory meanwhile
	pagesEach       = 2
)

// crowd closes connections of an address that has too many.
type crowd struct {
	mu          sync.Mutex
	connections map[string]int
}

func (c *crowd) watch(conn net.Conn, state http.ConnState) {
	who := hostOf(conn.RemoteAddr().String())
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.connections[who]++; c.connections[who] > connectionsEach {
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		if c.connections[who]--; c.connections[who] == 0 {
			delete(c.connections, who)
		}
	}
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// places are for requests to the index that are under way.
type places struct {
	free chan struct{}
	each int

	mu sync.Mutex
	by map[string]int // who has one, or waits for one
}

func newPlaces(all, each int) *places {
	return &places{free: make(chan struct{}, all), each: each, by: map[string]int{}}
}

var errTooMany = errors.New("too much of this is under way for one address already; try again in a moment")

// take waits for a place for somebody, until ctx ends; leave gives it back.
func (p *places) take(ctx context.Context, who string) (leave func(), err error) {
	p.mu.Lock()
	if p.by[who] >= p.each {
		p.mu.Unlock()
		return nil, errTooMany
	}
	p.by[who]++
	p.mu.Unlock()
	gone := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.by[who]--; p.by[who] == 0 {
			delete(p.by, who)
		}
	}
	select {
	case p.free <- struct{}{}:
		return sync.OnceFunc(func() { <-p.free; gone() }), nil
	case <-ctx.Done():
		gone()
		return nil, ctx.Err()
	}
}

// hasBody tells requests that bring something along.
func hasBody(r *http.Request) bool { return r.ContentLength != 0 || len(r.TransferEncoding) > 0 }

// refuseBody answers without waiting for what the request brings along.
func refuseBody(w http.ResponseWriter, why string) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	w.Header().Set("Connection", "close")
	http.Error(w, why, http.StatusBadRequest)
}

// badAddress refuses what is no address to ask another machine for.
func badAddress(w http.ResponseWriter, r *http.Request, most int) bool {
	upwards := func(part string) bool { return part == ".." || strings.HasPrefix(part, "..;") }
	switch {
	case len(r.RequestURI) > most:
		http.Error(w, "The address is too long.", http.StatusRequestURITooLong)
	case !strings.HasPrefix(r.URL.Path, "/") || slices.ContainsFunc(strings.Split(r.URL.Path, "/"), upwards):
		http.Error(w, "That is no address.", http.StatusBadRequest)
	default:
		return false
	}
	return true
}

// steady gives up on a client that does not read.
type steady struct {
	http.ResponseWriter
	control *http.ResponseController
}

func newSteady(w http.ResponseWriter) *steady {
	return &steady{w, http.NewResponseController(w)}
}

// Unwrap lets a ResponseController reach the connection.
func (s *steady) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *steady) Write(p []byte) (int, error) {
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return s.ResponseWriter.Write(p)
}

// steadyBody gives up on a client that does not send.
type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool // a deadline from now on would be that of the connection
}

func (s *steadyBody) Read(p []byte) (int, error) {
	if s.ended {
		return 0, io.EOF
	}
	if err := s.control.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	n, err := s.ReadCloser.Read(p)
	s.ended = errors.Is(err, io.EOF)
	return n, err
}
