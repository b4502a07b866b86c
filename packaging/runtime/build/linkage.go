package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

// linkage is what a part's files may ask of the host they run on.
type linkage int

const (
	anything   linkage = iota // files that are no programs
	nothing                   // statically linked
	lazyOnLibc                // the C library, symbols looked up when first called
)

// Flags of the dynamic section that have every symbol looked up at the start.
const (
	dfBindNow = 0x8
	df1Now    = 0x1
)

// check holds a file against its part's linkage. What it finds would only
// show on another machine: one with an older C library, or without a driver.
func (l linkage) check(path string) error {
	if l == anything {
		return nil
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	if l == nothing {
		if len(needed) > 0 {
			return fmt.Errorf("it should be linked statically, but needs %v", needed)
		}
		return nil
	}
	if !slices.Equal(needed, []string{"libc.so.6"}) {
		return fmt.Errorf("it should need libc.so.6 only, but needs %v", needed)
	}
	if bindsNow(f) {
		return errors.New("it looks up every symbol at its start, and so cannot start where there is no NVIDIA driver")
	}
	return nil
}

func bindsNow(f *elf.File) bool {
	has := func(tag elf.DynTag, flag uint64) bool {
		values, err := f.DynValue(tag)
		return err == nil && slices.ContainsFunc(values, func(v uint64) bool { return v&flag != 0 })
	}
	always, err := f.DynValue(elf.DT_BIND_NOW)
	return err == nil && len(always) > 0 || has(elf.DT_FLAGS, dfBindNow) || has(elf.DT_FLAGS_1, df1Now)
}
