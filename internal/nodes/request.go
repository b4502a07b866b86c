package nodes

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// RequestLife is how long a machine's request to be let in can be answered.
const RequestLife = 10 * time.Minute

// How many requests wait at most, all together and from one address. More are
// refused rather than older ones forgotten: a flood takes nobody's place.
const (
	mostRequests      = 32
	mostRequestsOfOne = 2
)

// Why a request is not taken, or not found.
var (
	ErrFlooded = errors.New("too many machines ask to be let in; try again in ten minutes, or use a code from " +
		"`gpulab invite-node`")
	ErrNotInviting = errors.New("this lab expects no machine any more; run `gpulab invite-node` on the head, and " +
		"try again")
	ErrRequestGone = errors.New("the head does not know this request any more: it ended after ten minutes, or the " +
		"head was restarted; run `gpulab join` again")
	ErrRequestUnknown = errors.New("no machine asks with that number; `gpulab nodes requests` shows those that do")
	ErrRequestTwice   = errors.New("two machines ask with that number; refuse it, and let the machine ask again")
	ErrCommitment     = errors.New("what the machine said first and what it showed then do not belong together; run " +
		"`gpulab join` again")
)

// Nonce is what each side adds to the number of a request.
type Nonce [32]byte

// NewNonce makes one.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// Commitment binds a machine to its nonce and key before it knows the head's
// nonce.
func Commitment(key [sha256.Size]byte, nonce Nonce) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat([]byte("gpulab commitment 1\x00"), key[:], nonce[:]))
}

// Number is what a person compares on both screens before a machine that has no
// code is let in: six digits over the head's authority, the machine's key and a
// nonce of each.
//
// Somebody in the middle has an authority or a key of their own, so the two
// sides compute it over different things. Six digits could be made equal by
// trying, if the one who speaks last could choose: so the machine commits to its
// nonce first, the head shows its own, and only then the machine shows the one
// it is bound to. Whoever stands between has to give one side a nonce before it
// knows what the other's number will be, and is right once in a million times.
// This is the numeric comparison of Bluetooth's Secure Simple Pairing (Core
// Specification, volume 2, part H, section 7.2); that one try is all there is
// was shown by Vaudenay, "Secure Communications over Insecure Channels Based on
// Short Authenticated Strings", CRYPTO 2005.
func Number(authority, key [sha256.Size]byte, machine, head Nonce) string {
	sum := sha256.Sum256(slices.Concat([]byte("gpulab number 1\x00"), authority[:], key[:], machine[:], head[:]))
	// Of 2⁶⁴ values a million divides unevenly by less than one in 10¹³.
	return fmt.Sprintf("%06d", binary.BigEndian.Uint64(sum[:8])%1_000_000)
}

// Request is a machine that asks to be let in, as people see it.
type Request struct {
	Number  string
	Name    string // as the machine says
	Address string
	Version string
	Asked   time.Time
	Expires time.Time
}

// The states of a request.
const (
	RequestWaiting  = "waiting"
	RequestAccepted = "accepted"
	RequestRefused  = "refused"
)

type request struct {
	Request
	key, commitment [sha256.Size]byte
	nonce           Nonce
	state           string
	code            *Code // once it is accepted
}

// Requests are the machines that ask, of one head. They are kept in memory: who
// asked before a restart asks again.
type Requests struct {
	authority [sha256.Size]byte
	now       func() time.Time

	mu   sync.Mutex
	list map[string]*request // by ID, which the machine alone knows
}

// NewRequests is for the head with the given authority.
func NewRequests(authority [sha256.Size]byte) *Requests {
	return &Requests{authority: authority, now: time.Now, list: map[string]*request{}}
}

