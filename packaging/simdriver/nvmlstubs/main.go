// Command nvmlstubs reads NVIDIA's nvml.h and prints C code that defines every
// function declared there as a weak symbol answering "not supported". The
// simulated driver defines the functions it knows as ordinary symbols, which
// win over the weak ones, so that programs which look up or link any NVML
// function find it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: nvmlstubs path/to/nvml.h")
		os.Exit(2)
	}
	header, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = write(os.Stdout, prototypes(string(header)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nvmlstubs:", err)
		os.Exit(1)
	}
}

// prototype is one function of the header.
type prototype struct {
	Name, Parameters string
}

var (
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declaration = regexp.MustCompile(`nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^;]*?)\)\s*;`)
)

// prototypes returns the header's functions in order, each once: a function
// may be declared in both arms of an #if.
func prototypes(header string) []prototype {
	var found []prototype
	seen := make(map[string]bool)
	for _, m := range declaration.FindAllStringSubmatch(comment.ReplaceAllString(header, ""), -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			found = append(found, prototype{m[1], strings.Join(strings.Fields(m[2]), " ")})
		}
	}
	return found
}

const preamble = `#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC visibility push(default)
#include "nvml.h"
#include "sim.h"
`

func write(w io.Writer, functions []prototype) error {
	if len(functions) == 0 {
		return fmt.Errorf("the header declares no function in the form this program knows")
	}
	b := bufio.NewWriter(w)
	fmt.Fprint(b, preamble)
	for _, f := range functions {
		fmt.Fprintf(b, "__attribute__((weak)) nvmlReturn_t %s(%s) { return sim_unsupported(); }\n", f.Name, f.Parameters)
	}
	return b.Flush()
}
