package environments

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpulab/gpulab/assets"
)

// Offer is an environment of the catalogue: one that can be built without writing anything.
type Offer struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Note says for people what is in it, and about how much room it takes.
	Note         string `json:"note"`
	Requirements string `json:"requirements"`
}

// Catalogue lists what gpulab offers, by name.
func Catalogue() ([]Offer, error) {
	files := assets.Environments()
	names, err := fs.Glob(files, "*.txt")
	if err != nil {
		return nil, err
	}
	var list []Offer
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		o := Offer{Name: strings.TrimSuffix(name, ".txt")}
		for line := range strings.Lines(string(data)) {
			if title, ok := strings.CutPrefix(line, "# title: "); ok {
				o.Title = strings.TrimSpace(title)
			} else if note, ok := strings.CutPrefix(line, "# note: "); ok {
				o.Note = strings.TrimSpace(note)
			} else {
				o.Requirements += line
			}
		}
		list = append(list, o)
	}
	return list, nil
}

// Offered finds an environment of the catalogue.
func Offered(name string) (Offer, error) {
	list, err := Catalogue()
	if err != nil {
		return Offer{}, err
	}
	var names []string
	for _, o := range list {
		if o.Name == name {
			return o, nil
		}
		names = append(names, o.Name)
	}
	return Offer{}, sentence(ErrNotFound, "the catalogue has no %q; it has %s", name, strings.Join(names, ", "))
}

// Take fills in what somebody left out who wants it.
func (o Offer) Take(w *Wanted) error {
	if strings.TrimSpace(w.Requirements) != "" {
		return fmt.Errorf("%w: either requirements or one of the catalogue, not both", ErrInvalid)
	}
	w.Requirements = o.Requirements
	if w.Name == "" {
		w.Name = o.Name
	}
	if w.Title == "" {
		w.Title = o.Title
	}
	return nil
}
