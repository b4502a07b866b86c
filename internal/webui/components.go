package webui

import (
	"strconv"

	"github.com/gpulab/gpulab/internal/users"
)

// A field is one labelled input of a form.
type field struct {
	ID, Name, Label string
	Type            string // of the input; "" is text
	Value           string
	Hint, Error     string
	Optional        bool
	Autocomplete    string
	MaxLength       int
	MinLength       int
	Autofocus       bool
	Disabled        bool
	// SuggestFrom is the ID of an input this handle is derived from.
	SuggestFrom string
	// CheckURL, if any, is asked about the value while it is typed; the answer
	// replaces the line below the input.
	CheckURL string
}

func (f field) inputType() string {
	if f.Type == "" {
		return "text"
	}
	return f.Type
}

func (f field) describedBy() string { return f.ID + "-note" }

// tone is the colour of a tag or banner: "", "ok", "warn", "bad" or "info".
type tone string

// toneIcons are the icons of banners.
var toneIcons = map[tone]string{
	"": "info", "info": "info", "ok": "circle-check", "warn": "triangle-alert", "bad": "circle-alert",
}

// A reading is one measured value with its scale.
type reading struct {
	Name  string
	Value string // empty where the GPU does not tell
	Unit  string
	Of    string // the scale in words: "of 40 GiB"
	// Fraction is the value on its scale, 0 to 1; nil draws no meter.
	Fraction *float64
	High     bool // close to the end of a scale where that matters
	Drawing  *drawing
}

func (r reading) percent() string {
	return strconv.FormatFloat(*r.Fraction*100, 'f', 1, 64)
}

func (r reading) spoken() string {
	if r.Value == "" {
		return r.Name + " over the last two minutes, not known"
	}
	return r.Name + " over the last two minutes, now " + r.Value + " " + r.Unit
}

func displayName(u users.User) string {
	if u.Name != "" {
		return u.Name
	}
	return u.Handle
}
