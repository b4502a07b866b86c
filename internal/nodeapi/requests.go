package nodeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpulab/gpulab/internal/nodes"
)

// How fast machines without a code may ask, all together.
const (
	asksEvery = 2 * time.Second
	asksBurst = 8
)

// Asking is a machine without a code that wants to be let in.
type Asking struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	Key        []byte `json:"key"`        // SHA-256 of its public key
	Commitment []byte `json:"commitment"` // see nodes.Commitment
}

// Asked is the head's answer.
type Asked struct {
	ID      string    `json:"id"` // which nobody else is told
	Nonce   []byte    `json:"nonce"`
	Expires time.Time `json:"expires"`
}

// Answered is what a machine that asked is told.
type Answered struct {
	State string `json:"state"` // one of the nodes.Request constants
	// Code is there once the machine may join.
	Code string `json:"code,omitempty"`
}

// handleRequests takes machines that have no code. Nothing but a number that a
// person compares makes them known.
func (h *handler) handleRequests(mux *http.ServeMux) {
	asks := rate.NewLimiter(rate.Every(asksEvery), asksBurst)
	mux.HandleFunc("POST /v1/requests", func(w http.ResponseWriter, r *http.Request) {
		if !asks.Allow() {
			h.answer(w, nil, &Problem{Message: nodes.ErrFlooded.Error(), Status: http.StatusTooManyRequests})
			return
		}
		asked, err := h.ask(r)
		if errors.Is(err, nodes.ErrFlooded) {
			err = &Problem{Message: err.Error(), Status: http.StatusTooManyRequests}
		}
		h.answer(w, asked, err)
	})
	mux.HandleFunc("POST /v1/requests/{id}", func(w http.ResponseWriter, r *http.Request) {
		var nonce []byte
		err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, smallBody)).Decode(&nonce)
		if err == nil && len(nonce) != len(nodes.Nonce{}) {
			err = errors.New("the request is not whole")
		}
		if err == nil {
			err = h.Requests.Reveal(r.PathValue("id"), nodes.Nonce(nonce))
		}
		if errors.Is(err, nodes.ErrCommitment) {
			h.Head.Refused(r.Context(), "", r.RemoteAddr, err.Error())
		}
		h.answer(w, struct{}{}, err)
	})
	mux.HandleFunc("GET /v1/requests/{id}", func(w http.ResponseWriter, r *http.Request) {
		state, code, err := h.Requests.Answer(r.PathValue("id"))
		h.answer(w, Answered{state, code}, err)
	})
}

func (h *handler) ask(r *http.Request) (out Asked, err error) {
	var a Asking
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, smallBody)).Decode(&a); err != nil {
		return out, fmt.Errorf("the request could not be read: %w", err)
	}
	if !nodeName.MatchString(a.Name) {
		return out, fmt.Errorf("%.60q cannot be a machine's name; choose one of lower-case letters, digits and hyphens "+
			"with --name", a.Name)
	}
	if len(a.Key) != sha256.Size || len(a.Commitment) != sha256.Size || len(a.Version) > 64 {
		return out, errors.New("the request is not whole")
	}
	// Requests keep the port open, so they must not follow each other for ever.
	if open, err := h.Registry.Open(r.Context()); err != nil {
		return out, err
	} else if !open {
		return out, nodes.ErrNotInviting
	}
	id, nonce, expires, err := h.Requests.Ask(nodes.Request{Name: a.Name, Address: addressOf(r), Version: a.Version},
		[sha256.Size]byte(a.Key), [sha256.Size]byte(a.Commitment))
	return Asked{ID: id, Nonce: nonce[:], Expires: expires}, err
}

// Unknown is a client for a head that nobody has vouched for. Its first
// connection decides which authority that is; all others must show the same.
// Until a person has compared the number of Ask, it may be anybody.
func Unknown(ctx context.Context, address netip.AddrPort) (c *Client, authority [sha256.Size]byte, hello Hello,
	err error) {
	var once sync.Once
	c = newClient(Places{Addresses: []netip.AddrPort{address}}, &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.HeadName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection pins; the number that people compare covers what
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) < 2 {
				return errors.New("what answers there is no head of gpulab's")
			}
			once.Do(func() { authority = sha256.Sum256(s.PeerCertificates[len(s.PeerCertificates)-1].Raw) })
			_, err := authorityOf(s.PeerCertificates, authority)
			return err
		},
	})
	hello, _, err = c.Hello(ctx)
	return c, authority, hello, err
}

// Petition is a request to be let in, as the machine has it.
type Petition struct {
	// Number is what the head's people must see, too, before they accept.
	Number  string
	Expires time.Time

	client *Client
	id     string
}

// Ask asks a head to let this machine in, for the key with which it is going to
// join.
func (c *Client) Ask(ctx context.Context, authority [sha256.Size]byte, key *ecdsa.PrivateKey, name,
	version string) (*Petition, error) {
	hash, err := nodes.KeyHash(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	nonce := nodes.NewNonce()
	commitment := nodes.Commitment(hash, nonce)
	asked, err := call[Asked](ctx, c, http.MethodPost, "/v1/requests",
		Asking{Name: name, Version: version, Key: hash[:], Commitment: commitment[:]})
	if err != nil {
		return nil, err
	}
	if len(asked.Nonce) != len(nonce) {
		return nil, errors.New("the head's answer is not whole")
	}
	// Shown only now that the head's nonce cannot change any more.
	if _, err := call[struct{}](ctx, c, http.MethodPost, "/v1/requests/"+url.PathEscape(asked.ID), nonce[:]); err != nil {
		return nil, err
	}
	return &Petition{
		Number: nodes.Number(authority, hash, nonce, nodes.Nonce(asked.Nonce)), Expires: asked.Expires, client: c,
		id: asked.ID,
	}, nil
}

// Answer asks what the head's people have said.
func (p *Petition) Answer(ctx context.Context) (Answered, error) {
	return call[Answered](ctx, p.client, http.MethodGet, "/v1/requests/"+url.PathEscape(p.id), nil)
}