// Ask takes a request: the machine has bound itself to a nonce, and gets the
// head's. It is shown to nobody before Reveal.
func (r *Requests) Ask(q Request, key, commitment [sha256.Size]byte) (id string, nonce Nonce, expires time.Time,
	err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	same := 0
	for _, other := range r.list {
		if other.Address == q.Address && other.state == RequestWaiting {
			same++
		}
	}
	if len(r.list) >= mostRequests || same >= mostRequestsOfOne {
		return "", nonce, expires, ErrFlooded
	}
	var b [16]byte
	_, _ = rand.Read(b[:])
	id = hex.EncodeToString(b[:])
	q.Number, q.Asked = "", r.now()
	q.Expires = q.Asked.Add(RequestLife)
	n := &request{Request: q, key: key, commitment: commitment, nonce: NewNonce(), state: RequestWaiting}
	r.list[id] = n
	return id, n.nonce, q.Expires, nil
}

// Reveal takes the nonce to which a machine has bound itself; with it there is a
// number. A machine has one try.
func (r *Requests) Reveal(id string, nonce Nonce) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	q := r.list[id]
	if q == nil || q.Number != "" {
		return ErrRequestGone
	}
	if want := Commitment(q.key, nonce); subtle.ConstantTimeCompare(want[:], q.commitment[:]) != 1 {
		delete(r.list, id)
		return ErrCommitment
	}
	q.Number = Number(r.authority, q.key, nonce, q.nonce)
	return nil
}

func (r *Requests) forget() {
	now := r.now()
	for id, q := range r.list {
		if !now.Before(q.Expires) {
			delete(r.list, id)
		}
	}
}

// List is who waits for an answer, the one who has waited longest first.
func (r *Requests) List() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	out := []Request{}
	for _, q := range r.list {
		if q.Number != "" && q.state == RequestWaiting {
			out = append(out, q.Request)
		}
	}
	slices.SortFunc(out, func(a, b Request) int { return a.Asked.Compare(b.Asked) })
	return out
}

// find is the one who waits with a number. Two with the same are believed
// neither: a person could not tell them apart.
func (r *Requests) find(number string) (*request, error) {
	r.forget()
	var found *request
	for _, q := range r.list {
		if q.Number == "" || q.state != RequestWaiting || subtle.ConstantTimeCompare([]byte(q.Number), []byte(number)) != 1 {
			continue
		}
		if found != nil {
			return nil, ErrRequestTwice
		}
		found = q
	}
	if found == nil {
		return nil, ErrRequestUnknown
	}
	return found, nil
}

// Accept lets the machine with a number have a code, which invite makes for its
// key alone (Registry.InviteKey). A request is accepted once.
func (r *Requests) Accept(number string, invite func(key [sha256.Size]byte) (Code, error)) (Request, error) {
	r.mu.Lock()
	q, err := r.find(number)
	if err == nil {
		q.state = RequestAccepted
	}
	r.mu.Unlock()
	if err != nil {
		return Request{}, err
	}
	code, err := invite(q.key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		q.state = RequestWaiting
		return Request{}, err
	}
	q.code = &code
	q.Expires = r.now().Add(RequestLife) // so that the machine has time to fetch it
	return q.Request, nil
}

// Refuse answers all machines with a number.
func (r *Requests) Refuse(number string) (Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	var found *request
	for _, q := range r.list {
		if q.Number == number && q.Number != "" && q.state == RequestWaiting {
			q.state, found = RequestRefused, q
		}
	}
	if found == nil {
		return Request{}, ErrRequestUnknown
	}
	return found.Request, nil
}

// Answer is what the machine that asked is told, with its code once it may join.
func (r *Requests) Answer(id string) (state, code string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	q := r.list[id]
	if q == nil {
		return "", "", ErrRequestGone
	}
	switch {
	case q.state != RequestAccepted:
		return q.state, "", nil
	case q.code == nil:
		return RequestWaiting, "", nil
	}
	return q.state, q.code.String(), nil
}

// Pending tells whether some machine still needs the door: it waits for an
// answer, or has not had time to fetch one.
func (r *Requests) Pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	return len(r.list) > 0
}
