package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// namePatience is how long a server is waited for; a pod's resolver waits as long.
const namePatience = 5 * time.Second

// maxReply is what a datagram can hold, in bytes.
const maxReply = 64 << 10

// askName asks one server for the IPv4 address of a name, as it is written. A lost
// datagram is no failure: it asks again after half the time.
func (h host) askName(server netip.Addr, name string) reply {
	began := h.now()
	ctx, cancel := context.WithTimeout(h.ctx, namePatience)
	defer cancel()
	r, err := h.exchange(ctx, server, name)
	if err != nil {
		return reply{err: err}
	}
	r.took = h.now().Sub(began)
	return r
}

func (h host) exchange(ctx context.Context, server netip.Addr, name string) (reply, error) {
	id := uint16(rand.Uint32())
	question, err := nameQuestion(id, name)
	if err != nil {
		return reply{}, err
	}
	conn, err := h.dial(ctx, "udp", netip.AddrPortFrom(server, 53).String())
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })() // ends the read
	again := time.AfterFunc(namePatience/2, func() { _, _ = conn.Write(question) })
	defer again.Stop()
	if _, err := conn.Write(question); err != nil {
		return reply{}, err
	}
	buffer := make([]byte, maxReply)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return reply{}, errors.Join(err, ctx.Err())
		}
		if r, ok := readReply(buffer[:n], id); ok {
			return r, nil
		}
	}
}

func nameQuestion(id uint16, name string) ([]byte, error) {
	full, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, fmt.Errorf("the name %s: %w", name, err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: full, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	return m.Pack()
}

// readReply reads a datagram; ok is false for one that answers something else.
func readReply(data []byte, id uint16) (r reply, ok bool) {
	var p dnsmessage.Parser
	header, err := p.Start(data)
	if err != nil || header.ID != id || !header.Response || p.SkipAllQuestions() != nil {
		return r, false
	}
	r.code = header.RCode
	answers, err := p.AllAnswers()
	if err != nil {
		return r, header.Truncated // with what did not fit
	}
	for _, a := range answers {
		if body, isA := a.Body.(*dnsmessage.AResource); isA {
			r.address = netip.AddrFrom4(body.A)
			break
		}
	}
	return r, true
}
