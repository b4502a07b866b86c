package nodes

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Code is what a person carries from the head to a new machine: where the head
// is, how to know it, and a secret that is good for one machine.
type Code struct {
	// Addresses are those of the head's door for machines, the best one first.
	Addresses []netip.AddrPort
	// Authority is the SHA-256 of the authority's certificate.
	Authority [sha256.Size]byte
	ID        [8]byte
	Secret    [16]byte
}

// The form of a code: "gl1" and, in base32, a version, the fields, and the
// beginning of their SHA-256, by which a code that was cut off is known.
const (
	codePrefix   = "gl1"
	codeChecksum = 4
	mostAddress  = 4
)

// ErrCode says that a text is no whole code.
var ErrCode = errors.New("this join code is not whole; copy the whole line that `gpulab invite-node` printed on the " +
	"head, up to its end")

// letters has no padding and only characters that a double click selects.
var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newCode fills in the code's own random parts.
func newCode(authority [sha256.Size]byte, addresses []netip.AddrPort) Code {
	c := Code{Authority: authority, Addresses: addresses[:min(len(addresses), mostAddress)]}
	_, _ = rand.Read(c.ID[:]) // never fails
	_, _ = rand.Read(c.Secret[:])
	return c
}

// String is the code as it is pasted.
func (c Code) String() string {
	var b bytes.Buffer
	b.Write(c.Authority[:])
	b.Write(c.ID[:])
	b.Write(c.Secret[:])
	for _, a := range c.Addresses {
		ip, err := a.MarshalBinary() // address and port
		if err != nil || len(ip) > 255 {
			continue
		}
		b.WriteByte(byte(len(ip)))
		b.Write(ip)
	}
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:codeChecksum])
	return codePrefix + letters.EncodeToString(b.Bytes())
}

// ParseCode reads a code, or the whole line `gpulab join CODE`; the error is
// ErrCode.
func ParseCode(text string) (Code, error) {
	words := strings.Fields(strings.ToLower(text))
	if len(words) == 0 {
		return Code{}, ErrCode
	}
	rest, ok := strings.CutPrefix(words[len(words)-1], codePrefix)
	if !ok {
		return Code{}, ErrCode
	}
	data, err := letters.DecodeString(rest)
	// The last character has bits to spare, which only one spelling leaves at 0.
	if err != nil || len(data) < codeChecksum || letters.EncodeToString(data) != rest {
		return Code{}, ErrCode
	}
	data, sum := data[:len(data)-codeChecksum], data[len(data)-codeChecksum:]
	if want := sha256.Sum256(data); !bytes.Equal(sum, want[:codeChecksum]) {
		return Code{}, ErrCode
	}
	var c Code
	for _, field := range [][]byte{c.Authority[:], c.ID[:], c.Secret[:]} {
		if len(data) < len(field) {
			return Code{}, ErrCode
		}
		copy(field, data)
		data = data[len(field):]
	}
	for len(data) > 0 {
		n := int(data[0])
		var a netip.AddrPort
		if len(data) < 1+n || a.UnmarshalBinary(data[1:1+n]) != nil || !a.IsValid() {
			return Code{}, ErrCode
		}
		c.Addresses, data = append(c.Addresses, a), data[1+n:]
	}
	if len(c.Addresses) == 0 {
		return Code{}, fmt.Errorf("%w (it names no address)", ErrCode)
	}
	return c, nil
}
