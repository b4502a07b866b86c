package main

import (
	"strings"
	"testing"
)

// A mistake in the configuration is told in words that need no knowledge of
// programming, with what was probably meant.
func TestMistakesInTheConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"gpuSharing: two":                    "gpuSharing must be a whole number, and is text; correct it",
		"gpuSharing: 1.5":                    "gpuSharing must be a whole number, and is 1.5; correct it",
		"gpuSharing: 0":                      "gpuSharing is 0; it may be 1 (each GPU is one notebook's at a time) to 48",
		"gpuSharing: -1":                     "gpuSharing is -1; it may be 1",
		"simulatedGPUs: 0":                   "simulatedGPUs is 0; it may be 1 to 16",
		"httpPort: [80]":                     "httpPort must be a whole number, and is a list",
		"names: gpu.lab.example":             "names must be a list, and is text",
		"metrics: off":                       "metrics must be keys of its own, on lines that are further in, and is true or false",
		"metrics: {enabled: never}":          "metrics.enabled must be true or false, and is text",
		"profiles:\n- {slug: a, cpus: many}": "profiles.cpus must be a number, and is text",
		"lab: {name: x}":                     "lab must be text, and is keys of its own",
		"gpuShering: 2":                      "there is no key gpuShering; did you mean gpuSharing?",
		"http-port: 80":                      "there is no key http-port; did you mean httpPort or httpsPort?",
		"k3s: {kubeletarg: []}":              "did you mean kubeletArgs?",
		"cpus: 2":                            "cpus stands at a place where there is no such key; it belongs into profiles",
		"zzz: 2":                             "there is no key zzz; correct it",
		"lab: a\nlab: b":                     `key "lab" already set in map`,
		"lab: [":                             "line 1: ",
		"- lab":                              `it must consist of lines such as "lab: Physics lab"`,
		"profiles:\n- {slug: Big One, title: Big}": "Big One",
	} {
		path := writeConfig(t, text)
		_, err := loadConfig(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%q: %v\nwant %q in it", text, err, want)
			continue
		}
		for _, jargon := range []string{"json", "JSON", "unmarshal", "Go ", "struct", "Config."} {
			if strings.Contains(err.Error(), jargon) {
				t.Errorf("%q: %v speaks of %q", text, err, jargon)
			}
		}
	}
	for _, text := range []string{"", "gpuSharing:", "gpuSharing: 1", "lab: 2026", "gpuSharing: 2\nnames: []"} {
		c, err := loadConfig(writeConfig(t, text))
		if err != nil || c.GPUSharing < 1 || c.SimulatedGPUs != 2 {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
}
