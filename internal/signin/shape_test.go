package signin

import (
	"fmt"

	ber "github.com/go-asn1-ber/asn1-ber"
)

// shape is a filter without its values.
func shape(p *ber.Packet) string {
	out := fmt.Sprint(p.Tag)
	for _, child := range p.Children {
		out += "(" + shape(child) + ")"
	}
	return out
}
