package main

import (
	"github.com/gpulab/gpulab/internal/notebooks"
)

// openLabels gives notebooks names where the lab has a wildcard name.
func (l *appliance) openLabels() error {
	bases := l.cfg.Wildcards()
	if len(bases) == 0 {
		return nil
	}
	key, err := loadLabelKey(l.cfg.DataDir)
	if err != nil {
		return err
	}
	l.labels = notebooks.NewLabels(bases, l.cfg.HTTPSPort, []byte(key), l.people.SessionByID)
	l.origins.UseLabels(l.labels)
	return nil
}
