package api

import (
	"net/url"
	"strconv"
	"strings"
)

// Pages are the parameters of lists that come in pages.
type Pages struct {
	Page    int `query:"page" default:"1" minimum:"1" maximum:"100000" doc:"Which page, from 1"`
	PerPage int `query:"perPage" default:"50" minimum:"1" maximum:"200" doc:"How many on a page"`
}

func (p Pages) offset() int { return (p.Page - 1) * p.PerPage }

// links is the header Link of a page of total things: where the first, the one before and the next are.
func (p Pages) links(c *call, total int) string {
	var list []string
	if p.Page > 1 {
		list = append(list, link(c, "first", "page", 1), link(c, "prev", "page", p.Page-1))
	}
	if p.offset()+p.PerPage < total {
		list = append(list, link(c, "next", "page", p.Page+1))
	}
	return strings.Join(list, ", ")
}

// link is one link of the header, to this address with another value of one parameter.
func link(c *call, rel, name string, value int) string {
	query := c.url.Query()
	query.Set(name, strconv.Itoa(value))
	return "<" + (&url.URL{Path: c.url.Path, RawQuery: query.Encode()}).String() + `>; rel="` + rel + `"`
}
